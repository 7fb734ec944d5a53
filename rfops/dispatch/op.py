r"""An op, declared once. What follows from its declaration is derived here: the checks and their
messages, plans and families of plans, results, the torch ops, the route, `supports`.

    OP = Op("scale", "x: f32[N]\n-> out: f32[N]", kernels=(Hip(), Torch()))

    def scale(x, out=None):
        call = OP.traced if is_dynamo_compiling() else OP.call
        return call(x, out)

A call goes from its plan to the launch. Without a plan: checks, then the route, whose kernel makes
the launch of these sizes and of others like them (a family, see rfops.jit.Plans).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch import routing, tuned_table
from rfops.dispatch.guards import Guard, kind_of
from rfops.dispatch.registration import must_dispatch
from rfops.dispatch.routing import Decision, KernelSelector
from rfops.dispatch.tuned_table import Row
from rfops.jit import Plans, UnsupportedArch
from rfops.jit.arch import ARCH_SPECS
from rfops.jit.errors import show
from rfops.later import import_ops
from rfops.public import MODULES

from .checks import flat
from .declare import Declaration, ValueArg, fp8_of
from .dynamic_plan import DynamicShapePlan
from .first_run import first_run
from .hooks import Hooks
from .kernel import Call, Kernel, Run
from .time_model import TimedKernel, TimeModel
from .torch_op import fake_results, forget_compiled, register_op, tell_caches
from .view import views_of

_OPS: dict[str, Op] = {}
_DECLARED: dict[str, weakref.WeakSet[Op]] = {}  # with the earlier ones that a caller still has
_SHIPPED = {name: f"rfops.{module}" for module, names in MODULES.items() for name in names}


def ops() -> Mapping[str, Op]:
    """Every op by name: rfops' own, and those declared elsewhere so far."""
    import_ops()
    return _OPS


def _declaring_module() -> str:
    """The module that makes an Op, past the `__init__` of subclasses."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__init__" and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", frame.f_code.co_filename))


def _check_torch_names(name: str, has_out: bool) -> None:
    """Refuse an op that would take another op's place in torch. Raises ValueError."""
    base = _OPS.get(name.removesuffix("_out")) if name.endswith("_out") else None
    taken = ""
    if name == "no_gradient":
        taken = "no_gradient is rfops' own"
    elif base is not None and base.num_passed:
        taken = f"{name} is op {base.name} with its results passed"
    elif has_out and f"{name}_out" in _OPS:
        taken = f"{name}_out is another op"
    if taken:
        expected = "expected a name that torch.ops.rfops does not have"
        raise ValueError(f"op {name}: {expected}, and {taken}; take another")


def modules() -> dict[str, Path]:
    """The modules of all ops: the config file that has each."""
    return {name: file for op in ops().values() for name, file in op.modules.items()}


