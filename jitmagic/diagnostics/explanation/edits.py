"""edits: suggests a diff that removes a graph break.

Input: the kind of a graph break and the user's line. Output: lines of a diff. Only edits that
follow from the syntax are suggested: a call whose value is unused moves out of the function, and a
branch that selects one of two values becomes torch.where.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ...errors import UserLine
from ..sources import lines_of_statement, statement_at

__all__ = ["Edit", "edit_of"]

Edit = tuple[str, ...]  # lines that begin with - or +


def edit_of(kind: str, where: UserLine) -> Edit:
    """Return a small diff; empty if the syntax of the line suggests none."""
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
    """Return the statements to remove and their replacement by torch.where.

    Both are empty unless the two ways of the branch return, or assign to the same name.
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
