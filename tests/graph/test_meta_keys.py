"""Every key of `node.meta` that the package uses is declared in `graph.node_meta.KEYS`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch.fx import Graph

from jitmagic.errors import VerifyError
from jitmagic.graph.node_meta import KEYS, check_keys

from ..processes import ROOT

WRITERS = ("update", "setdefault")
READERS = ("get", "pop")


def _is_meta(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "meta"


def _uses(tree: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the expression of each key, and whether the key is written."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=owner, slice=key, ctx=context) if _is_meta(owner):
                yield key, isinstance(context, ast.Store)
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if _is_meta(owner):
                if node.args and name in (*READERS, *WRITERS) and name != "update":
                    yield node.args[0], name in WRITERS
                if name == "update":
                    yield from ((ast.Constant(k.arg), True) for k in node.keywords if k.arg)
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[owner]):
                if _is_meta(owner):
                    yield key, False
            case ast.Assign(targets=[owner], value=ast.Dict(keys=keys)) if _is_meta(owner):
                yield from ((key, True) for key in keys if key is not None)


@cache
def used() -> dict[str, set[bool]]:
    """Return each key in the package, with whether it is read (False) and written (True)."""
    found: dict[str, set[bool]] = {}
    for path in (ROOT / "jitmagic").rglob("*.py"):
        for key, is_written in _uses(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{getattr(key, 'lineno', 0)}"
            assert isinstance(key, ast.Constant), f"{where}: a key of node.meta is not a literal"
            found.setdefault(str(key.value), set()).add(is_written)
    return found


def test_keys_of_the_package_are_declared() -> None:
    # Graphs of exporting/ are torch.export's, with its keys.
    assert used().keys() - {"unbacked_bindings"} <= KEYS.keys()


def test_declared_keys_are_read() -> None:
    assert {key for key in KEYS if False not in used().get(key, set())} == set()


def test_keys_that_are_written_by_name_or_by_the_builder() -> None:
    # builder.py and recorder.py update a node with a dict of those that hold.
    by_dict = {"data_dependent", "expects", "random", "tangents", "checkpoint"}
    assert {key for key in KEYS if True not in used()[key]} <= by_dict


@pytest.mark.parametrize(("key", "value"), [("unknown", 1), ("step", "3"), ("lines", [])])
def test_a_node_with_another_key_or_type_is_refused(key: str, value: object) -> None:
    node = Graph().call_function(torch.relu)
    node.meta.update(val=None, spec=None, lines=(), step=3)
    check_keys(node)
    node.meta[key] = value
    with pytest.raises(VerifyError, match=key):
        check_keys(node)
