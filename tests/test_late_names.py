"""Names that modules import at their first use (late.py) are those that mypy sees."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from jitmagic import late

from .test_layering import FILES, PACKAGE, tree_of

Names = dict[str, tuple[str, str]]  # name in the file: (module, its name there)


def blocks(tree: ast.Module) -> Iterator[ast.If]:
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node


def names_for_types(path: Path, block: ast.If) -> Names:
    package = path.relative_to(PACKAGE).parent.parts
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        base = package[: len(package) - node.level + 1] if node.level else ()
        module = ".".join((*base, *filter(None, [node.module])))
        found |= {one.asname or one.name: (module, one.name) for one in node.names}
    return found


def late_names(block: ast.If) -> Names:
    found = {}
    for node in block.orelse:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            for module, listed in ast.literal_eval(node.value.args[1]).items():
                for one in listed.split(", "):
                    name, _, alias = one.partition(" as ")
                    found[alias or name] = (module, name)
    return found


def submodules(path: Path) -> set[str]:
    return {one.stem for one in path.parent.iterdir()}


class _NamesRead(ast.NodeVisitor):
    """Collects the names that run-time code reads: those of annotations are not evaluated."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        defaults = (one for one in node.args.kw_defaults if one is not None)
        for part in (*node.decorator_list, *node.args.defaults, *defaults, *node.body):
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)


LATE = [path for path in FILES if any(map(late_names, blocks(tree_of(path))))]


@pytest.mark.parametrize("path", LATE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_late_names_are_those_of_type_checking(path: Path) -> None:
    read = _NamesRead()
    read.visit(tree_of(path))
    for block in blocks(tree_of(path)):
        typed, late = names_for_types(path, block), late_names(block)
        assert late.items() <= typed.items()
        assert not read.names & (typed.keys() - late.keys())
        # The import of a submodule sets a name of its package.
        assert path.name != "__init__.py" or not late.keys() & submodules(path)
        for module, name in late.values():
            assert hasattr(importlib.import_module(f"jitmagic.{module}"), name)


def test_a_late_name_is_replaced_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("jitmagic.made")
    made.f, made.C = lambda x: x + 1, int  # type: ignore[attr-defined]
    monkeypatch.setitem(late._LOADED, "made", made)
    namespace: dict[str, object] = {}
    late.late_names(namespace, {"made": "f, C as D"})
    f, kind = namespace["f"], namespace["D"]
    assert f(1) == 2  # type: ignore[operator]
    assert isinstance(3, kind)  # type: ignore[arg-type]
    assert namespace == {"f": made.f, "D": int}  # type: ignore[attr-defined]
