"""cell: splits a cell into definitions to tag and runs of top-level code to compile.

Input: Python source, with IPython's syntax already transformed. Output: `Part`s in order. A run of
plain statements becomes the body of a synthetic function whose assigned names are all `global`: it
reads and writes the notebook's namespace as the cell does, and is traced like any function.
Statements with another meaning inside a function (`exec`, `locals`, magics, top-level `await`,
annotations) stay module code. The value of the last expression is returned for display. Line
numbers are unchanged, and code objects are named as those of a module.
"""

from __future__ import annotations
import __future__

import ast
import inspect
from types import CodeType

from ..errors import RUN_NAME
from ..lazy_dataclass import dataclass

__all__ = ["Definition", "Part", "Plain", "Run", "future_flags", "split_cell"]

_MODULE = "<module>"


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class statement; the object called `name` is tagged after it has run."""

    code: CodeType
    name: str


@dataclass(frozen=True, slots=True)
class Plain:
    """Imports and other statements that run unchanged at module level; `eval` returns the value."""

    code: CodeType

    @property
    def is_async(self) -> bool:
        """True if its value has to be awaited."""
        return bool(self.code.co_flags & inspect.CO_COROUTINE)


@dataclass(frozen=True, slots=True)
class Run:
    """Top-level statements to compile.

    code: the body of a function without parameters
    plain: the statements as module code; `eval` of the last returns the value
    line: number of the first line
    """

    code: CodeType
    plain: tuple[CodeType, ...]
    line: int


Part = Definition | Plain | Run


def split_cell(
    source: str, filename: str, flags: int = 0, first_line: int = 1, shows: str = "last_expr"
) -> list[Part]:
    """Return the parts of a cell whose text begins on line `first_line` of the file.

    flags: compiler flags of active `__future__` features
    shows: the values to display, a value of IPython's ast_node_interactivity
    Raises SyntaxError as Python does, for the first invalid statement.
    """
    tree = ast.parse("\n" * (first_line - 1) + source, filename)
    if shows == "last_expr_or_assign" and tree.body:
        tree.body += _value_assigned(tree.body[-1])
    each = shows == "all"
    flags |= future_flags(source)
    groups: list[list[ast.stmt]] = []
    for statement in tree.body:
        _compile([statement], filename, flags)  # a function's body would allow `return`
        ended = each and groups and isinstance(groups[-1][-1], ast.Expr)
        if groups and not ended and _joins(groups[-1][-1], statement):
            groups[-1].append(statement)
        else:
            groups.append([statement])
    for place, group in reversed([*enumerate(groups)] if each else [*enumerate(groups)][-1:]):
        if _kind(group[-1]) == "plain" and len(group) > 1:
            groups.insert(place + 1, [group.pop()])  # its value may be the cell's
    return [_part(group, filename, flags, last=each or group is groups[-1]) for group in groups]


def _value_assigned(statement: ast.stmt) -> list[ast.stmt]:
    """Return an expression statement that reads the name that a statement assigns, if any."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr | None = statement.targets[0]
    else:
        target = getattr(statement, "target", None)
    if not isinstance(target, ast.Name) or isinstance(statement, ast.For | ast.AsyncFor):
        return []
    value = ast.Expr(ast.Name(target.id, ast.Load()))
    return [ast.fix_missing_locations(ast.copy_location(value, statement))]


def future_flags(source: str) -> int:
    """Return the compiler flags of the source's `from __future__ import` statements."""
    flags = 0
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for alias in statement.names:
                feature = getattr(__future__, alias.name, None)
                flags |= getattr(feature, "compiler_flag", 0)
    return flags


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def _kind(statement: ast.stmt) -> str:
    if isinstance(statement, _DEFINITIONS):
        return "definition"
    if isinstance(statement, _IMPORTS) or _needs_module_level(statement):
        return "plain"
    return "run"


_NAMESPACE_READERS = frozenset({"dir", "eval", "exec", "get_ipython", "globals", "locals", "vars"})
_MODULE_ONLY = (ast.AnnAssign, ast.Global, ast.Await, ast.AsyncFor, ast.AsyncWith)


def _needs_module_level(statement: ast.stmt) -> bool:
    """Return whether a statement means something else, or is invalid, inside a function."""
    return any(
        isinstance(node, _MODULE_ONLY)
        or (isinstance(node, ast.Name) and node.id in _NAMESPACE_READERS)
        or (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        or (isinstance(node, ast.comprehension) and node.is_async)
        for node in ast.walk(statement)
    )


def _joins(before: ast.stmt, statement: ast.stmt) -> bool:
    return _kind(before) == _kind(statement) != "definition"


def _part(group: list[ast.stmt], filename: str, flags: int, *, last: bool) -> Part:
    kind = _kind(group[0])
    if kind == "run":
        module = _compile([_as_function(group, returns=last)], filename, flags)
        code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
        parts = (group[:-1], group[-1:]) if group[1:] else (group,)
        plain = tuple(_compile(part, filename, flags, evaluates=last) for part in parts)
        return Run(_as_module(code), plain, group[0].lineno)
    if kind == "plain":
        return Plain(_compile(group, filename, flags, evaluates=last))
    assert isinstance(group[0], _DEFINITIONS)
    return Definition(_compile(group, filename, flags), group[0].name)


def _compile(
    statements: list[ast.stmt], filename: str, flags: int, *, evaluates: bool = False
) -> CodeType:
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if evaluates and isinstance(statements[0], ast.Expr):
        tree: ast.Expression | ast.Module = ast.Expression(statements[0].value)
    else:
        tree = ast.fix_missing_locations(ast.Module(statements, type_ignores=[]))
    mode = "eval" if isinstance(tree, ast.Expression) else "exec"
    code: CodeType = compile(tree, filename, mode, flags, dont_inherit=True)
    return code


def _as_module(code: CodeType, inside: str = f"{RUN_NAME}.<locals>.") -> CodeType:
    """Return a function's code, and the code inside it, with the names that module code has."""
    name = _MODULE if code.co_name == RUN_NAME else code.co_name
    return code.replace(
        co_name=name,
        co_qualname=_MODULE if name == _MODULE else code.co_qualname.removeprefix(inside),
        co_consts=tuple(
            _as_module(constant) if isinstance(constant, CodeType) else constant
            for constant in code.co_consts
        ),
    )


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
    return ast.copy_location(function, ast.Pass(lineno=1, col_offset=0))  # as module code begins


class _Names(ast.NodeVisitor):
    """Collects the names that module-level code binds, without nested scopes."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            self.found.add(node.id)

    def visit_FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> None:
        self.found.add(node.name)
        outside = [*node.decorator_list]
        if isinstance(node, ast.ClassDef):
            outside += [*node.bases, *(keyword.value for keyword in node.keywords)]
        else:
            outside += _defaults(node.args)
        for expression in outside:
            self.visit(expression)

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
        for expression in _defaults(node.args):
            self.visit(expression)


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    """Return default values, which are evaluated in the scope of the definition."""
    return [*arguments.defaults, *(value for value in arguments.kw_defaults if value is not None)]


def _assigned(statements: list[ast.stmt]) -> set[str]:
    visitor = _Names()
    for statement in statements:
        visitor.visit(statement)
    return visitor.found