class Op(Hooks):
    """One op. Subclasses override what a declaration cannot say (hooks.py).

    Parameters
    ----------
    name : as `rfops.<name>` and `torch.ops.rfops.<name>`. Declared again by the same module (a
        reload, a notebook's cell), the op replaces the earlier one.
    text : the arguments (declare.py).
    sizes : the order of the sizes where it is not that of their first use.
    kernels : in the order in which they are tried: HIP's, Triton's, torch's.
    positive : sizes that must not be 0 though an empty result may be.
    coarse : which calls of changing sizes share a decision: a size counts in coarse steps of so
        many (heuristic.coarse), with 0 not at all, and exactly where it is not named. `order` and
        a kernel's `default` must not tell sizes of one step apart; what a kernel refuses is asked
        for each shape.
    hints : the way out that a refusal of this argument or size names.
    max_bytes : of each tensor; None where a kernel takes any.
    table : what a tuned row is found by: sizes, values, and optional tensors, which count as 0
        or 1, each with a rule (tuned_table.py). Empty: the op has no table.
    usual : values that `rfops why` and the like assume.
    result : makes the returned value of several results, as a NamedTuple's class.
    time_model : the class that predicts its kernels' times (time_model.py), where it has one.
    reference : the plain fp32 formula on the inputs by position; may be set later.
    shapes : sets of sizes and values for `rfops bench` and `tune`, by name, the published one first
        (problem.grid writes them).
    """

    def __init__(
        self,
        name: str,
        text: str,
        *,
        kernels: Sequence[Kernel],
        sizes: str = "",
        positive: str = "",
        coarse: Mapping[str, int] | None = None,
        hints: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
        table: str = "",
        time_model: type[TimeModel] | None = None,
        usual: Mapping[str, Any] | None = None,
        result: Callable[..., Any] | None = None,
        reference: Callable[..., Any] | None = None,
        shapes: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    ) -> None:
        self.declared_in = _declaring_module()
        other = _OPS.get(name)
        owner = other.declared_in if other is not None else _SHIPPED.get(name, self.declared_in)
        if owner != self.declared_in:
            raise ValueError(
                f"op {name}: expected a name that no other module declares, and {owner} has it;"
                f" {self.declared_in} must take another"
            )
        try:
            d = Declaration.parse(text, sizes)
        except ValueError as error:
            raise ValueError(f"op {name}: {error}") from None
        _check_torch_names(name, bool(d.passed))
        super().__init__(name, d, positive, hints, max_bytes)
        self.kernels = {kernel.name: self._prepare_kernel(kernel) for kernel in kernels}
        for size in coarse or ():
            if size not in d.sizes:
                raise ValueError(f"op {name}: coarse: {size!r} is no size of it: {d.sizes}")
        self.coarse_at = [(d.sizes.index(size), step) for size, step in (coarse or {}).items()]
        self.shares_decisions = coarse is not None
        tunable = tuple(k.name for k in kernels if k.Config is not None or k.is_ranked)
        self.tuned = tuned_table.declare(name, table, tunable) if table else None
        self.table = self.tuned.names if self.tuned else ()
        of_table = [name in d.sizes for name in self.table]
        assert of_table == sorted(of_table, reverse=True), f"{name}: a table's sizes come first"
        self.time_model = time_model(name) if time_model else None
        if self.time_model:
            self.time_model.set_kernels(
                [k for k in self.kernels.values() if isinstance(k, TimedKernel)]
            )
        self.usual = dict(usual or {})
        self.result, self.reference, self.shapes = result, reference, dict(shapes or {})
        # The sums of |products| by which results are checked, of the inputs as they are; None: the
        # reference of absolute inputs.
        self.sums: Callable[..., Any] | None = None
        self.takes_config = any(kernel.Config for kernel in kernels)
        self.num_inputs, self.num_passed = len(d.inputs), len(d.passed)
        # What a launch takes.
        self._tensors_at = tuple(i for i, arg in self._tensors if not arg.ignored)
        self.plans = Plans(out=d.written, sizes=" ".join(d.sizes), shapes=d.patterns)
        self.makes_one = len(d.results) == 1 and not result
        kind = type(self)
        # Then a shape that shares a decision needs no Call of its own.
        self.has_plain_plans = (
            kind.finish_run is Op.finish_run
            and kind.result_sizes is Op.result_sizes
            and self.makes_one
            and not d.results[0].leads
            and all(e.factor == 1 and e.size in d.sizes for e in d.results[0].extents)
        )
        self._op, self._op_out = register_op(self)
        if not self.declared_in.startswith("rfops."):
            tell_caches(name, repr(d.results))
        if other is not None and repr(other.declaration.results) != repr(d.results):
            forget_compiled()
        declared = _DECLARED.setdefault(name, weakref.WeakSet())
        for earlier in declared:
            if (earlier._op, earlier._op_out) != (self._op, self._op_out):
                earlier._op = earlier._op_out = earlier._refuse_torch
        declared.add(self)
        _OPS[name] = self

    def _refuse_torch(self, *args: Any) -> NoReturn:
        raise RuntimeError(
            f"{self.name}: was declared again with other arguments, which torch has alone; call the"
            " new function"
        )

    def _prepare_kernel(self, kernel: Kernel) -> Kernel:
        """The kernel, which knows what a launch of this op takes; a copy where it is also another
        op's. Without a result a launch's first argument is nothing: "_"."""
        d = self.declaration
        results = [arg.name for arg in d.results] or ["_"]
        arguments = (*results, *[arg.name for arg in d.tensors if not arg.ignored])
        if kernel.arguments not in ((), arguments) or hasattr(kernel, "time_model"):
            kernel = copy.copy(kernel)
        kernel.arguments = arguments
        return kernel

    @functools.cached_property
    def modules(self) -> dict[str, Path]:
        """The modules of its kernels: the config file that has each."""
        pairs = ((m, k) for k in self.kernels.values() for m in (k.module, *k.more_modules))
        return {module: kernel.compiler_config for module, kernel in pairs if module}

    # ------------------------------------------------------------ the call

    _plans: Plans | None = None
    call: Callable[..., Any]
    """The op on its parameters by position: inputs, results or None, config. Native where the
    launcher is; torch.compile, which traces Python, takes `traced`."""

    def traced(self, *args: Any) -> Any:
        """Dispatch a call without plans, as torch.compile traces it; arguments as of `call`."""
        return self._dispatch(self._typed_values(args))

    @property
    def plans(self) -> Plans:
        """The plans of the op's calls; setting them makes `call` use them."""
        assert self._plans is not None
        return self._plans

    @plans.setter
    def plans(self, plans: Plans) -> None:
        if self._plans is not None:
            self._plans.stop_serving()
        self._plans = plans
        tensor_indices = self._tensors_at, self.num_inputs, self.num_passed
        plans.serve(self._set_call, self._miss, *tensor_indices)

    def _set_call(self, call: Callable[..., Any]) -> None:
        self.call = call

    def _miss(self, *args: Any) -> Any:
        """A call without a plan."""
        args = self._typed_values(args)
        tensors = flat({arg.name: args[i] for i, arg in self._tensors})
        passed = args[self.num_inputs : self.num_inputs + self.num_passed]
        if must_dispatch(*[tensor for _, tensor in tensors], *passed) and self._is_typed(args):
            return self._dispatch(args)
        return self.plans.finish(self._add_plan(args), args)

    def _add_plan(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        c, config = self.check(args)
        if self.is_empty(c):
            plan = self.plan_of(c, self.run_empty(c))
        else:
            family = DynamicShapePlan(self, c, config)
            first_plan = family(*[c.sizes[name] for name in self.declaration.sizes])
            assert first_plan is not None, "the checks have looked at the sizes"
            plan = first_plan
            self.plans.add_family(family, *args)
        self.plans.add(plan, *args)
        return plan

    def plan_of(self, c: Call, run: Run) -> tuple[Any, ...]:
        """(run, make): `make` fills in the results that are None; (run, dtype, device, *sizes) of
        one result, which is made without Python."""
        run, result_specs, device = self.finish_run(c, run), self.result_specs(c), c.device
        if self.makes_one:
            ((shape, dtype),) = result_specs
            return run, dtype, device, *shape
        return run, lambda *passed: self._collected(_filled(result_specs, device, passed))

    def make_results(self, c: Call, device: torch.device | str | None = None) -> list[torch.Tensor]:
        """New ones, without a value."""
        return list(_filled(self.result_specs(c), device or c.device))

    # ------------------------------------------------------------ the checks

    def check(self, args: tuple[Any, ...]) -> tuple[Call, Any]:
        """Every check that the declaration asks for. Raises ValueError."""
        d = self.declaration
        inputs = dict(zip((arg.name for arg in d.inputs), args, strict=False))
        passed = dict(zip((a.name for a in d.passed), args[self.num_inputs :], strict=False))
        config = args[-1] if self.takes_config else None
        guard = Guard(self.name, max_bytes=self.max_bytes)
        for arg in d.values:
            if arg.size:
                guard.sizes[arg.size] = guard.sizes[arg.name] = inputs[arg.name]
        for tensor_arg in d.tensors:
            self._check_arg(guard, tensor_arg, inputs[tensor_arg.name])
        values = {arg.name: inputs[arg.name] for arg in d.values}
        tensors = {arg.name: inputs[arg.name] for arg in d.tensors}
        values |= {f"{n}_dtype": t.dtype for n, t in flat(tensors) if "[" not in n}
        sizes = {name: guard.sizes[name] for name in d.sizes}
        self._bind_parts(guard, *d.results)
        assert guard.device is not None
        for result in d.passed:  # a check of sizes may look at its strides
            self._check_kind(guard, result, passed[result.name])
        arch, cu_num = routing.chip(guard.device)
        views = views_of({**tensors, **passed})
        c = Call(arch, cu_num, guard.device, sizes, values, views)
        self._check_fit(c)
        guard.sizes |= self.result_sizes(c)
        for result in d.passed:
            if passed[result.name] is not None:
                dtypes = (self.dtype_of(result, c),)
                self._check_tensor(guard, result, passed[result.name], dtypes)
        if config is not None:
            self.kernel_of(config)
        self._check_layouts(tensors, passed)
        return c, config

    def check_sizes(self, c: Call) -> None:
        super().check_sizes(c)
        self._check_fit(c)

    def _check_fit(self, c: Call) -> None:
        refusal = self.unsupported_reason(c, *c.sizes.values())
        if refusal is not None:
            self.fail(*refusal)

    # ------------------------------------------------------------ the route

    @functools.cached_property
    def asked(self) -> tuple[str, ...]:
        """The sizes that a call of sizes alone must name; `assume` has the others."""
        names = self.declaration.sizes
        values = {arg.name: _usual(arg) for arg in self.declaration.values} | self.usual
        assumed: dict[str, int] = dict.fromkeys(names, 1)
        for name in names:
            probe = {size: 1 for size in names if size != name}
            with contextlib.suppress(KeyError):
                self.assume(probe, values)
                if name in probe:
                    del assumed[name]
        return tuple(assumed)

    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **arguments: Any) -> Call:
        """A call of sizes alone: sizes by their names, M=4, and values by theirs; "fp8" is the
        chip's own. An optional tensor counts as given where its name is true."""
        d = self.declaration
        arguments = self.usual | arguments
        arguments = {
            name: fp8_of(arch) if value == "fp8" else value for name, value in arguments.items()
        }
        sizes = {name: int(arguments.pop(name)) for name in d.sizes if name in arguments}
        values = {arg.name: _usual(arg) for arg in d.values if not arg.size}
        values |= {f"{arg.name}_dtype": arg.dtypes[0] for arg in d.tensors if arg.dtypes}
        values |= arguments
        self.assume(sizes, values)
        sizes = {name: sizes[name] for name in d.sizes}
        values |= {arg.name: sizes[arg.size] for arg in d.values if arg.size}
        units = cu_num or ARCH_SPECS.get(arch, ARCH_SPECS["sm_90"]).cus
        return Call(arch, units, torch.device("cpu"), sizes, values, {})

    def kernel_of(self, config: Any) -> Kernel:
        """The kernel that a config is a variant of. Raises ValueError."""
        for kernel in self.kernels.values():
            if kernel.Config is not None and isinstance(config, kernel.Config):
                return kernel
        kinds = ", ".join(k.Config.__name__ for k in self.kernels.values() if k.Config is not None)
        self.fail("config", f"one of {kinds}", show(config), "pass one of these")
        raise AssertionError

    def route(self, c: Call, router: KernelSelector | None = None) -> Decision:
        """The kernel that a call gets, and why. Raises ConfigError, ValueError."""
        if self.tuned is None:
            refused = {name: k.unsupported_reason(c) for name, k in self.kernels.items()}
            winner = next((name for name, reason in refused.items() if reason is None), "none")
            self._must_have(winner, c)
            reasons = {n: r or f"{winner} comes first" for n, r in refused.items() if n != winner}
            return Decision(
                winner, "first", words=lambda: ("the first that takes the call", reasons)
            )
        router = router or KernelSelector(self.tuned, c.arch, c.cu_num)

        def unsupported_reason(name: str, row: Row | None) -> str | None:
            kernel = self.kernels[name]
            reason = kernel.unsupported_reason(c)
            if reason is None and row is not None:
                config = self.parse_config(kernel, row.config, row)
                if row.config:
                    reason = kernel.unsupported_config_reason(c, config)
                reason = reason or self._slower_reason(c, kernel, row, config)
            return reason

        order = self.order(c)
        unlisted = [name for name in self.kernels if name not in order]
        decision = router.choose(self.table_sizes(c), order, unlisted, unsupported_reason)
        self._must_have(decision.backend, c)
        return decision

    def _slower_reason(self, c: Call, kernel: Kernel, row: Row, config: Any) -> str | None:
        """Why an estimated row of a shape near the call's is passed over: its variant is predicted
        to lose more to the choice without it than at its own shape. Rows that were measured, the
        user's and those of the very shape hold whatever is predicted."""
        model, tuned = self.time_model, self.tuned
        if model is None or not isinstance(kernel, TimedKernel) or tuned is None:
            return None
        is_exact = tuned.is_exact(row.sizes, self.table_sizes(c))
        if row.is_own or row.origin != "estimated" or is_exact:
            return None
        ratio = model.ratio(c, kernel, config)
        if ratio <= min(model.max_row_ratio, model.max_row_rise):
            return None
        row_ratio = model.ratio(model.resized(c, self._sizes_near(row)), kernel, config)
        if ratio <= min(model.max_row_ratio, model.max_row_rise * max(row_ratio, 1.0)):
            return None
        return (
            f"predicted to take {ratio:.2f} times as long as the choice without a row, "
            f"{row_ratio:.2f} times at the row's own shape"
        )

    def _sizes_near(self, row: Row) -> dict[str, int]:
        """The sizes of a row in which a call may differ from it."""
        assert self.tuned is not None, "it is a row of the op's table"
        triples = zip(self.table, self.tuned.rules, row.sizes, strict=True)
        return {name: size for name, rule, size in triples if rule in ("+", "~") and size}

    def _must_have(self, backend: str, c: Call) -> None:
        if backend not in self.kernels:
            reasons = "; ".join(f"{n}: {k.unsupported_reason(c)}" for n, k in self.kernels.items())
            raise ValueError(f"{self.name}: no kernel takes {c} on {c.arch}: {reasons}")

    def decide(
        self, c: Call, router: KernelSelector | None, config: Any
    ) -> tuple[Kernel, str, Any]:
        """Kernel, rule and variant of a call; of the route, or of the caller's config."""
        if config is None:
            decision = self.route(c, router)
            routing.say(lambda: f"{self.name} {c} on {c.arch}", decision)
            kernel = self.kernels[decision.backend]
            config = self.parse_config(kernel, decision.config, decision.row)
            return kernel, decision.rule, kernel.default(c) if config is None else config
        kernel = self.kernel_of(config)
        reason = kernel.unsupported_reason(c) or kernel.unsupported_config_reason(c, config)
        if reason:
            expected = f"of a kernel that takes {c} on {c.arch}"
            self.fail("config", expected, f"{config}, and {reason}", "pass another or none")
        return kernel, "the caller's config", config

    def parse_config(self, kernel: Kernel, text: str, row: Any = None) -> Any:
        """A kernel's variant from its text in a table; None for its default. Raises ConfigError."""
        if not text:
            return None
        if kernel.Config is None:
            routing.refuse_config(kernel.name, text, row)
        return routing.parse_config(kernel.Config, text, row)

    def prepare(self, backend: str, c: Call, config: Any = None) -> Run:
        """The launch of one call by a kernel; without a config by its default."""
        kernel = self.kernels[backend]
        reason = kernel.unsupported_reason(c) or (
            config is not None and kernel.unsupported_config_reason(c, config)
        )
        if reason:
            raise ValueError(f"{self.name}: {backend} does not take {c} on {c.arch}: {reason}")
        run_of = kernel.variant(c, kernel.default(c) if config is None else config)
        return first_run(self, kernel, run_of, tuple(c.sizes.values()))

    def supports(
        self,
        *,
        arch: str,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        backend: str | None = None,
        **values: Any,
    ) -> bool:
        """Whether the op gives a result on `arch` (gfx942, gfx950, sm_90, ...); with `backend`,
        whether that kernel does.

        `dtype` is the result's where that can be chosen, else the first tensor's; `shape` the sizes
        in the order that `rfops why` asks for them; `values` the other arguments, as block_m=16 or
        w_dtype=torch.uint8.
        """
        if backend is not None and backend not in self.kernels:
            expected = f"backend must be one of {', '.join(self.kernels)}"
            raise ValueError(f"{self.name}.supports: {expected}, got {backend!r}")
        d = self.declaration
        first_tensor = d.tensors[0]
        if dtype is not None:
            values[d.results[0].dtype_of or f"{first_tensor.name}_dtype"] = dtype
        sizes = shape or [self._multiple_of(size) for size in self.asked]
        dtypes_of = {f"{arg.name}_dtype": arg.dtypes for arg in d.tensors}
        if any(values[name] not in dtypes for name, dtypes in dtypes_of.items() if name in values):
            return False
        if not arch.startswith(("gfx", "sm_")):
            return False
        try:
            self.check_values(**{a.name: values[a.name] for a in d.values if a.name in values})
            c = self.call_of(arch, **dict(zip(self.asked, sizes, strict=True)), **values)
            self.check_sizes(c)
        except (ValueError, UnsupportedArch):
            return False
        kernels = self.kernels.values() if backend is None else (self.kernels[backend],)
        return any(kernel.unsupported_reason(c) is None for kernel in kernels)

    # ------------------------------------------------------------ torch.ops.rfops

    def _is_typed(self, args: tuple[Any, ...]) -> bool:
        """Whether all arguments that should be tensors are, and kernels can read their memory; the
        checks refuse any other."""
        tensors = [(args[i], arg.optional, arg.times is not None) for i, arg in self._tensors]
        passed = args[self.num_inputs : self.num_inputs + self.num_passed]
        return all(
            (value is None and optional)
            or (_all_plain(value) if is_table else _all_plain((value,)))
            for value, optional, is_table in [*tensors, *((out, True, False) for out in passed)]
        )

    def _dispatch(self, args: tuple[Any, ...]) -> Any:
        """The call as torch's op."""
        if not self._is_typed(args):
            return self.check(args)  # raises
        inputs = args[: self.num_inputs]
        passed = args[self.num_inputs : self.num_inputs + self.num_passed]
        if self.takes_config:
            inputs = (*inputs, self.config_text(args[-1]))
        if all(out is None for out in passed):
            results = self._op(*inputs)
            return self._collected(results) if isinstance(results, tuple) else results
        if any(out is None for out in passed):
            # of real tensors: real ones, for what is not given
            results = fake_results(self, inputs)
            results = results if isinstance(results, tuple) else (results,)
            passed = tuple(m if p is None else p for m, p in zip(results, passed, strict=True))
        self._op_out(*inputs, *passed)
        return passed[0] if len(passed) == 1 else self._collected(passed)

    def _collected(self, results: tuple[torch.Tensor, ...]) -> Any:
        """What a call of any but one result returns."""
        if self.result:
            return self.result(*results)
        return results if len(results) > 1 else results[0] if results else None

    def config_text(self, config: Any) -> str:
        """Return a config as tuned tables write it, with its kernel: "stream m_tiles=2"; empty for
        None."""
        if config is None:
            return ""
        return f"{self.kernel_of(config).name} {routing.config_text(config)}"

    def config_of(self, text: str) -> Any:
        """A config from its text, as torch's ops take it. Raises ValueError."""
        kinds = tuple((k.name, k.Config) for k in self.kernels.values() if k.Config is not None)
        return routing.given_config(self.name, kinds, text)


def _filled(
    result_specs: Sequence[tuple[Sequence[int], torch.dtype]],
    device: torch.device | str,
    passed: Sequence[torch.Tensor | None] = (),
) -> tuple[torch.Tensor, ...]:
    """The results of these forms: those that are passed, else new ones without a value."""
    results = passed or (None,) * len(result_specs)
    return tuple(
        [
            torch.empty(shape, dtype=dtype, device=device) if tensor is None else tensor
            for tensor, (shape, dtype) in zip(results, result_specs, strict=True)
        ]
    )


def _all_plain(values: Any) -> bool:
    if not isinstance(values, (tuple, list)) or not all(
        isinstance(v, torch.Tensor) for v in values
    ):
        return False
    if is_dynamo_compiling():  # which knows of no lazy negation
        return True
    with torch._C.DisableTorchFunction():  # modes and subclasses see the op alone
        return not any(map(kind_of, values))


def _usual(arg: ValueArg) -> Any:
    if arg.kind == "dtype":
        return arg.dtypes[0]
    return arg.words[0] if arg.kind == "word" else {"bool": False, "float": 0.0}.get(arg.kind, 1)
