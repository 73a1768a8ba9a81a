"""edits: what to write instead of a line that breaks the graph, as lines of a diff.

Comes in: a kind of graph break and the user's line. Goes out: the lines taken out and what takes
their place. Only what follows from the syntax is offered: a call whose value is not used moves out
of the function, a branch that chooses one value becomes torch.where; else nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ...errors import UserLine
from ..sources import lines_of_statement, statement_at

__all__ = ["Edit", "edit_of"]

Edit = tuple[str, ...]  # lines that begin with - or +


def edit_of(kind: str, where: UserLine) -> Edit:
    """A small diff; empty where the syntax of the line does not say what to do."""
    found = statement_at(where.filename, where.lineno)
    if found is None:
        return ()
    statement, following = found
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        if kind == "UserGraphBreak":
            return _diff(where, [statement])
        moved = f"# call it before or after {where.function or 'the function'}"
        return _diff(where, [statement], moved)
    if isinstance(statement, ast.If) and kind == "TensorBranch":
        gone, instead = _chosen(statement, following)
        return _diff(where, gone, instead) if instead else ()
    return ()


def _diff(where: UserLine, statements: Sequence[ast.stmt], instead: str = "") -> Edit:
    gone = [line for each in statements for line in lines_of_statement(where.filename, each)]
    return (*(f"- {line}" for line in gone), *(f"+ {line}" for line in instead.splitlines()))


def _chosen(branch: ast.If, following: ast.stmt | None) -> tuple[list[ast.stmt], str]:
    """Return what goes and what takes its place, of a branch whose two ways return, or assign to
    one name; nothing of another.
    """
    match branch.body, branch.orelse, following:
        case [ast.Return(value=ast.expr() as yes)], [ast.Return(value=ast.expr() as no)], _:
            gone: list[ast.stmt] = [branch]
            target = "return "
        case [ast.Return(value=ast.expr() as yes)], [], ast.Return(value=ast.expr() as no) as last:
            gone, target = [branch, last], "return "
        case [ast.Assign(targets=[ast.Name(id=name)], value=yes)], [], _:
            no, gone, target = ast.Name(name), [branch], f"{name} = "
        case (
            [ast.Assign(targets=[ast.Name(id=name)], value=yes)],
            [ast.Assign(targets=[ast.Name(id=other)], value=no)],
            _,
        ) if name == other:
            gone, target = [branch], f"{name} = "
        case _:
            return [], ""
    parts = ", ".join(ast.unparse(part) for part in (branch.test, yes, no))
    return gone, f"{target}torch.where({parts})"
