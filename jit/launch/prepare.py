"""A kernel's launch by the names of its arguments, prepared once for many calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .signature import Parameter, find_tensors

Dim3 = tuple[int, int, int]


class NamedLaunch:
    """What can be launched on `parameters`; subclasses say how."""

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        self.name, self.parameters = name, tuple(parameters)
        self._tensors = tuple(p.scalar is None for p in parameters)  # or tables of them
        self._prepared: dict[Any, Callable[..., Callable[..., None]]] = {}
        self._scalars = tuple(p.name for p in parameters if p.scalar is not None)

    def launch(
        self, grid: Dim3, block: Dim3, args: Sequence[Any], lds: int = 0, stream: int | None = None
    ) -> None:
        """Launch on `args`, one value per parameter in order; `lds` is dynamic LDS in bytes, `grid`
        counts workgroups. `stream` None is the current stream."""
        raise NotImplementedError

    def prepare(
        self,
        block: Dim3,
        arguments: str | Sequence[str],
        lds: int = 0,
        sources: Mapping[str, str | None] | None = None,
    ) -> Callable[..., Callable[..., None]]:
        """`run_of(grid, m=..., n=...) -> run`, and `run(*arguments)` is a launch that only wants
        its tensors.

            launch = kernel.prepare((256, 1, 1), "out x y")  # once a variant
            run = launch((groups, 1, 1), a=2.0, n=n)  # once a shape
            run(out, x, y)

        Parameters
        ----------
        arguments : the names of run's arguments in order; further arguments of run are ignored. A
            tensor parameter of the kernel takes the argument of its own name; an optional one
            (`torch.Tensor | None`) without an argument is a null pointer.
        lds : bytes of dynamic LDS.
        sources : the arguments of tensor parameters whose names differ; None is a null pointer.

        `run_of` takes the scalar parameters by name. Raises BindError for parameters without a
        source and TypeError for scalars that are missing or unknown; `run` raises as `launch`,
        which takes 0.25 us more, and TypeError for too few arguments; `run.num_arguments` is how
        many it needs. Also accepted: `arguments` as positions, one for each tensor
        parameter, and `run_of(grid, scalars)` with a tuple.
        """
        names = arguments.split() if isinstance(arguments, str) else arguments
        tensors: tuple[int | None, ...]
        if names and all(isinstance(name, int) for name in names):
            tensors = tuple(map(int, names))
        else:
            tensors = find_tensors(self.name, self.parameters, names, sources or {})
        key = block, tensors, lds
        prepared = self._prepared.get(key)
        if prepared is not None:
            return prepared
        slow = self._prepare(block, tensors, lds)
        native = getattr(self.launch, "prepare", None)
        quick = None if native is None else native(block, tensors, lds, self._scalars, slow)
        if quick is None:  # perhaps not yet
            return slow
        return self._prepared.setdefault(key, quick)

    def _prepare(
        self, block: Dim3, tensors: tuple[int | None, ...], lds: int
    ) -> Callable[..., Callable[..., None]]:
        """`prepare` in Python, which explains what does not fit."""
        tensor_index = iter(tensors)
        positions = [next(tensor_index) if tensor else -1 for tensor in self._tensors]
        min_args = 1 + max(
            (tensor_index for tensor_index in tensors if tensor_index is not None), default=-1
        )

        def run_of(
            grid: Dim3, ordered: tuple[Any, ...] | None = None, /, **scalars: Any
        ) -> Callable[..., None]:
            values = self._ordered(scalars) if ordered is None else ordered

            def run(*args: Any) -> None:
                value = iter(values)
                try:
                    full = [
                        None if i is None else args[i] if i >= 0 else next(value) for i in positions
                    ]
                except IndexError:
                    raise TypeError(self._too_few(min_args, len(args))) from None
                self.launch(grid, block, full, lds)

            run.num_arguments = min_args  # type: ignore[attr-defined]
            return run

        return run_of

    def _too_few(self, min_args: int, num_args: int) -> str:
        names = " ".join(p.name for p in self.parameters if p.scalar is None)
        return (
            f"{self.name}: a prepared launch of the tensors {names} must have {min_args} or more "
            f"arguments, got {num_args}. Pass each tensor as an argument of its own"
        )

    def _ordered(self, scalars: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of scalar parameters in their order. Raises TypeError."""
        if scalars.keys() != set(self._scalars):
            passed_names = ", ".join(scalars) or "none"
            expected = ", ".join(self._scalars) or "none"
            raise TypeError(f"{self.name}: scalars must be {expected}, got {passed_names}")
        return tuple([scalars[name] for name in self._scalars])
