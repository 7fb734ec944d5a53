"""A whole real model with every linear through rfops: the MiniLM sentence encoder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rfops import (
    gemm_a16wfp4,
    gemm_mxfp8,
    quant_mxfp4,
    quant_mxfp8,
    shuffle_scale,
    shuffle_weight,
)
from rfops.cli.real_input import INSTALL, LAYERS, encode, model_folder
from rfops.dispatch.layout import Shuffled
from rfops.quantization.mxfp4 import dequant_mxfp4

pytestmark = pytest.mark.skipif(
    model_folder() is None, reason=f"no real weights ({INSTALL}); a linear of random ones: gemm/"
)
SENTENCES = [
    "Every byte of the weight is read once.",
    "A matrix of small numbers keeps one scale for each block of thirty-two.",
    "The cat sat in the sun while the rain fell on the other side of the mountain, and nobody "
    "who walked past the window noticed.",
]


@pytest.mark.requires_gfx950
def test_minilm_encoder(gfx950: torch.device, figure: Callable[[str], None]) -> None:
    """Embeddings within cosine 0.99 of fp32; sentences below and above 16 tokens, so that the
    matrix-core kernel and Triton both take part."""
    quantised: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    rows: list[int] = []

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        key = weight.data_ptr()
        if key not in quantised:
            payload, scale = quant_mxfp8(weight)
            quantised[key] = payload.to(gfx950), scale.to(gfx950)
        (w, w_scale), (a, a_scale) = quantised[key], quant_mxfp8(x)
        rows.append(x.shape[0])
        out = gemm_mxfp8(a.to(gfx950), w, a_scale.to(gfx950), w_scale, dtype=torch.float32)
        return out.cpu() + bias

    expected, actual = encode(SENTENCES), encode(SENTENCES, linear)
    assert len(rows) == 6 * LAYERS * len(SENTENCES) and len(quantised) == 6 * LAYERS
    assert min(rows) <= 16 < max(rows)
    cosine = torch.nn.functional.cosine_similarity(actual, expected)
    figure(f"MiniLM in MX-FP8 against fp32: cosine {cosine.min():.4f} at least")
    assert (cosine > 0.99).all(), cosine
    similar = expected @ expected.T
    torch.testing.assert_close(actual @ actual.T, similar, rtol=0, atol=0.03)


@pytest.mark.requires_gfx950
def test_minilm_encoder_in_mxfp4(gfx950: torch.device, figure: Callable[[str], None]) -> None:
    """Weights and activations of four bits in every layer: what plain fp32 makes of the same
    quantised values, and as close to the fp32 model as such values are."""
    quantised: dict[int, tuple[Shuffled, Shuffled]] = {}

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        key = weight.data_ptr()
        if key not in quantised:
            payload, scale = quant_mxfp4(weight)
            shuffled = shuffle_weight(payload), shuffle_scale(scale)
            quantised[key] = shuffled[0].to(gfx950), shuffled[1].to(gfx950)
        rows = x.to(torch.bfloat16).to(gfx950)
        out = gemm_a16wfp4(rows, *quantised[key], torch.float32, bias=bias.to(gfx950))
        return out.cpu()

    def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        wide = (dequant_mxfp4(*quant_mxfp4(t)) for t in (x.to(torch.bfloat16), weight))
        return torch.nn.functional.linear(*wide, bias)

    expected, same, actual = (encode(SENTENCES, *f) for f in ((), (plain,), (linear,)))
    assert len(quantised) == 6 * LAYERS
    similarity = torch.nn.functional.cosine_similarity
    cosine = similarity(actual, expected)
    figure(f"MiniLM in MXFP4 against fp32: cosine {cosine.min():.4f} at least")
    assert (similarity(actual, same) > 0.999).all(), similarity(actual, same)
    assert (cosine > 0.9).all(), cosine
    torch.testing.assert_close(actual @ actual.T, expected @ expected.T, rtol=0, atol=0.03)


def test_the_encoder_is_the_real_one() -> None:
    """Sentences of one meaning are close, of different ones are not: weights and tokens fit."""
    embeddings = encode(
        [
            "How do I reset my password?",
            "I forgot my password, how can I change it?",
            "The weather in the mountains was cold.",
        ]
    )
    similar = embeddings @ embeddings.T
    assert similar[0, 1] > 0.7 and similar[0, 2] < 0.2, similar
