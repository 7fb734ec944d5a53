"""Finds every call site of a wrapped callee in the Python files of a wheel, by their syntax trees.

A site is a call of a callee, or a use of its name that is no call (an alias that is passed on, an
entry of a table). Callees are the plugins' own (rfops.plugins.callees), what `get_hip_quant`
returns, and *relays*: engine functions that hold a site and that the engine calls by another name,
as `rocm_aiter_ops.fused_moe` and `torch.ops.vllm.rocm_aiter_fused_moe` lead to aiter's fused_moe.

Names are resolved by scope: imports (absolute, relative, renamed), assignments of one name to
another, attributes of self, and names that one module of the engine imports from another.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rfops.plugins.callees import AITER, VLLM

TARGETS = tuple(callee.target for callee in (*AITER, *VLLM))
MADE_FUNCTION = "aiter.get_hip_quant()"  # the function that get_hip_quant returns
# Methods that the plugin's classes override: the end of a file's name, the method, what overrides.
METHODS = (
    ("", "forward_mqa", "vllm: RFOPS_MLA"),
    ("unquantized_fused_moe_method.py", "forward", "vllm: UnquantizedFusedMoEMethod"),
    ("unquantized_fused_moe_method.py", "forward_native", "vllm: UnquantizedFusedMoEMethod"),
)
# Functions with the name of a callee that are others: no wrapper is meant for them.
NAMESAKES = {
    "aiter.fused_moe",  # the module
    "aiter.utility.fp4_utils.dynamic_mxfp4_quant",  # in torch, with an argument shuffle
    "aiter.ops.triton.attention.mla.mla_decode_fwd",  # attention by segments, with a block table
    "aiter.ops.triton.normalization.rmsnorm.rms_norm",  # Triton's own, which is not wrapped
}
# Where a name of aiter's comes from when a package gives out what its modules have.
ALIASES = {
    "aiter.topk_gating": "aiter.ops.topk.topk_gating",
    "aiter.ops.gemm_op_a4w4.gemm_a4w4": "aiter.gemm_a4w4",
    "aiter.dynamic_per_token_scaled_quant": "aiter.ops.quant.dynamic_per_token_scaled_quant",
    "aiter.dynamic_per_tensor_quant": "aiter.ops.quant.dynamic_per_tensor_quant",
    "aiter.static_per_tensor_quant": "aiter.ops.quant.static_per_tensor_quant",
}
_PROBES = {"signature", "inspect.signature", "hasattr", "getattr", "callable", "id"}
# A file without one of these has no site.
_ROOTS = (
    "aiter",
    "torch.ops.",
    "triton_decode_attention",
    "moe_align_block_size",
    "forward_mqa",
    "unquantized_fused_moe_method",
)
_LEAVES = {target.rpartition(".")[2]: target for target in TARGETS}
_RELAY_CLASS = "rocm_aiter_ops"
_RELAYS = {"rocm_aiter_fused_experts", "rocm_aiter_grouped_topk"}  # functions that prepare a call
_REGISTER = "direct_register_custom_op"


@dataclass(frozen=True, order=True)
class Site:
    """A use of a callee.

    place : file in the wheel.
    function : the enclosing functions and classes, "" at module level.
    target : the callee's dotted name, or "-> " and the relay's.
    form : "3 + sm_scale, causal, **": arguments by position, names of those by keyword; "use" where
        the name is not called, "probe" where its signature or its presence is asked for,
        or it is registered as a custom op.
    number : of uses that are equal in all of these, which one.
    line, end : where it stands; not part of its identity.
    """

    place: str
    function: str
    target: str
    form: str
    number: int = 0
    line: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        number = f" #{self.number}" if self.number else ""
        return f"{self.place} | {self.function} | {self.target} | {self.form}{number}"


Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
Bindings = dict[str, set[str]]


class _File:
    """The scopes of a file, and what their names stand for."""

    def __init__(self, position: str, text: str) -> None:
        self.place = position
        self.module = position.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.is_package = position.endswith("/__init__.py")
        self.tree = ast.parse(text)
        self.parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self.bindings: dict[ast.AST, Bindings] = {}
        self.assigned: list[tuple[ast.AST, str, ast.expr]] = []
        self.returned: dict[str, set[str]] = {}  # by function, and "name[1]" of a tuple
        self.names: list[ast.Name | ast.Attribute] = []
        self.calls: list[ast.Call] = []
        self.returns: list[ast.Return] = []
        self.thin: set[str] = set()  # functions that are one call
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                self.names.append(node)
            elif isinstance(node, ast.Call):
                self.calls.append(node)
            elif isinstance(node, ast.Return) and node.value is not None:
                self.returns.append(node)
            elif isinstance(node, ast.FunctionDef) and _is_thin(node):
                self.thin.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._take_import(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._take_assignment(node, target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._take_assignment(node, node.target, node.value)

    def _take_import(self, node: ast.Import | ast.ImportFrom) -> None:
        base = ""
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                packages = self.module.split(".")
                up = node.level - self.is_package
                base = ".".join([*packages[: len(packages) - up], *([node.module] if base else [])])
        for alias in node.names:
            if base:
                origin, name = f"{base}.{alias.name}", alias.asname or alias.name
            elif alias.asname:
                origin, name = alias.name, alias.asname
            else:
                origin = name = alias.name.partition(".")[0]
            self._bind(self.scope(node), name, origin)

    def _take_assignment(self, node: ast.AST, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.assigned.append((self.scope(node), target.id, value))
        elif isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("self", "cls"):
            self.assigned.append((self.tree, f"self.{target.attr}", value))  # of any class
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
            for i, element in enumerate(target.elts):
                if isinstance(element, ast.Name):
                    offset = ast.Subscript(value, ast.Constant(i))
                    self.parents[offset] = node
                    self.assigned.append((self.scope(node), element.id, offset))

    def _bind(self, scope: ast.AST, name: str, origin: str) -> bool:
        origins = self.bindings.setdefault(scope, {}).setdefault(name, set())
        is_new = origin not in origins
        origins.add(origin)
        return is_new

    def scope(self, node: ast.AST) -> ast.AST:
        """The innermost scope around a node, not the node itself."""
        up = self.parents.get(node)
        while up is not None and not isinstance(up, Scope):
            up = self.parents.get(up)
        return up or self.tree

    def qualified(self, node: ast.AST) -> str:
        """Names of the functions and classes around a node, the outermost first."""
        names: list[str] = []
        up = self.parents.get(node)
        while up is not None:
            if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.insert(0, up.name)
            up = self.parents.get(up)
        return ".".join(names)

    def origins(self, node: ast.expr) -> set[str]:
        """What an expression of names stands for; empty where nothing is known of it."""
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            name, position = _dotted(node.value.func), ast.unparse(node.slice)
            return set(self.returned.get(f"{name}[{position}]", ()))
        if isinstance(node, ast.Call):
            result = {f"{o}()" for o in self.origins(node.func) if o.endswith("get_hip_quant")}
            return result | self.returned.get(_dotted(node.func), set())
        text = _dotted(node)
        if not text:
            return set()
        head, dot, remaining = text.partition(".")
        if head in ("self", "cls") and remaining and "." not in remaining:
            return set(self.bindings.get(self.tree, {}).get(f"self.{remaining}", ()))
        scope: ast.AST | None = self.scope(node)
        while scope is not None:
            is_own = not isinstance(scope, ast.ClassDef) or scope is self.scope(node)
            result = self.bindings.get(scope, {}).get(head) if is_own else None
            if result:
                return {origin + dot + remaining for origin in result}
            scope = None if scope is self.tree else self.scope(scope)
        local_name = (
            f"{self.module}.{text}"  # a function of this file, where nothing else has its name
        )
        if text.startswith("torch.ops."):
            return {text}
        return {local_name} if text in self.thin | _RELAYS else set()

    def spread(self) -> bool:
        """Bind names that are assigned from known ones; whether there was a new one."""
        changed = False
        for node in self.returns:
            assert node.value is not None
            function = self.qualified(node).rpartition(".")[2]
            elements = node.value.elts if isinstance(node.value, ast.Tuple) else ()
            named = [(f"{function}[{i}]", element) for i, element in enumerate(elements)]
            for name, value in [(function, node.value), *named]:
                new = self.origins(value) - self.returned.get(name, set())
                if new:
                    self.returned.setdefault(name, set()).update(new)
                    changed = True
        for scope, name, value in self.assigned:
            for origin in self.origins(value):
                changed |= self._bind(scope, name, origin)
        return changed


def _is_thin(node: ast.FunctionDef) -> bool:
    body = [s for s in node.body if not (isinstance(s, ast.Expr) and _is_text(s.value))]
    return len(body) == 1 and isinstance(getattr(body[0], "value", None), ast.Call)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *names]) if isinstance(node, ast.Name) else ""


class Engine:
    """The sites of a wheel."""

    def __init__(self, name: str, archive: zipfile.ZipFile) -> None:
        self.name = name
        self._texts = {
            position: archive.read(position).decode(errors="replace")
            for position in archive.namelist()
            if position.endswith(".py") and position.startswith(f"{name}/")
        }
        self._files: dict[str, _File] = {}
        self._exports: dict[str, set[str]] = {}  # "module.name" of the engine: origins
        self.relays: dict[str, str] = {}  # origin: the name that sites show
        self._read()
        self.sites = tuple(sorted(_numbered(self._sites())))

    def _read(self) -> None:
        """Parse the files that may hold a site, until no name of a callee is new."""
        words: set[str] = {*_LEAVES, *(method for _, method, _ in METHODS)}
        likely = {p: t for p, t in self._texts.items() if any(root in t for root in _ROOTS)}
        while True:
            for position, text in likely.items():
                if position not in self._files and any(word in text for word in words):
                    self._files[position] = _File(position, text)
            previous = len(words), len(self._files)
            self._follow()
            words |= {name.rpartition(".")[2] for name in (*self._exports, *self.relays)}
            if previous == (len(words), len(self._files)):
                return

    def _follow(self) -> None:
        changed = True
        while changed:
            changed = False
            for file in self._files.values():
                for bindings in file.bindings.values():
                    for origins in bindings.values():
                        reached = set().union(
                            *(self._exports.get(origin, ()) for origin in origins)
                        )
                        changed |= not reached <= origins
                        origins |= reached
                changed |= file.spread()
                for name, origins in file.bindings.get(file.tree, {}).items():
                    expected = {o for o in origins if self._target(o)}
                    if expected - self._exports.get(f"{file.module}.{name}", set()):
                        self._exports.setdefault(f"{file.module}.{name}", set()).update(expected)
                        changed = True
            changed |= self._find_relays()

    def _find_relays(self) -> bool:
        """Custom ops over functions with a site, and functions that do nothing but call on."""
        results: dict[str, str] = {}
        for file in self._files.values():
            holders = {
                file.qualified(node)
                for _, node, _, call in self._uses(file)
                if call is not None or not self._is_probe(file, node)
            }
            for node in file.calls:
                if _dotted(node.func).endswith(_REGISTER):
                    words = {k.arg: k.value for k in node.keywords}
                    op, function = words.get("op_name"), words.get("op_func")
                    if isinstance(op, ast.Constant) and function is not None:
                        if _dotted(function) in holders:
                            name = f"torch.ops.{self.name}.{op.value}"
                            results[name] = name
            for holder in holders:
                owner = holder.rpartition(".")[0]
                if owner == _RELAY_CLASS or (not owner and holder in file.thin | _RELAYS):
                    results[f"{file.module}.{holder}"] = holder
        is_new = bool(results.keys() - self.relays.keys())
        self.relays |= results
        return is_new

    def _target(self, origin: str) -> str:
        """The callee that a name stands for, "" for none."""
        if origin.startswith("torch.ops."):
            origin = origin.removesuffix(".default")
        if origin in self.relays:
            return f"-> {self.relays[origin]}"
        origin = ALIASES.get(origin, origin)
        if origin in TARGETS or origin == MADE_FUNCTION:
            return origin
        leaf = origin.rpartition(".")[2].removesuffix("()")
        if origin.startswith("aiter.") and leaf in _LEAVES and origin not in NAMESAKES:
            return MADE_FUNCTION if origin.endswith("()") else origin
        return ""

    @staticmethod
    def _is_probe(file: _File, node: ast.expr) -> bool:
        up = file.parents[node]
        if isinstance(up, ast.keyword):
            up = file.parents[up]
            return isinstance(up, ast.Call) and _dotted(up.func).endswith(_REGISTER)
        return isinstance(up, ast.Compare) or (
            isinstance(up, ast.Call) and _dotted(up.func) in _PROBES
        )

    def _uses(self, file: _File) -> Iterator[tuple[_File, ast.expr, str, ast.Call | None]]:
        """Uses of callees: the file, the name's node, the callee, and the call of it."""
        for node in file.names:
            up = file.parents[node]
            if isinstance(up, ast.Attribute) and up.attr == "default":
                continue  # the use is the op's overload
            call = up if isinstance(up, ast.Call) and up.func is node else None
            for origin in file.origins(node):
                target = self._target(origin)
                if target:
                    yield file, node, target, call
        for outer in file.calls:  # get_hip_quant(kind)(x), a getter's function called at once
            if isinstance(outer.func, ast.Call):
                for origin in file.origins(outer.func):
                    if self._target(origin):
                        yield file, outer.func, self._target(origin), outer

    def _sites(self) -> Iterator[Site]:
        for file in self._files.values():
            for _, node, target, call in self._uses(file):
                offset = call or node
                form = "probe" if call is None and self._is_probe(file, node) else _form(call)
                yield Site(
                    file.place,
                    file.qualified(node),
                    target,
                    form,
                    0,
                    offset.lineno,
                    offset.end_lineno or offset.lineno,
                )
            yield from self._methods(file)

    def _methods(self, file: _File) -> Iterator[Site]:
        """Calls of methods that the plugin's classes override."""
        for node in file.calls if self.name == "vllm" else ():
            owner, _, name = ast.unparse(node.func).rpartition(".")
            for position, method, target in METHODS:
                if (
                    name == method
                    and file.place.endswith(position)
                    and not owner.startswith("super")
                ):
                    yield Site(
                        file.place,
                        file.qualified(node),
                        target,
                        _form(node),
                        0,
                        node.lineno,
                        node.end_lineno or node.lineno,
                    )


def _form(call: ast.Call | None) -> str:
    if call is None:
        return "use"
    num_positional = sum(not isinstance(a, ast.Starred) for a in call.args)
    names = ["*" for a in call.args if isinstance(a, ast.Starred)]
    names += [k.arg or "**" for k in call.keywords]
    return f"{num_positional} + {', '.join(names)}" if names else str(num_positional)


def _numbered(sites: Iterable[Site]) -> Iterator[Site]:
    """Sites that are equal are told apart by their order in the file."""
    lines_by_site: dict[Site, set[int]] = {}
    for site in sorted(sites, key=lambda s: (s.place, s.line)):
        lines = lines_by_site.setdefault(site, set())
        if site.line not in lines:
            lines.add(site.line)
            yield Site(
                site.place,
                site.function,
                site.target,
                site.form,
                len(lines) - 1,
                site.line,
                site.end,
            )
