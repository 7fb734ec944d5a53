"""A kernel of an op, and the call that it is asked about."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rfops.jit import ConfigError, paths
from rfops.jit.arch import ARCHS
from rfops.jit.forks import importing
from rfops.moved import add_method_aliases

from .routing import parse_config, warn_unfit
from .tuned_table import Row, Tuned

Run = Callable[..., None]  # run(result, *input tensors)
RunOf = Callable[..., Run]  # of the op's sizes, in their order


class Call:
    """What may decide about a call: its sizes and values by their declared names, `c.M`,
    `c.block_m`, `c.dtype`; where it runs; and how its tensors lie.

    Made by the op: of a real call, whose tensors it describes and does not hold, because a plan
    keeps it; or of sizes alone, as `rfops why` and the tuner ask.
    """

    def __init__(
        self,
        arch: str,
        cu_num: int,
        device: torch.device,
        sizes: Mapping[str, int],
        values: Mapping[str, Any],
        tensors: Mapping[str, Any],  # each a View, a tuple of them for a table, or None
    ) -> None:
        # Sizes and values are attributes: a family reads a dozen of them for each new shape.
        vars(self).update(values)
        vars(self).update(sizes)
        self.arch, self.cu_num, self.device = arch, cu_num, device
        self.size_names = tuple(sizes)
        self.values, self.tensors = values, tensors
        self.inputs: Mapping[str, Any] = {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name, in the order of the declaration."""
        return {name: getattr(self, name) for name in self.size_names}

    def with_sizes(self, **sizes: int) -> Call:
        """The same call of other sizes."""
        copy = Call.__new__(Call)
        vars(copy).update(vars(self), **sizes)
        return copy

    def resized(self, sizes: Sequence[int]) -> Call:
        """The same call of these sizes, in the order of `size_names`."""
        copy = Call.__new__(Call)
        attributes = vars(self).copy()
        attributes.update(zip(self.size_names, sizes, strict=False))
        copy.__dict__ = attributes
        return copy

    def with_inputs(self, inputs: Mapping[str, Any]) -> Call:
        """The same call, which holds its tensors: that of a Problem."""
        copy = self.with_sizes()
        copy.inputs = inputs
        return copy

    def has(self, name: str) -> bool:
        """Whether an optional tensor is given; of sizes alone, whether a value of its name is."""
        return self.tensors.get(name) is not None or bool(self.values.get(name))

    def given(self, *names: str) -> tuple[torch.Tensor, ...]:
        """Those of these tensors that are there, of a call that holds them (`with_inputs`)."""
        return tuple([t for t in map(self.inputs.get, names) if t is not None])

    def align(self, *names: str) -> int:
        """What the addresses of these tensors are all a multiple of: 1, 2, 4, 8 or 16."""
        alignment = 16
        for tensor in map(self.tensors.get, names):
            for view in tensor if isinstance(tensor, tuple) else (tensor,):
                if view is not None and view.align < alignment:
                    alignment = view.align
        return alignment

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.sizes.items())


def as_defines(config: Any) -> dict[str, Any]:
    """A config's fields as compile-time constants."""
    return {name.upper(): value for name, value in vars(config).items()}


