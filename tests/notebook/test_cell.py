"""Splitting a cell: parts, scoping, values, line numbers."""

from __future__ import annotations

import traceback
from types import FunctionType

import pytest

from jitmagic.notebook.cell import Definition, Plain, Run, split_cell


def run(source: str) -> tuple[object, dict]:
    """Execute the parts plainly, as the magic does when nothing is compiled."""
    namespace: dict = {}
    value = None
    for part in split_cell(source, "<test>"):
        if isinstance(part, Run):
            value = FunctionType(part.code, namespace)()
        else:
            exec(part.code, namespace)
    namespace.pop("__builtins__", None)
    return value, namespace


def test_parts_in_order():
    parts = split_cell("import os\nx = 1\ny = 2\ndef f(): pass\nz = 3\n", "<test>")
    assert [type(p) for p in parts] == [Plain, Run, Definition, Run]


@pytest.mark.parametrize(
    "source",
    [
        "a = 1\nb = a + 1\na * b",
        "for i in range(3):\n    last = i\n[i * last for i in range(2)]",
        "xs = [(n := k) for k in range(4)]\nn",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    kind = type(e).__name__\nkind",
        "d = {'a': 1}\nmatch d:\n    case {'a': v, **rest}:\n        pass\n(v, rest)",
        "a, *b = range(4)\ndel a\nb",
        "with open('/dev/null') as f:\n    name = f.name\nname",
        "if True:\n    def g(x):\n        return x + k\nk = 5\ng(1)",
        "x: int = 3\nx",
        "class C:\n    y = 2\nC.y",
        "k = 2\nh = lambda v: v * k\nh(4)",
    ],
)
def test_same_names_and_value_as_the_module(source):
    value, namespace = run(source)
    expected: dict = {}
    *body, last = source.split("\n")
    # Not with this file's `from __future__ import annotations`, which exec() would inherit.
    exec(compile("\n".join(body), "<module>", "exec", dont_inherit=True), expected)
    assert value == eval(last, expected)
    exec(last, expected)
    expected.pop("__builtins__")
    assert set(namespace) == set(expected)


def test_only_the_last_expression_has_a_value():
    assert run("1 + 1\nx = 3")[0] is None
    assert run("1 + 1")[0] == 2


def test_lines_of_errors_are_the_cells_lines():
    with pytest.raises(ZeroDivisionError) as caught:
        run("x = 1\n\ny = x / 0\n")
    assert traceback.extract_tb(caught.value.__traceback__)[-1].lineno == 3


def test_syntax_errors_are_pythons_own():
    with pytest.raises(SyntaxError):
        split_cell("x = = 1", "<test>")
