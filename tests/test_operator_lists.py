"""Facts of operations are in their rows (jitmagic/operators), not in lists of names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jitmagic.operators import SCALARS

from .test_layering import FILES, PACKAGE, by_type, each_file, tree_of

# Stages over the loop IR. Elsewhere the same words name functions of Python or torch.
OVER_SCALARS = ("loops", "schedule", "codegen", "runtime")
LINES = {
    f"codegen/{name}.py"
    for name in ("blocks/ops", "cpp/ops", "cpp/expressions", "numba/ops", "triton/ops")
}  # of renderers


# Where one operation is applied, looked up or matched: compute("add", x, y), SCALARS["add"],
# Compute(op="mul"); and plain text.
SINGLE = (ast.Call, ast.keyword, ast.Subscript, ast.MatchValue, ast.JoinedStr, ast.Expr)


def names_of_scalars(tree: ast.Module) -> Iterator[str]:
    """Find names of scalar operations in collections and comparisons, where a fact of the row
    should be asked instead.
    """
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in by_type(tree)[ast.Constant]:
        words = node.value.split() if isinstance(node.value, str) else ()
        if not words or not all(word in SCALARS for word in words):
            continue
        above = parents[node]
        while isinstance(above, ast.IfExp):
            above = parents[above]
        outer = parents.get(above)
        compared = getattr(above, "left", None) or getattr(outer, "left", None)
        is_mode = getattr(compared, "attr", None) == "mode"  # of a store: "set" or "add"
        public = isinstance(outer, ast.Assign) and ast.unparse(outer.targets[0]) == "__all__"
        if not (isinstance(above, SINGLE) or public or is_mode):
            yield f"line {node.lineno}: {node.value!r}"


@each_file
def test_lists_of_scalar_operations_are_facts_of_their_rows(path: Path) -> Iterator[str]:
    here = path.relative_to(PACKAGE)
    if here.parts[0] in OVER_SCALARS and str(here) not in LINES:
        yield from names_of_scalars(tree_of(path))


@pytest.mark.parametrize(
    "code",
    [
        'CHEAP = {"add", "mul"}',
        'COST = {"exp": 10}',
        'SLOW = "exp log".split()',
        'if node.op == "where": pass',
        'if node.op in ("eq", "ne"): pass',
    ],
)
def test_lists_of_scalar_operations_are_recognised(code: str) -> None:
    assert list(names_of_scalars(ast.parse(code)))


def lists_of_operations(tree: ast.Module) -> Iterator[str]:
    """Find collections, and texts of several words, that name ATen operations alone."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        words: list[str] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = [part.value for part in node.elts if isinstance(part, ast.Constant)]
            words = [part for part in parts if isinstance(part, str)]
        is_argument = isinstance(node, ast.Constant) and isinstance(parents[node], ast.Call)
        if len(words) > 2 and not is_argument and all(map(_is_operation, words)):
            yield from words


def _is_operation(word: str) -> bool:
    return not word.startswith("_") and hasattr(torch.ops.aten, word.removesuffix("_"))


# Files whose lists of such names are no facts of operations, with what they are.
OTHER_LISTS = {
    "codegen/blocks/ops.py": "operations that the block interpreter joins",
    "codegen/numba/ops.py": "lines of a renderer",
    "codegen/triton/ops.py": "lines of a renderer",
    "diagnostics/explanation/kernels.py": "products, which reports call matrix product",
    "graph/attention/fusing.py": "calls that a pattern matches",
    "graph/attention/masks.py": "calls that a pattern matches",
    "graph/attention/matching.py": "calls that a pattern matches",
    "graph/attention/products.py": "calls that a pattern matches",
    "graph/attention/scores.py": "calls that a pattern matches",
    "trace/values/containers/read_only.py": "methods of dicts",
    "trace/values/numbers/arithmetic.py": "functions of Python's math",
    "trace/values/tensors/ragged_sizes.py": "slots of a class",
}


@each_file
def test_facts_of_operations_are_in_their_rows(path: Path) -> Iterator[str]:
    here = path.relative_to(PACKAGE)
    found = list(lists_of_operations(tree_of(path))) if here.parts[0] != "operators" else []
    if bool(found) != (str(here) in OTHER_LISTS):
        yield f"{len(found)} names: {found}"


@pytest.mark.parametrize("code", ['X = "gather index_add take".split()', 'X = {"mm", "bmm", "mv"}'])
def test_lists_of_operations_are_recognised(code: str) -> None:
    assert len(list(lists_of_operations(ast.parse(code)))) == 3


# ------------------------------------------------------------------ files that an operation touches


def files_with(name: str) -> set[str]:
    """Return the files of the package that mention a word, without the headers of C++ kernels."""
    word = re.compile(rf"\b{name}\b")
    return {str(path.relative_to(PACKAGE)) for path in FILES if word.search(path.read_text())}


@pytest.mark.parametrize(
    "name",
    "acos acosh asin asinh atan atanh cosh erfc erfinv hypot lgamma log10 sinh tan".split(),
)
def test_a_scalar_operation_is_its_row_and_a_line_of_each_renderer(name: str) -> None:
    lines = {"codegen/numba/ops.py", "codegen/triton/ops.py"}
    assert files_with(name) == {"operators/elementary.py", *lines}


@pytest.mark.parametrize(
    "name",
    "celu deg2rad gelu hardshrink heaviside logit mish rot90 unflatten xlogy".split(),
)
def test_an_operation_with_a_formula_is_two_files_at_most(name: str) -> None:
    files = files_with(name)
    assert any(file.startswith(("autograd/decompose/", "loops/ops/")) for file in files)
    assert len(files) <= 2
