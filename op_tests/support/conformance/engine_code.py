"""Runs functions of vLLM and SGLang out of their wheels, without vLLM, SGLang, aiter or a GPU.

A `World` puts modules in sys.modules for an engine: the files that a case asks for are executed
statement by statement from the wheel (under the file's name and line numbers, so that a stack shows
which call site was passed), everything else of the engine is a `Stub`, and aiter is a set of empty
modules with the callees' signatures. The plugin registers in it as it does in the engine.

Nothing of an engine is changed or kept; a statement that fails over stubs is left out, and a name
that a case needs is then missing by its name.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import sys
import types
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

import torch

import rfops
from rfops.plugins import around, callees

from .sites import ALIASES, MADE_FUNCTION, Engine, Site

Words = dict[str, Any]


class _Base:
    """The base class that a stub stands for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __init_subclass__(cls, **_: Any) -> None:
        pass


class Stub:
    """Stands for a name of the engine that no case depends on: false, empty, a decorator that
    changes nothing, a base class that adds nothing."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        result = Stub(f"{self._name}.{name}")
        self.__dict__[name] = result
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_decorator = len(args) == 1 and not kwargs and not isinstance(args[0], Stub)
        if is_decorator and isinstance(args[0], types.FunctionType | type):
            return args[0]
        return Stub(f"{self._name}()")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type("Base", (_Base,), {}),)

    def __getitem__(self, item: Any) -> Stub:
        return Stub(f"{self._name}[]")

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __or__(self, other: Any) -> Stub:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"<stub {self._name}>"


class _StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        result = Stub(f"{self.__name__}.{name}")
        self.__dict__[name] = result
        return result


# ---------------------------------------------------------------- aiter, as far as it is asked for


class ActivationType(IntEnum):
    No, Silu, Gelu, Swiglu, Situv2 = -1, 0, 1, 2, 3


class QuantType(IntEnum):
    No, per_Tensor, per_Token, per_1x32, per_1x128, per_128x128 = range(6)


class GateMode:
    """Values of aiter.ops.flydsl.moe_common.GateMode."""

    SEPARATED = types.SimpleNamespace(value="separated")
    INTERLEAVE = types.SimpleNamespace(value="interleave")


# Parameters of aiter's functions (its default branch, August 2026, and num_shared_experts,
# no_combine, output and quant_dtype_a, which vLLM 0.33 and SGLang 0.5.23 ask for).
SIGNATURES = {
    "aiter.mla.mla_decode_fwd": (
        "q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q, "
        "page_size=1, nhead_kv=1, sm_scale=None, logit_cap=0.0, num_kv_splits=None, "
        "num_kv_splits_indptr=None, work_meta_data=None, work_indptr=None, work_info_set=None, "
        "reduce_indptr=None, reduce_final_map=None, reduce_partial_map=None, q_scale=None, "
        "kv_scale=None, intra_batch_mode=False, return_logits=False, return_lse=False, "
        "g_kv_indptr=None, cp_world_size=1, cp_rank=0, causal=True"
    ),
    "aiter.fused_moe.fused_moe": (
        "hidden_states, w1, w2, topk_weight, topk_ids, expert_mask=None, activation=0, "
        "quant_type=0, doweight_stage1=False, w1_scale=None, w2_scale=None, a1_scale=None, "
        "a2_scale=None, block_size_M=None, num_local_tokens=None, moe_sorting_dispatch_policy=0, "
        "dtype=None, hidden_pad=0, intermediate_pad=0, bias1=None, bias2=None, splitk=0, "
        "swiglu_limit=None, beta=None, linear_beta=None, gate_mode='separated', shared_w1=None, "
        "shared_w2=None, shared_w1_scale=None, shared_w2_scale=None, shared_expert_id=-1, "
        "stage2_scatter=None, no_combine=False, output=None, quant_dtype_a=None"
    ),
    "aiter.topk_softmax": (
        "topk_weights, topk_indices, token_expert_indices, gating_output, need_renorm, "
        "num_shared_experts=0, shared_expert_scoring_func=''"
    ),
    "aiter.ops.topk.topk_gating": (
        "topk_weights, topk_indices, gating_output, correction_bias=None, need_renorm=True, "
        "routed_scaling_factor=1.0, score_func='sqrtsoftplus', num_shared_experts=0"
    ),
    "aiter.fused_moe.fused_topk": (
        "hidden_states, gating_output, topk, renormalize, topk_ids=None, topk_weights=None"
    ),
    "aiter.biased_grouped_topk": (
        "gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_group, "
        "need_renorm, routed_scaling_factor=1.0"
    ),
    "aiter.grouped_topk": (
        "gating_output, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm, "
        "is_softmax=True, routed_scaling_factor=1.0"
    ),
    "aiter.gemm_a8w8_blockscale": (
        "XQ, WQ, x_scale, w_scale, dtype=torch.bfloat16, isBpreshuffled=False"
    ),
    "aiter.gemm_a8w8_blockscale_bpreshuffle": (
        "XQ, WQ, x_scale, w_scale, dtype=torch.bfloat16, out=None"
    ),
    "aiter.ops.triton.gemm_a8w8_blockscale.gemm_a8w8_blockscale": (
        "x, w, x_scale, w_scale, dtype=torch.bfloat16, y=None, config=None, skip_reduce=False, "
        "kernel_type='bandwidth_bound', backend=None"
    ),
    "aiter.get_hip_quant": "qType",
    "aiter.gemm_a4w4": (
        "A, B, A_scale, B_scale, bias=None, dtype=torch.bfloat16, alpha=1.0, beta=0.0, "
        "bpreshuffle=True, apreshuffle=False, global_A_scale=None, global_B_scale=None"
    ),
    "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4": (
        "x, w, x_scales, w_scales, dtype=torch.bfloat16, y=None, config=None, skip_reduce=False"
    ),
    "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle": (
        "x_fp4, w_preshuf, x_scales, w_scales, dtype=torch.bfloat16, y=None, config=None, "
        "skip_reduce=False"
    ),
    "aiter.ops.triton.quant.dynamic_mxfp4_quant": "x, scaling_mode='even'",
    "aiter.rms_norm": "input, weight, epsilon, use_model_sensitive_rmsnorm=0",
    "aiter.rmsnorm2d_fwd": "input, weight, epsilon, use_model_sensitive_rmsnorm=0",
    "aiter.ops.triton.fused_fp8_quant.fused_rms_fp8_group_quant": (
        "inp1, inp1_weight, inp1_epsilon, inp2=None, inp2_weight=None, inp2_epsilon=None, "
        "group_size=128, dtype_quant=None, res1=None, output_unquantized_inp1=False, "
        "transpose_scale=False, is_x_scale_strided=False"
    ),
    "aiter.silu_and_mul": "out, input, limit=0.0",
    "aiter.ops.triton.fusions.fused_clamp_act_mul.fused_clamp_act_mul": (
        "inp, out=None, scale=None, swiglu_limit=0, activation='silu', weights=None, "
        "dtype_quant=None, transpose_scale=False, quant_block_size=128, scale_dtype_fmt='fp32', "
        "shuffle_scale=False"
    ),
    "aiter.ops.quant.dynamic_per_token_scaled_quant": (
        "out, input, scales, scale_ub=None, shuffle_scale=False, num_rows=None, num_rows_factor=1"
    ),
    "aiter.ops.quant.dynamic_per_tensor_quant": "out, input, scale",
    "aiter.ops.quant.static_per_tensor_quant": "out, input, scale",
    "aiter.per_token_quant_hip": (
        "x, scale=None, quant_dtype=torch.int8, num_rows=None, num_rows_factor=1"
    ),
    "vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd": (
        "q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, num_kv_splits, "
        "sm_scale, page_size=1, logit_cap=0.0, k_scale=None, v_scale=None, is_mla=False"
    ),
    "vllm.model_executor.layers.fused_moe.moe_align_block_size.moe_align_block_size": (
        "topk_ids, block_size, num_experts, expert_map=None, pad_sorted_ids=False, "
        "ignore_invalid_experts=False, *, return_scatter_idx=False"
    ),
}
QUANTISERS = {
    QuantType.per_1x128: (
        "x, scale=None, quant_dtype=torch.int8, group_size=128, transpose_scale=False, "
        "num_rows=None, num_rows_factor=1, scale_type=torch.float32"
    ),
    QuantType.per_1x32: (
        "x, scale=None, quant_dtype=torch.float4_e2m1fn_x2, shuffle=False, num_rows=None, "
        "num_rows_factor=1, scale_type=None"
    ),
    QuantType.per_Token: (
        "x, scale=None, quant_dtype=torch.int8, num_rows=None, num_rows_factor=1"
    ),
    QuantType.per_Tensor: (
        "x, scale=None, quant_dtype=torch.int8, num_rows=None, num_rows_factor=1"
    ),
}


class ToTheOriginal(Exception):
    """A call that rfops left to the function that it wraps."""


def _original(target: str, signature: str) -> Callable[..., Any]:
    """A function with the callee's parameters, which ends the replay."""
    space: Words = {"torch": torch, "ToTheOriginal": ToTheOriginal}
    name = target.rpartition(".")[2].removesuffix("()")
    exec(f"def {name}({signature}): raise ToTheOriginal({target!r})", space)
    result: Callable[..., Any] = space[name]
    return result


