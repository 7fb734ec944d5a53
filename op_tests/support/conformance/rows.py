"""Call sites of both engines of norms, activations and quantisers of rows: each site's own call
expression, with its literals, of tensors as the engine has them there."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of

from .cases import ARCHS, case, nan, normal
from .engine_code import SIGNATURES, ToTheOriginal, World
from .reference import assert_close
from .sites import Site

ROWS, COLUMNS, EPS = 5, 256, 1e-5
QUANT = "aiter.ops.quant"
NORM_QUANT = "aiter.ops.triton.fused_fp8_quant.fused_rms_fp8_group_quant"
CLAMP = "aiter.ops.triton.fusions.fused_clamp_act_mul.fused_clamp_act_mul"
ANOTHER_LAUNCH = "rfops needs a launch more for res1, and for output_unquantized_inp1"
Values = Mapping[str, Any]


def replay(world: World, site: Site, target: str, values: Values) -> tuple[Any, Values]:
    """The site's call: its result, and the arguments by name. Literals are the site's own, all else
    is from `given`."""
    module, _, name = target.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    space: dict[str, Any] = {"torch": torch}
    exec(f"def theirs({SIGNATURES[target]}): ...", space)
    parameters = list(inspect.signature(space["theirs"]).parameters)
    node = world.node(site)
    by_position = [_value(a, values, p) for a, p in zip(node.args, parameters, strict=False)]
    by_name = {k.arg: _value(k.value, values, k.arg) for k in node.keywords if k.arg}
    result = world.call(site, function, *by_position, names=by_name)
    passed = dict(zip(parameters, by_position, strict=False)) | by_name
    return result, passed


def _value(node: ast.expr, values: Values, name: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return values[name]


# ---------------------------------------------------------------- what must come of it


def norm(x: Tensor, weight: Tensor) -> Tensor:
    z = x.double()
    return z / (z.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def assert_bf16(actual: Tensor, expected: Tensor) -> None:
    """One rounding, 2^-8 of a power of two, after fp32's of some hundred sums and of exp's
    argument."""
    assert_close(actual, expected, expected.abs() * (2**-8 + 2**-16) + 2**-20)


def assert_fp8(payload: Tensor, scale: Tensor, expected: Tensor) -> None:
    """A code errs by 2^-4 of its value, or half of the least, 2^-9 of e4m3 and 2^-10 of fnuz; what
    is quantised was rounded to bf16 before."""
    groups = payload.double().view(*scale.shape, -1)
    values = (groups * scale.double().unsqueeze(-1)).view(expected.shape)
    step = scale.double().repeat_interleave(groups.shape[-1], -1).view(expected.shape)
    assert_close(values, expected, expected.abs() * (2**-4 + 2**-8) + step * 2**-10)


def check_norm(world: World, site: Site) -> None:
    x, w = normal(ROWS, COLUMNS), normal(COLUMNS)
    out, _ = replay(world, site, site.target, {"input": x, "weight": w, "epsilon": EPS})
    assert_bf16(out, norm(x, w))


def check_norm_quant(world: World, site: Site) -> None:
    x, w, fp8 = normal(ROWS, COLUMNS), normal(COLUMNS), fp8_of(world.arch)
    second, second_w = normal(ROWS, 128), normal(128)
    values = {
        "inp1": x,
        "inp1_weight": w,
        "inp1_epsilon": EPS,
        "inp2": second,
        "inp2_weight": second_w,
        "inp2_epsilon": EPS,
        "group_size": 128,
        "dtype_quant": fp8,
        "res1": normal(ROWS, COLUMNS, seed=1),
        "output_unquantized_inp1": False,
        "transpose_scale": False,
    }
    ((payload, scale), *other_results), passed = replay(world, site, NORM_QUANT, values)
    assert_fp8(payload, scale, norm(x, w))
    assert other_results[0] is None and other_results[2] is None
    if passed.get("inp2") is not None:
        assert_bf16(other_results[1], norm(second, second_w))


def activation(x: Tensor, limit: float) -> Tensor:
    gate, up = x.double().chunk(2, -1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


def check_silu(world: World, site: Site) -> None:
    x, out = normal(ROWS, 2 * COLUMNS), nan(ROWS, COLUMNS)
    _, passed = replay(world, site, site.target, {"input": x, "out": out, "limit": 0.5})
    assert_bf16(out, activation(x, passed["limit"]))


def check_clamp(world: World, site: Site) -> None:
    x, fp8 = normal(ROWS, 2 * COLUMNS), fp8_of(world.arch)
    values = {"inp": x, "out": nan(ROWS, COLUMNS), "swiglu_limit": 0.5, "transpose_scale": True}
    result, passed = replay(world, site, CLAMP, {**values, "dtype_quant": fp8})
    expected = activation(x, passed["swiglu_limit"])
    if passed.get("dtype_quant") is None:
        assert_bf16(result, expected)
        return
    payload, scale = result
    if scale.dtype == torch.uint8:
        scale = (scale.double() - 127).exp2()
    assert_fp8(payload, scale.T if passed.get("transpose_scale") else scale, expected)


def check_quant(world: World, site: Site) -> None:
    x, out = normal(ROWS, COLUMNS), nan(ROWS, COLUMNS, dtype=fp8_of(world.arch))
    is_tensor = "per_tensor" in site.target
    scale = (
        torch.full((1,), 0.04) if "static" in site.target else torch.zeros(1 if is_tensor else ROWS)
    )
    scale = scale if is_tensor else scale.view(-1, 1)
    values = {"out": out, "input": x, "scale": scale, "scales": scale}
    replay(world, site, site.target, values)
    assert_fp8(
        out.view(1, -1) if is_tensor else out,
        scale.view(-1, 1),
        x.double().view(-1) if is_tensor else x.double(),
    )


def check_new_quant(world: World, site: Site) -> None:
    x = normal(ROWS, COLUMNS)
    values = {"x": x, "quant_dtype": fp8_of(world.arch)}
    (payload, scale), _ = replay(world, site, site.target, values)
    assert_fp8(payload, scale, x.double())


CHECKS: Mapping[str, Callable[[World, Site], None]] = {
    "aiter.rms_norm": check_norm,
    "aiter.rmsnorm2d_fwd": check_norm,
    NORM_QUANT: check_norm_quant,
    "aiter.silu_and_mul": check_silu,
    CLAMP: check_clamp,
    f"{QUANT}.dynamic_per_token_scaled_quant": check_quant,
    f"{QUANT}.dynamic_per_tensor_quant": check_quant,
    f"{QUANT}.static_per_tensor_quant": check_quant,
    "aiter.per_token_quant_hip": check_new_quant,
}


def declare(
    engine: str, sites: Sequence[tuple[str, str, str]], archs: Sequence[str] = ARCHS
) -> None:
    """Cases of an engine: (the function that holds the sites, the callee, why they are refused)."""
    for function, target, refused in sites:

        def run(world: World, function: str = function, target: str = target) -> None:
            for site in world.sites(function, target):
                with contextlib.suppress(ToTheOriginal):  # seen by the world; the next site too
                    CHECKS[target](world, site)

        run.__name__ = f"{target.rpartition('.')[2]} in {function}"
        case(engine, archs, refused)(run)


_MLA = "DeepseekMLARocmForwardMixin.forward_absorb_rocm_prepare"
declare(
    "sglang",
    [
        ("SiluAndMulOp.forward_aiter", "aiter.silu_and_mul", ""),
        ("SiluAndMul.forward_aiter", "aiter.silu_and_mul", ""),
        ("scaled_fp8_quant", f"{QUANT}.dynamic_per_tensor_quant", ""),
        ("scaled_fp8_quant", f"{QUANT}.dynamic_per_token_scaled_quant", ""),
        ("scaled_fp8_quant", f"{QUANT}.static_per_tensor_quant", ""),
        ("RMSNorm.forward_aiter", "aiter.rmsnorm2d_fwd", ""),
        ("apply_fp8_ptpc_linear", "aiter.per_token_quant_hip", ""),
        ("DeepseekV2MLP.forward", CLAMP, ""),
        ("_fused_rmsnorm_fp8_per_token_quant", NORM_QUANT, ANOTHER_LAUNCH),
        ("_update_and_read_residual_aiter_fp8_group", NORM_QUANT, ANOTHER_LAUNCH),
        ("DeepseekMHARocmForwardMixin.forward_normal_rocm_prepare", NORM_QUANT, ANOTHER_LAUNCH),
        (_MLA, NORM_QUANT, ANOTHER_LAUNCH),
        ("_fused_rmsnorm_fp8_quant", NORM_QUANT, ANOTHER_LAUNCH),
    ],
)
declare(
    "vllm",
    [
        ("_rocm_aiter_per_tensor_quant_impl", f"{QUANT}.dynamic_per_tensor_quant", ""),
        ("_rocm_aiter_per_tensor_quant_impl", f"{QUANT}.static_per_tensor_quant", ""),
        ("_rocm_aiter_per_token_quant_impl", f"{QUANT}.dynamic_per_token_scaled_quant", ""),
        ("_rocm_aiter_rmsnorm_fp8_group_quant_impl", NORM_QUANT, ""),
        ("_rocm_aiter_rmsnorm_with_add_fp8_group_quant_impl", NORM_QUANT, ANOTHER_LAUNCH),
        ("rocm_aiter_ops.rms_norm", "aiter.rms_norm", ""),
        ("_rms_norm_impl", "aiter.rms_norm", ""),
        ("aiter_triton_kernel_w4a4_moe_forward", CLAMP, ""),
    ],
)
declare("vllm", [("_aiter_w4a16_silu_via_a8w4", CLAMP, "")], ("gfx950",))  # to MX-FP8
