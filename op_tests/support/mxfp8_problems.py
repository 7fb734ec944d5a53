"""Problems of gemm_mxfp8 and their results in float64, in which products and scales are exact."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rfops.dispatch.compare import HALF_ULP, assert_within, tolerance
from rfops.gemm.kernels.mxfp8.gemv import GemvConfig
from rfops.quantization.mxfp8 import dequant_mxfp8

# (K, N) of one GPU: qkv, o_proj, gate_up and mlp_down of a layer, split over 1, 2, 4, 8 GPUs.
# At TP1 gate_up and mlp_down are the same shape.
MODEL_SHAPES = {
    "tp1": [(6144, 9216), (8192, 6144), (6144, 6144)],
    "tp2": [(6144, 4608), (4096, 6144), (6144, 3072), (3072, 6144)],
    "tp4": [(6144, 2304), (2048, 6144), (6144, 1536), (1536, 6144)],
    "tp8": [(6144, 1152), (1024, 6144), (6144, 768), (768, 6144)],
}
ALL_SHAPES = [shape for shapes in MODEL_SHAPES.values() for shape in shapes]


Product = tuple[torch.Tensor, torch.Tensor]  # exact, and of |x| and |w|
NAN = (0x7F, 0x7F, 255, 255)  # bytes of the four tensors


@dataclass
class Problem:
    x: torch.Tensor
    w: torch.Tensor
    x_scale: torch.Tensor
    w_scale: torch.Tensor

    @property
    def args(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.x, self.w, self.x_scale, self.w_scale

    def to(self, device: torch.device) -> Problem:
        return Problem(*(tensor.to(device) for tensor in self.args))

    def among_nan(self) -> Problem:
        """The same with NaN around each tensor."""
        return Problem(*(surround(t, nan)[0] for t, nan in zip(self.args, NAN, strict=True)))


def random_payload(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Every e4m3 code but the two NaN, equally likely."""
    codes = torch.randint(0, 254, (rows, k), generator=generator, dtype=torch.uint8)
    return (codes + (codes >= 127)).view(torch.float8_e4m3fn)


def random_problem(m: int, n: int, k: int, seed: int = 0) -> Problem:
    """All payloads, scales over 2^-6..2^6: a block read from a wrong place shows."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 10_007 * k + 101 * n + m)

    def scale(rows: int) -> torch.Tensor:
        return torch.randint(121, 134, (rows, k // 32), generator=generator, dtype=torch.uint8)

    x, w = random_payload(m, k, generator), random_payload(n, k, generator)
    return Problem(x, w, scale(m), scale(n))


def depth(m: int, n: int, k: int, config: GemvConfig | None) -> int:
    """Of the GEMV; without a config of any kernel: 128 products of a matrix instruction in an order
    it does not tell, one rounding for each, 16 parts of K at most that are added up."""
    if config is None:
        return 128 + math.ceil(k / 128) + 16
    rounds = math.ceil(k / (config.lanes * 16 * config.steps * config.waves))
    return 16 + rounds * config.steps + 6 + config.waves - 1


def exact_product(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """y and S in float64; a part of w at a time, as all of it in float64 is large."""
    x = dequant_mxfp8(problem.x.cpu(), problem.x_scale.cpu(), torch.float64)
    products = []
    for w, scale in zip(problem.w.cpu().split(512), problem.w_scale.cpu().split(512), strict=True):
        values = dequant_mxfp8(w, scale, torch.float64)
        products.append((x @ values.T, x.abs() @ values.abs_().T))
    exact, total = (torch.cat(tensors, dim=1) for tensors in zip(*products, strict=True))
    return exact, total


@functools.lru_cache(maxsize=1)
def _all_rows(counts: tuple[int, ...], n: int, k: int) -> tuple[Problem, Product]:
    problem = random_problem(sum(counts), n, k, seed=1)
    return problem, exact_product(problem)


def some_rows(m: int, counts: Sequence[int], n: int, k: int) -> tuple[Problem, Product]:
    """A problem of m rows, one of `counts`, with rows of its own for each, and its exact product.
    They share w, of which float64 takes far longer than a kernel does."""
    problem, (exact, total) = _all_rows(tuple(counts), n, k)
    row_begin = sum(counts[: list(counts).index(m)])
    rows = slice(row_begin, row_begin + m)
    group_problem = Problem(problem.x[rows], problem.w, problem.x_scale[rows], problem.w_scale)
    return group_problem, (exact[rows], total[rows])


def assert_correct(
    actual: torch.Tensor,
    problem: Problem,
    config: GemvConfig | None = None,
    product: Product | None = None,
) -> None:
    """Against float64, within the derived tolerance; NaN and infinities at the same places."""
    (m, k), n, dtype = problem.x.shape, problem.w.shape[0], actual.dtype
    assert actual.shape == (m, n)
    exact, total = product or exact_product(problem)
    overflows = exact.abs() > torch.finfo(dtype).max * (1 + HALF_ULP[dtype])
    bound = tolerance(exact, total, depth(m, n, k, config), dtype)
    assert_within(actual, torch.where(overflows, exact.sign() * math.inf, exact), bound)


def one_block(x_byte: int, w_byte: int, x_code: int = 0x38, w_code: int = 0x38) -> Problem:
    """K = 64: a first block of the given scales, a second of zeros. Code 0x38 is 1.0."""

    def side(byte: int, code: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        payload = torch.zeros(rows, 64, dtype=torch.uint8)
        payload[:, :32] = code
        scale = torch.full((rows, 2), 127, dtype=torch.uint8)
        scale[0, 0] = byte
        return payload.view(torch.float8_e4m3fn), scale

    x, x_scale = side(x_byte, x_code, 2)
    w, w_scale = side(w_byte, w_code, 3)
    return Problem(x, w, x_scale, w_scale)


def surround(tensor: torch.Tensor, poison: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of `tensor` inside a larger buffer of poison bytes; both are returned."""
    size, margin = tensor.numel() * tensor.element_size(), 4096
    buffer = torch.full((margin + size + margin,), poison, dtype=torch.uint8, device=tensor.device)
    inner = buffer[margin : margin + size].view(tensor.dtype).view(tensor.shape)
    inner.copy_(tensor)
    return inner, buffer


def fp8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8).view(torch.float8_e4m3fn)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def valid(**changes: object) -> dict[str, object]:
    """Arguments of a valid call, M=2, N=4, K=64, with changes."""
    args: dict[str, object] = {
        "x": fp8(2, 64),
        "w": fp8(4, 64),
        "x_scale": bytes_of(2, 2),
        "w_scale": bytes_of(4, 2),
    }
    return {**args, **changes}