class Kernel:
    """One way to compute an op, which tables and messages know by `name`."""

    name: ClassVar[str]
    Config: ClassVar[type[Any] | None] = None  # a frozen dataclass: a variant of it
    module: ClassVar[str] = ""  # of a HIP kernel: its entry in compiler_config.json
    more_modules: ClassVar[tuple[str, ...]] = ()  # of its other launches
    compiler_config: Path = paths.COMPILER_CONFIG  # the file that has the modules
    is_ranked: ClassVar[bool] = False  # whether its candidates come in the order of a cost model
    tuned: ClassVar[Tuned | None] = None  # its own table of defaults
    # The tensors of a launch: the op's results, then its inputs. Set by the op that has the kernel.
    arguments: tuple[str, ...] = ()
    # Sizes of which `unsupported_reason` and `unsupported_config_reason` say no more than that they
    # are too large: where the kernel takes a call, it takes it with each of them smaller. A
    # dynamic-shape plan does not ask again.
    limits: ClassVar[str] = ""
    is_capturable: ClassVar[bool] = True  # by a graph: a launch reads nothing back to the host
    # Beside the rounding of fp32 sums, how far a result may be off, as a share of its |products|.
    error: ClassVar[float] = 0.0

    def __init_subclass__(cls) -> None:
        """`config` is an old name of `compiler_config`, which ops outside of rfops may set; so are
        those of some methods."""
        super().__init_subclass__()
        add_method_aliases(cls)
        if isinstance(old := vars(cls).get("config"), Path):
            cls.compiler_config = old
            del cls.config

    @property
    def config(self) -> Path:
        """The old name of `compiler_config`."""
        return self.compiler_config

    @config.setter
    def config(self, file: Path) -> None:
        self.compiler_config = file

    def error_on(self, _arch: str) -> float:
        """Return `error` for an architecture; kernels whose error differs override it."""
        return self.error

    def unsupported_reason(self, c: Call) -> str | None:
        """Why it does not take the call, in words; None if it does."""
        return self.unsupported_arch_reason(c)

    def module_of(self, _arch: str) -> str:
        """The module of an architecture: `module`, but where some have another one."""
        return self.module

    def unsupported_arch_reason(self, c: Call) -> str | None:
        """That of a HIP kernel whose module is not for the architecture."""
        return self._without_arch(c.arch) if self.module else None

    @functools.lru_cache(maxsize=1024)  # noqa: B019 # kernels live as long as the process
    def _without_arch(self, arch: str) -> str | None:
        """Kept, because a family of plans asks for each new size: 1.4 us otherwise."""
        with importing:
            from rfops.jit.build.spec import module_spec

        def has(arch: str) -> bool:
            return arch in module_spec(self.module_of(arch), self.compiler_config).archs

        return (
            None if has(arch) else f"no kernel for {arch}, only for {', '.join(filter(has, ARCHS))}"
        )

    def unsupported_config_reason(self, c: Call, config: Any) -> str | None:
        """Why this variant does not take a call that the kernel takes; None if it does."""
        return None

    def default(self, c: Call) -> Any:
        """The variant that a call without a tuned row takes."""
        return None

    def candidates(self, c: Call) -> Iterable[Any]:
        """All variants worth timing; where a cost model ranks them, the best first."""
        config = self.default(c)
        return [] if config is None else [config]

    def own_row(self, c: Call) -> Row:
        """The row of its own table that a call takes. Raises ConfigError."""
        assert self.tuned is not None and self.Config is not None, f"{self.name} has no table"
        kind, sizes = self.Config, tuple([getattr(c, name) for name in self.tuned.names])

        def takes(row: Row) -> bool:
            config = parse_config(kind, row.config, row)
            reason = self.unsupported_config_reason(c, config) or self.unsuited(c, config)
            if reason is not None and row.is_own:
                op = row.file.stem.removesuffix(f"_{self.name}")
                warn_unfit(op, row, sizes, c.arch, reason)
            return reason is None

        match = self.tuned.load().find(c.arch, c.cu_num, sizes, takes)
        if match is None:
            raise ConfigError(f"{self.tuned.name}.csv: no row for {c} on {c.arch}")
        return match.row

    def unsuited(self, c: Call, config: Any) -> str | None:
        """Why a row of its own table does not hold for a call that its config takes; None if it
        does."""
        return None

    def settled(self, c: Call, config: Any) -> Any:
        """The variant that runs, where a config leaves something to the call's sizes."""
        return config

    def defines(self, c: Call, config: Any) -> Mapping[str, Any] | None:
        """The compile-time constants of the HIP module; None of another kernel."""
        return None

    def notes(self, c: Call, config: Any) -> Mapping[str, str]:
        """What else `rfops why` says of it."""
        return {}

    def variant(self, c: Call, config: Any) -> RunOf:
        """Build or find it, and return what makes the launches of calls that differ from this one
        in sizes alone. Raises as CompiledOp.bind."""
        raise NotImplementedError

    @property
    def is_hip(self) -> bool:
        """Whether the kernel is compiled from a HIP module."""
        return bool(self.module)


add_method_aliases(Kernel)
