"""Errors and warnings of a %%compile cell show it as it was typed, on the lines where it was."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jitmagic.notebook import cell_sources

from .test_same_as_plain import SETUP, run_cells

HEAD = "%%compile --dynamic"
CELLS = [
    "x = torch.ones(3)\nx.view(7)",
    "\n\nx = 1\nraise ValueError(x)",
    "def f(x):\n    return x.view(7)\n\nf(torch.ones(3))",
    "class A:\n    def m(self, x):\n        return x.view(7)\nA().m(torch.ones(3))",
    "A().m(torch.ones(3))",
    "import asyncio\nawait asyncio.sleep(0)\n1 / 0",
    "\nx = = 1",
    "return 3",
]


def shown(cell: Any) -> list[str]:
    """Return the numbered lines of a cell's error, or the place of a syntax error."""
    (error,) = (output for output in cell.outputs if output.output_type == "error")
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    text = re.sub(r"In\[\d+\]", "In[N]", text)
    lines = re.findall(r"^(?:-+> +| +)\d+(?: .*)?$", text, re.MULTILINE)
    return lines or re.findall(r"^  Cell .*\n    .*$", text, re.MULTILINE)[0].splitlines()


def test_errors_show_the_cell_as_typed_with_its_lines() -> None:
    """As a plain cell does whose first line is Python that does nothing."""
    plain = run_cells([SETUP, *(f"{HEAD!r}\n{text}" for text in CELLS)])[1:]
    compiled = run_cells([SETUP, *(f"{HEAD}\n{text}" for text in CELLS)])[1:]
    for before, after in zip(plain, compiled, strict=True):
        expected = [line.replace(repr(HEAD), HEAD) for line in shown(before)]
        assert expected
        assert shown(after) == expected


def test_an_error_in_a_later_plain_cell_shows_the_functions_statements() -> None:
    defined = f"{HEAD}\ndef f(x):\n    return x.view(7)\n\nlast = 1"
    cells = run_cells([SETUP, defined, "f(torch.ones(3))"])
    assert shown(cells[2])[1:] == ["      2 def f(x):", "----> 3     return x.view(7)"]


def test_a_warning_quotes_its_line() -> None:
    texts = [
        "%%compile\n\nimport warnings\nwarnings.warn('of a cell')",
        "%%compile\ndef g(x):\n    warnings.warn('of g')\n    return x\ng(torch.ones(3));",
    ]
    told = ["".join(o.get("text", "") for o in cell.outputs) for cell in run_cells([SETUP, *texts])]
    assert re.search(r"\.py:4: UserWarning: of a cell\n  warnings.warn\('of a cell'\)", told[1])
    assert re.search(r"\.py:3: UserWarning: of g\n  warnings.warn\('of g'\)", told[2])


def test_many_cells_keep_few_trees(loaded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    loaded.run_line_magic("colors", "nocolor")
    for number in range(40):
        loaded.run_cell(f"%%compile --quiet\ndef f{number}():\n    raise ValueError\n\nlast = 1")
    assert len(cell_sources._READ) <= cell_sources._MOST_READ
    capsys.readouterr()
    for name in ("f0", "f39"):
        loaded.run_cell(f"{name}()")
        assert "----> 3     raise ValueError" in capsys.readouterr().out
