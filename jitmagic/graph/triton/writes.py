"""Finds the parameters whose memory a Triton kernel writes, from the kernel's Python code.

Input: a kernel (an object of triton.jit), the names of the parameters that are tensors, the values
of constexpr parameters. Output: the tensors that may be written; all of them if the code does not
show it. A pointer keeps the set of parameters that it may be computed from: through arithmetic,
block pointers, descriptors and calls of other kernels. The analysis ignores the order of statements
and the conditions of branches, so it names too many parameters rather than too few.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

__all__ = ["WriteAnalysis", "function_of"]

Names = frozenset[str]
_NONE: Names = frozenset()
# Functions and methods of triton.language that write, or may: inline assembly.
_WRITES = re.compile(r"store|atomic|scatter|asm|copy|write|reduce_to")
_LOADS = re.compile(r"load|gather|atomic")  # their results are data, no pointers
_UNDER_TEST = "triton.experimental"  # Gluon: other memory spaces, other functions that write
_MISSING = object()


class _Unknown(Exception):
    """Raised if the code does not show what is written."""


def function_of(kernel: object) -> FunctionType | None:
    """Return the Python function of a kernel, or of a decorated one (autotune, heuristics)."""
    inner: object = kernel
    while inner is not None and not isinstance(inner, FunctionType):
        inner = getattr(inner, "fn", None)
    return inner


class WriteAnalysis:
    """Analyses one kernel; `globals_read` has (namespace, name, object) of each global variable
    that the kernel reads.
    """

    def __init__(self) -> None:
        self.globals_read: list[tuple[dict[str, Any], str, object]] = []
        self._running: set[int] = set()

    def written(self, kernel: object, tensors: Names, constants: Mapping[str, object]) -> Names:
        """Return the tensors that the kernel may write."""
        try:
            stores, _ = self.summary(kernel, tensors, constants)
        except (_Unknown, OSError, SyntaxError, TypeError):  # also: the source is not available
            return tensors
        return _NONE.union(*stores)

    def summary(
        self, kernel: object, tensors: Names | None, constants: Mapping[str, object]
    ) -> tuple[set[Names], Names]:
        """Return the parameters that each store may write, and those that the result may point
        into. `tensors`: the parameters that are pointers, or None if any may be one.
        """
        function = function_of(kernel)
        if function is None or id(function) in self._running:
            raise _Unknown
        self._running.add(id(function))
        try:
            source = getattr(kernel, "src", None)  # as JITFunction._unsafe_update_src left it
            text = source if isinstance(source, str) else inspect.getsource(function)
            tree = ast.parse(textwrap.dedent(text)).body[0]
            if not isinstance(tree, ast.FunctionDef):
                raise _Unknown
            flow = _Flow(self, function, tree, tensors, constants)
            return flow.stores, flow.returned
        finally:
            self._running.discard(id(function))


class _Flow:
    """Computes to which parameters each variable of one function may point."""

    def __init__(
        self,
        analysis: WriteAnalysis,
        function: FunctionType,
        tree: ast.FunctionDef,
        tensors: Names | None,
        constants: Mapping[str, object],
    ) -> None:
        self.analysis, self.function, self.constants = analysis, function, constants
        self.stores: set[Names] = set()
        self.returned: Names = _NONE
        self.points: dict[str, Names] = {
            name: frozenset((name,)) if tensors is None or name in tensors else _NONE
            for name in inspect.signature(function).parameters
        }
        before = None
        while before != (self.points, len(self.stores), self.returned):
            before = dict(self.points), len(self.stores), self.returned
            for statement in tree.body:
                self.run(statement)

    # -- statements ------------------------------------------------------------------------------

    def run(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.ClassDef() | ast.Lambda() | ast.Global() | ast.Nonlocal():
                raise _Unknown
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.assign(target, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.assign(target, value)
            case ast.AugAssign(target=target, value=value):
                self.bind(target, self.of(value) | self.of(target))
            case ast.For(target=target, iter=iterated, body=body, orelse=rest):
                self.bind(target, self.of(iterated))
                self.run_all((*body, *rest))
            case ast.Return(value=value):
                self.returned |= _NONE if value is None else self.of(value)
            case ast.expr():
                self.of(node)
            case _:
                self.run_all(ast.iter_child_nodes(node))

    def run_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.run(node)

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case (
                ast.Tuple(elts=targets) | ast.List(elts=targets),
                ast.Tuple(elts=values) | ast.List(elts=values),
            ) if len(targets) == len(values):
                for one, given in zip(targets, values, strict=True):
                    self.assign(one, given)
            case _:
                self.bind(target, self.of(value))

    def bind(self, target: ast.expr, points: Names) -> None:
        match target:
            case ast.Name(id=name):
                self.points[name] = self.points.get(name, _NONE) | points
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.bind(part, points)
            case ast.Starred(value=inner):
                self.bind(inner, points)
            case _:  # an attribute or item: the pointer is then in the object
                raise _Unknown

    # -- expressions -----------------------------------------------------------------------------

    def of(self, node: ast.AST) -> Names:
        """Return the parameters that the value of an expression may point into."""
        match node:
            case ast.Name(id=name):
                if name not in self.points and name not in self.function.__code__.co_varnames:
                    self.outer(name)  # at a launch, Triton raises if a global constant has changed
                return self.points.get(name, _NONE)
            case ast.Call():
                return self.call(node)
            case ast.NamedExpr(target=target, value=value):
                points = self.of(value)
                self.bind(target, points)
                return points
            case ast.Compare():
                self.all_of(ast.iter_child_nodes(node))
                return _NONE
            case ast.Lambda() | ast.comprehension():
                raise _Unknown
        return self.all_of(ast.iter_child_nodes(node))

    def all_of(self, nodes: Iterable[ast.AST]) -> Names:
        return _NONE.union(*[self.of(node) for node in nodes])

    def call(self, node: ast.Call) -> Names:
        args = [self.of(arg) for arg in node.args]
        named = {keyword.arg: self.of(keyword.value) for keyword in node.keywords}
        points = _NONE.union(*args, *named.values())
        function = self.resolved(node.func)
        if function is _MISSING:
            return self.method(node, args, points)
        inner = function_of(function)
        module = str(getattr(function if inner is None else inner, "__module__", None))
        if module.startswith(_UNDER_TEST):
            raise _Unknown
        if module == "triton" or module.startswith("triton."):
            name = str(getattr(function, "__name__", function))
            first = next(iter(args or named.values()), _NONE)
            return self.builtin(name, named.get("pointer", first), points)
        if inner is not None and inner is not function:
            return self.kernel(function, node, args, named)
        is_plain = isinstance(function, type) or module in ("builtins", "math", "_operator")
        if points and not is_plain:
            raise _Unknown
        return points

    def method(self, node: ast.Call, args: list[Names], points: Names) -> Names:
        """Handle a method of a tensor or a descriptor, such as `desc.store(offsets, value)`."""
        if not isinstance(node.func, ast.Attribute):
            raise _Unknown
        owner, name = self.of(node.func.value), node.func.attr
        core = sys.modules.get("triton.language.core")
        kinds = [getattr(core, kind, None) for kind in ("tensor", "tensor_descriptor", "dtype")]
        if not any(kind is not None and hasattr(kind, name) for kind in kinds):
            raise _Unknown
        return self.builtin(name, owner, points | owner)

    def builtin(self, name: str, pointer: Names, points: Names) -> Names:
        """Handle a function of triton.language, whose first argument is the pointer."""
        if _WRITES.search(name):
            self.store(points if "asm" in name or "copy" in name else pointer)
        return _NONE if _LOADS.search(name) else points

    def store(self, pointer: Names) -> None:
        if not pointer:  # an address that was loaded, or made of a number
            raise _Unknown
        self.stores.add(pointer)

    def kernel(
        self,
        kernel: object,
        node: ast.Call,
        args: list[Names],
        named: Mapping[str | None, Names],
    ) -> Names:
        """Handle a call of another kernel: what it writes, through the arguments here."""
        function = function_of(kernel)
        assert function is not None
        if None in named or any(isinstance(arg, ast.Starred) for arg in node.args):
            raise _Unknown
        parameters = list(inspect.signature(function).parameters)
        given: dict[str | None, Names] = dict(zip(parameters, args, strict=False))
        given |= named
        expressions: dict[str | None, ast.expr] = dict(zip(parameters, node.args, strict=False))
        expressions |= {keyword.arg: keyword.value for keyword in node.keywords}
        constants = {
            str(name): value
            for name, expression in expressions.items()
            if (value := self.resolved(expression)) is not _MISSING
        }
        stores, returned = self.analysis.summary(kernel, None, constants)
        for pointer in stores:
            self.store(_NONE.union(*[given.get(name, _NONE) for name in pointer]))
        return _NONE.union(*[given.get(name, _NONE) for name in returned])

    # -- names -----------------------------------------------------------------------------------

    def resolved(self, node: ast.expr) -> Any:
        """Return the object that an expression names outside the function's own variables."""
        match node:
            case ast.Name(id=name) if name in self.constants:
                return self.constants[name]
            case ast.Name(id=name) if name not in self.points:
                return self.outer(name)
            case ast.Attribute(value=value, attr=attr):
                owner = self.resolved(value)
                return _MISSING if owner is _MISSING else getattr(owner, attr, _MISSING)
        return _MISSING

    def outer(self, name: str) -> Any:
        function = self.function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for free, cell in cells:
            if free == name:
                return cell.cell_contents
        found = function.__globals__.get(name, _MISSING)
        if found is _MISSING:
            return vars(builtins).get(name, _MISSING)
        self.analysis.globals_read.append((function.__globals__, name, found))
        return found
