"""A cell's text as parts: definitions to tag, and runs of top-level code to compile.

Comes in: Python source (IPython's own syntax already transformed). Goes out: `Part`s in order. A
run of
plain statements becomes the body of a synthetic function whose assigned names are all `global`, so
that
it reads and writes the notebook's namespace as the cell would, and can be traced like any function.
The last expression's value is returned, which is what the notebook displays. Line numbers stay the
cell's.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import CodeType

__all__ = ["Definition", "Part", "Plain", "Run", "split_cell"]

RUN_NAME = "<cell>"


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class statement; `name` is tagged after it has run."""

    code: CodeType
    name: str


@dataclass(frozen=True, slots=True)
class Plain:
    """Imports and what else must run at module level as it stands."""

    code: CodeType


@dataclass(frozen=True, slots=True)
class Run:
    """Top-level statements as the code of a function without parameters."""

    code: CodeType


Part = Definition | Plain | Run


def split_cell(source: str, filename: str) -> list[Part]:
    """The parts of a cell; raises SyntaxError where Python would (top-level await included)."""
    tree = ast.parse(source, filename)
    groups: list[list[ast.stmt]] = []
    for statement in tree.body:
        if groups and _joins(groups[-1][-1], statement):
            groups[-1].append(statement)
        else:
            groups.append([statement])
    return [_part(group, filename, last=group is groups[-1]) for group in groups]


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def _kind(statement: ast.stmt) -> str:
    if isinstance(statement, _DEFINITIONS):
        return "definition"
    if isinstance(statement, _IMPORTS) or _needs_module_level(statement):
        return "plain"
    return "run"


def _needs_module_level(statement: ast.stmt) -> bool:
    """Annotated names and `global` mean something else, or nothing, inside a function."""
    found = (ast.AnnAssign, ast.Global)
    return any(isinstance(node, found) for node in ast.walk(statement))


def _joins(before: ast.stmt, statement: ast.stmt) -> bool:
    return _kind(before) == _kind(statement) != "definition"


def _part(group: list[ast.stmt], filename: str, *, last: bool) -> Part:
    kind = _kind(group[0])
    if kind == "run":
        module = _compile([_as_function(group, returns=last)], filename)
        return Run(next(part for part in module.co_consts if isinstance(part, CodeType)))
    code = _compile(group, filename)
    if kind == "plain":
        return Plain(code)
    assert isinstance(group[0], _DEFINITIONS)
    return Definition(code, group[0].name)


def _compile(statements: list[ast.stmt], filename: str) -> CodeType:
    module = ast.Module(statements, type_ignores=[])
    return compile(ast.fix_missing_locations(module), filename, "exec", dont_inherit=True)


def _as_function(statements: list[ast.stmt], *, returns: bool) -> ast.FunctionDef:
    body = list(statements)
    if returns and isinstance(body[-1], ast.Expr):
        body[-1] = ast.copy_location(ast.Return(body[-1].value), body[-1])
    names = sorted(_assigned(statements))
    if names:
        body.insert(0, ast.copy_location(ast.Global(names), body[0]))
    nothing = ast.arguments(
        posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[], vararg=None, kwarg=None
    )
    function = ast.FunctionDef(
        name=RUN_NAME, args=nothing, body=body, decorator_list=[], returns=None, type_comment=None
    )
    if "type_params" in ast.FunctionDef._fields:
        setattr(function, "type_params", [])  # noqa: B010 - 3.11's class has no such field
    return ast.copy_location(function, statements[0])


class _Names(ast.NodeVisitor):
    """Names that module-level code binds, nested scopes left out."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            self.found.add(node.id)

    def visit_FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> None:
        self.found.add(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_ClassDef = visit_FunctionDef

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.found.update(alias.asname or alias.name.split(".")[0] for alias in node.names)

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.found.add(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.found.add(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.found.add(node.rest)
        self.generic_visit(node)

    def _visit_comprehension(self, node: ast.AST) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):  # binds outside of the comprehension
                self.found.add(inner.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """A scope of its own."""


def _assigned(statements: list[ast.stmt]) -> set[str]:
    visitor = _Names()
    for statement in statements:
        visitor.visit(statement)
    return visitor.found