# ---------------------------------------------------------------- calls that are seen


@dataclass
class Seen:
    """A call of a callee in a replay."""

    target: str
    sites: list[Site]
    engaged: bool = False
    why: str = ""


@dataclass
class World:
    """An engine's modules with the plugin in them. `settings` are values of the engine's names."""

    engine: Engine
    archive: zipfile.ZipFile
    arch: str
    prepare: Callable[[World], None]
    seen: list[Seen] = field(default_factory=list)
    covered: set[Site] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lines: dict[str, list[Site]] = {}
        for site in self.engine.sites:
            self._lines.setdefault(site.place, []).append(site)
        self._real: set[str] = set()
        self._settings: dict[str, Any] = {}
        self._finder = _Finder(self)
        self._libraries: list[Any] = []

    # ---- modules

    def load(self, module: str, **settings: Any) -> Any:
        """The module of the wheel, executed; `settings` go before its names are assigned."""
        for name, value in settings.items():
            self._settings[f"{module}.{name}"] = value
        if module not in self._real:
            self._real.add(module)
            sys.modules.pop(module, None)
        loaded = importlib.import_module(module)
        loaded.__dict__.update(settings)
        return loaded

    def stub(self, module: str) -> Any:
        """The module of the engine that a case gives values to."""
        return importlib.import_module(module)

    def source(self, module: str) -> tuple[str, str]:
        """File in the wheel and text of a module."""
        base = module.replace(".", "/")
        names = set(self.archive.namelist())
        position = next(p for p in (f"{base}.py", f"{base}/__init__.py") if p in names)
        return position, self.archive.read(position).decode()

    def execute(self, module: types.ModuleType) -> None:
        """Each statement of the module's file; one that fails over stubs is left out."""
        position, text = self.source(module.__name__)
        module.__file__ = self.file(position)
        module_names = {
            k.rpartition(".")[2]: v
            for k, v in self._settings.items()
            if k.rpartition(".")[0] == module.__name__
        }
        future = "from __future__ import annotations\n" if "import annotations" in text else ""
        flags = compile(future, "", "exec").co_flags & 0x1000000 if future else 0
        module.left_out = []  # type: ignore[attr-defined]
        for statement in ast.parse(text).body:
            tree = ast.Module([statement], [])
            try:
                exec(compile(tree, module.__file__, "exec", flags=flags), module.__dict__)
            except Exception as error:
                module.left_out.append((statement.lineno, error))  # type: ignore[attr-defined]
            module.__dict__.update({k: v for k, v in module_names.items() if k in module.__dict__})
        module.__dict__.update(module_names)

    def file(self, position: str) -> str:
        return f"/{self.engine.name}.whl/{position}"

    # ---- calls

    def passed(self) -> list[Site]:
        """The sites of the engine that are on the stack."""
        results, frame = [], sys._getframe(1)
        while frame is not None:
            position = frame.f_code.co_filename.removeprefix(f"/{self.engine.name}.whl/")
            for site in self._lines.get(position, ()):
                if site.line <= frame.f_lineno <= site.end:
                    results.append(site)
            frame = frame.f_back  # type: ignore[assignment]
        return results

    def sites(self, function: str, target: str) -> list[Site]:
        """The sites in functions whose name starts so, of callees whose name ends so."""
        results = [
            s
            for s in self.engine.sites
            if s.function.startswith(function) and s.target.endswith(target)
        ]
        assert results, f"no site of {target} in {function}"
        return [site for site in results if site.form not in ("use", "probe")]

    def site(self, function: str, target: str) -> Site:
        (site,) = self.sites(function, target)
        return site

    def covers(self, function: str, target: str) -> None:
        """Note the uses in a function that a case looks at and that are no call."""
        for site in self.engine.sites:
            if site.function.startswith(function) and site.target.endswith(target):
                self.covered.add(site)

    def node(self, site: Site) -> ast.Call:
        """The site's call expression: of those on its lines, that with its number of arguments by
        position."""
        count = site.form.partition(" + ")[0]
        calls = (
            n for n in ast.walk(ast.parse(self.source_of(site.place))) if isinstance(n, ast.Call)
        )
        (node,) = (
            n
            for n in calls
            if n.lineno == site.line
            and n.end_lineno == site.end
            and (not count.isdigit() or len(n.args) == int(count))
        )
        return node

    def call(
        self, site: Site, callee: Callable[..., Any], *values: Any, names: Words | None = None
    ) -> Any:
        """The site's call expression, with its own mix of positions and names, of other values:
        those by position in their order, those by keyword from `names`."""
        node = self.node(site)
        space: Words = {"callee": callee, **{f"value{i}": v for i, v in enumerate(values)}}

        def named(name: str, position: ast.expr) -> ast.expr:
            return ast.copy_location(ast.Name(name, ast.Load()), position)

        node.func = named("callee", node.func)
        node.args = [named(f"value{i}", a) for i, a in enumerate(node.args)]
        for keyword in node.keywords:
            space[f"of_{keyword.arg}"] = (names or {})[keyword.arg or ""]
            keyword.value = named(f"of_{keyword.arg}", keyword.value)
        return eval(compile(ast.Expression(node), self.file(site.place), "eval"), space)

    def source_of(self, position: str) -> str:
        return self.archive.read(position).decode()

    def watch(self, callee: around.Callee, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """The wrapper, whose calls are noted with the sites that they come from."""

        @functools.wraps(wrapped)
        def watched(*args: Any, **kwargs: Any) -> Any:
            note = Seen(callee.target, self.passed())
            self.seen.append(note)
            engaged, declined = callee.engaged, callee.left.copy()
            try:
                return wrapped(*args, **kwargs)
            finally:
                note.engaged = callee.engaged > engaged
                note.why = "; ".join(callee.left - declined)

        return watched

    def watch_maker(self, callee: around.Callee, wrapped: Callable[..., Any]) -> Any:
        @functools.wraps(wrapped)
        def make(kind: Any) -> Any:
            self.seen.append(Seen(callee.target, self.passed(), True))
            result = wrapped(kind)
            note = functools.partial(self.watch, callee)
            return note(result) if kind == QuantType.per_1x128 else self._note_unserved(result)

        return make

    def _note_unserved(self, result: Callable[..., Any]) -> Callable[..., Any]:
        """A quantiser that the plugin has no op for: the original's, seen too."""

        @functools.wraps(result)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.seen.append(Seen(MADE_FUNCTION, self.passed(), False, "another quantiser"))
            return result(*args, **kwargs)

        return call

    # ---- the whole

    @contextlib.contextmanager
    def running(self) -> Iterator[World]:
        previous = set(sys.modules)
        hip, tell = torch.version.hip, around.tell_at_exit
        around.tell_at_exit = lambda: None
        sys.meta_path.insert(0, self._finder)
        torch.version.hip = "7.2"
        try:
            self._make_aiter()
            self._register()
            self.prepare(self)
            yield self
        finally:
            torch.version.hip, around.tell_at_exit = hip, tell
            sys.meta_path.remove(self._finder)
            for name in set(sys.modules) - previous:
                is_own = name.startswith("rfops.plugins.vllm_")
                if is_own or name.partition(".")[0] in _Finder.roots:
                    module = sys.modules.pop(name)
                    _forget(vars(module).values() if is_own else ())
            for library in self._libraries:
                library._destroy()
            _forget((*callees.AITER, *callees.VLLM))

    def _make_aiter(self) -> None:
        aiter = importlib.import_module("aiter")
        fp8 = torch.float8_e4m3fn if self.arch == "gfx950" else torch.float8_e4m3fnuz
        aiter.ActivationType, aiter.QuantType = ActivationType, QuantType
        aiter.dtypes = types.SimpleNamespace(
            fp8=fp8,
            bf16=torch.bfloat16,
            fp16=torch.float16,
            fp32=torch.float32,
            i32=torch.int32,
            fp4x2=torch.float4_e2m1fn_x2,
            fp8_e8m0=torch.float8_e8m0fnu,
        )
        importlib.import_module("aiter.ops.flydsl.moe_common").GateMode = GateMode
        shuffle = importlib.import_module("aiter.ops.shuffle")
        shuffle.shuffle_weight = aiter.shuffle_weight = shuffle_weight
        aiter.per_1x32_f4_quant_hip = per_1x32_f4_quant_hip
        importlib.import_module("aiter.utility.fp4_utils").e8m0_shuffle = e8m0_shuffle
        result = {
            kind: _original(MADE_FUNCTION, signature) for kind, signature in QUANTISERS.items()
        }
        group = result[QuantType.per_1x128]
        result[QuantType.per_1x128] = functools.partial(group, group_size=128)
        for target, signature in SIGNATURES.items():
            if target.partition(".")[0] in ("aiter", self.engine.name):
                module, _, name = target.rpartition(".")
                function = _original(target, signature)
                if target == "aiter.get_hip_quant":
                    function = types.FunctionType(
                        (lambda qType: result[qType]).__code__,
                        {},
                        "get_hip_quant",
                        None,
                        (types.CellType(result),),
                    )
                setattr(importlib.import_module(module), name, function)
        for name, target in ALIASES.items():
            module, _, leaf = name.rpartition(".")
            setattr(importlib.import_module(module), leaf, _find_target(target))

    def _register(self) -> None:
        """The plugin's own registration, and a watch around each of its wrappers."""
        getattr(self, f"_register_in_{self.engine.name}")()
        for callee in (*callees.AITER, *callees.VLLM):
            if callee.target.partition(".")[0] not in ("aiter", self.engine.name):
                continue
            aliases = (name for name, target in ALIASES.items() if target == callee.target)
            for name in (callee.target, *aliases):
                module, _, leaf = name.rpartition(".")
                wrapped = getattr(sys.modules[module], leaf)
                is_maker = isinstance(callee, around.Maker)
                watch = self.watch_maker if is_maker else self.watch
                setattr(sys.modules[module], leaf, watch(callee, wrapped))

    def _register_in_vllm(self) -> None:
        from rfops.plugins import vllm

        importlib.import_module("vllm.utils.torch_utils").direct_register_custom_op = self.custom_op
        vllm.register()

    def _register_in_sglang(self) -> None:
        from rfops.plugins import sglang

        registry = self.load("sglang.srt.plugins.hook_registry")
        importlib.import_module("sglang.srt.utils").direct_register_custom_op = self.custom_op
        utils = importlib.import_module("sglang.srt.utils.custom_op")
        utils.direct_register_custom_op = self.custom_op
        sglang.register()
        registry.HookRegistry.apply_hooks()

    def custom_op(
        self,
        op_name: str,
        op_func: Callable[..., Any],
        mutates_args: Sequence[str] = (),
        fake_impl: Any = None,
        **_: Any,
    ) -> None:
        """What both engines' direct_register_custom_op does, with torch.library."""
        schema = torch.library.infer_schema(op_func, mutates_args=list(mutates_args or ()))
        library = torch.library.Library(self.engine.name, "FRAGMENT")
        library.define(op_name + schema)
        library.impl(op_name, op_func, "CompositeExplicitAutograd")
        self._libraries.append(library)


def _forget(values: Iterable[Any]) -> None:
    """What the callees among them counted and remember of a world."""
    for callee in values:
        if isinstance(callee, around.Callee):
            callee.engaged = 0
            callee.left.clear()
            callee.answers.clear()


def _find_target(target: str) -> Any:
    module, _, name = target.rpartition(".")
    return getattr(sys.modules[module], name)


class _Finder(MetaPathFinder, Loader):
    """Finds every module of the engines, aiter and what they import from their vendors."""

    roots = ("vllm", "sglang", "aiter", "mori", "sgl_kernel")

    def __init__(self, world: World) -> None:
        self.world = world

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        root = name.partition(".")[0]
        if root not in self.roots:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        if spec.name in self.world._real:
            return types.ModuleType(spec.name)
        if spec.name.partition(".")[0] == "aiter":
            return types.ModuleType(spec.name)
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ in self.world._real:
            self.world.execute(module)
            return
        for name, value in self.world._settings.items():
            owner, _, leaf = name.rpartition(".")
            if owner == module.__name__:
                setattr(module, leaf, value)


# ---------------------------------------------------------------- aiter's helpers, by rfops


def shuffle_weight(x: torch.Tensor, layout: Any = (16, 16), **_: Any) -> torch.Tensor:
    """aiter's: the data in the layout, and the mark by which aiter's kernels know it."""
    shuffled: torch.Tensor = rfops.shuffle_weight(x).data.view(x.dtype)
    shuffled.is_shuffled = True  # type: ignore[attr-defined]
    return shuffled


def e8m0_shuffle(scale: torch.Tensor) -> torch.Tensor:
    shuffled: torch.Tensor = rfops.shuffle_scale(scale).data
    return shuffled


def per_1x32_f4_quant_hip(
    x: torch.Tensor, scale: Any = None, quant_dtype: Any = None, shuffle: bool = False, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """aiter's HIP quantiser: packed e2m1 and e8m0, the scales shuffled on request, rows padded."""
    payload, scales = rfops.quant_mxfp4(x)
    if shuffle:
        scales = rfops.shuffle_scale(scales).data
    return payload.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)
