"""`rfops demo`: the first op end to end, each step said and timed."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass

import torch

import rfops
from rfops.cli.real_input import INSTALL, first_feed_forward, model_folder
from rfops.dispatch import routing
from rfops.gemm.kernels.mxfp8.gemv import mxfp8_gemv
from rfops.gemm.kernels.mxfp8.mfma import mxfp8_mfma
from rfops.gemm.mxfp8 import OP
from rfops.jit import BoundKernel, settings, vgpu_library
from rfops.jit.build import toolchain
from rfops.jit.launch import hip

K, N = 6144, 2304  # a linear layer of a large decoder, split over eight GPUs
COLD_BAR, COMPILE_BAR = 2.0, 1.0  # seconds


@dataclass(frozen=True)
class Case:
    """One linear layer: x [M, K] and w [N, K] in fp32."""

    title: str
    x: torch.Tensor
    w: torch.Tensor


def run(cold: bool) -> int:
    """Print the steps; 0 if every result was within its bound and, if cold, every time too."""
    device = _device()
    _check_compiler(hip.device_arch(device), cold)
    if not cold:
        return _run(device, cold)
    if device.type == "cpu":  # the bar is for a virtual GPU that is built already
        os.environ["RFOPS_HIP_LIBRARY"] = str(settings.path("RFOPS_HIP_LIBRARY") or vgpu_library())
    with tempfile.TemporaryDirectory(prefix="rfops-demo-") as folder:
        os.environ["RFOPS_CACHE_DIR"] = folder
        return _run(device, cold)


def _device() -> torch.device:
    return torch.device("cuda" if torch.version.hip and torch.cuda.is_available() else "cpu")


def _check_compiler(arch: str, cold: bool) -> None:
    """Before the virtual GPU is built, a minute. What a cache has needs no compiler."""
    if cold or next(toolchain.usable("device", arch), None) is None:
        toolchain.device_toolchain(arch)


def _run(device: torch.device, cold: bool) -> int:
    print(f"rfops {rfops.__version__} demo")
    if device.type == "cpu" and settings.path("RFOPS_HIP_LIBRARY") is None:
        begin = time.perf_counter()
        path = vgpu_library()
        _print_step("virtual GPU", f"ready in {time.perf_counter() - begin:.2f} s: {path}")
    all_pass = all([_run_case(case, device, cold) for case in _cases()])
    print("\nall within their bounds" if all_pass else "\nNOT within its bound: see above")
    return 0 if all_pass else 1


_KERNELS = {"gemv": mxfp8_gemv, "mfma": mxfp8_mfma}


def _print_step(step: str, text: str) -> None:
    print(f"  {step:<12}{text}", flush=True)


def _cases() -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(rows, K, generator=generator) for rows in (1, N))
    cases = [Case(f"random input, M=1 N={N} K={K}", x, w)]
    if model_folder() is None:
        print(f"\nno real input: {INSTALL}")
    else:
        layer = first_feed_forward()
        m, (n, k) = layer.x.shape[0], layer.weight.shape
        title = f"real input, MiniLM's {layer.name}, M={m} N={n} K={k}"
        cases.append(Case(title, layer.x, layer.weight))
    return cases


def _run_case(case: Case, device: torch.device, cold: bool) -> bool:
    print(f"\ngemm_mxfp8: {case.title}")
    x, x_scale = rfops.quant_mxfp8(case.x)
    w, w_scale = rfops.quant_mxfp8(case.w)
    args = [tensor.to(device) for tensor in (x, w, x_scale, w_scale)]
    m, (n, k) = x.shape[0], w.shape
    arch, cu_num = routing.chip(device)
    c = OP.call_of(arch, cu_num, M=m, N=n, K=k)
    decision = OP.route(c)
    first_seconds, out = _timed(args, device)
    later_seconds, second_out = _timed(args, device)
    _print_step("route", f"{decision.backend}, by the rule {decision.rule!r}: {decision.why}")
    in_time = True
    if decision.is_hip:
        kernel = OP.kernels[decision.backend]
        config = OP.parse_config(kernel, decision.config, decision.row) or kernel.default(c)
        bound = _KERNELS[decision.backend].bind(device, kernel.defines(c, config))
        _print_kernel(bound)
        in_time = _print_build(bound, first_seconds, later_seconds, cold)
    _print_step("launch", f"first call {first_seconds:.3f} s, later call {later_seconds:.3f} s")
    is_accurate = _print_error(case, args, out)
    is_identical = bool(torch.equal(out, second_out))
    _print_step("repeat", "bitwise the same" if is_identical else "DIFFERENT from the first call")
    return in_time and is_accurate and is_identical


def _timed(args: list[torch.Tensor], device: torch.device) -> tuple[float, torch.Tensor]:
    begin = time.perf_counter()
    out = rfops.gemm_mxfp8(args[0], args[1], args[2], args[3])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin, out


def _print_kernel(bound: BoundKernel) -> None:
    meta = bound.meta
    compiler = toolchain.Toolchain(meta["toolchain"], (), meta["compiler"])  # it may be gone
    _print_step("toolchain", f"{compiler.headline} ({compiler.name})")
    kind = "virtual GPU" if bound.hip.is_virtual else "a real one"
    _print_step("device", f"{kind}, {meta['arch']}; HIP runtime {bound.hip.path}")
    variant = " ".join(f"{name}={value}" for name, value in meta["defines"].items())
    _print_step("module", f"{meta['module']} for {meta['arch']}, {variant}")
    _print_step("key", meta["key"])
    _print_step(
        "resources", ", ".join(f"{name} {value}" for name, value in bound.resources.items())
    )


def _print_build(
    bound: BoundKernel, first_seconds: float, later_seconds: float, cold: bool
) -> bool:
    meta = bound.meta
    if meta["cached"]:
        _print_step(
            "build", f"cached; finding and loading it took {first_seconds - later_seconds:.3f} s"
        )
        return not cold
    compile_, other_seconds = meta["seconds"], first_seconds - later_seconds - meta["seconds"]
    _print_step(
        "build", f"compile {compile_:.2f} s, find compiler, load, bind {other_seconds:.2f} s"
    )
    in_time = first_seconds < COLD_BAR and compile_ < COMPILE_BAR
    if cold:
        verdict = "within" if in_time else "NOT within"
        _print_step(
            "cold start", f"{verdict} {COLD_BAR:.0f} s, of which compile {COMPILE_BAR:.0f} s"
        )
    return in_time or not cold


def _print_error(case: Case, args: list[torch.Tensor], out: torch.Tensor) -> bool:
    reference = rfops.gemm_mxfp8_ref(args[0], args[1], args[2], args[3], dtype=torch.float32)
    # bf16 keeps 8 bits, rounded to nearest: half a unit in the last place is 2^-9 of the value,
    # and fp32 sums in another order add far less.
    error, bound = _relative(out, reference), 2.0**-8
    is_below = error < bound
    verdict = "below" if is_below else "NOT below"
    _print_step("error", f"{error:.1e} against the fp32 reference, {verdict} {bound:.1e}")
    exact = (case.x @ case.w.T).to(out.device)
    _print_step("", f"{_relative(out, exact):.1e} against the unquantised layer: MX-FP8's own")
    return is_below


def _relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value.float() - reference.float()).norm() / reference.float().norm())
