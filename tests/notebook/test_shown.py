"""Output that a notebook shows by itself, in a real kernel: lines, errors, cards, reports."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .test_same_as_plain import SETUP, run_cells

CELLS = {
    "inlined": "%%compile\ndef step(x):\n    return x * 2 + 1\nz = step(x)",
    "card": "jitmagic.status(step)",
    "noisy": "%%compile\ndef noisy(x):\n    y = x * 2\n    print('between')\n    return y.sin()\n"
    "z = noisy(x)",
    "ledger": "jitmagic.status(noisy).cards[0].variants[0].called_from",
    "generator": "%%compile\ndef gen(x):\n    yield x * 2\nv = list(gen(x))",
    "module": "%%compile\ndef builds(x):\n    return torch.nn.Linear(8, 2)(x).sum()\nv = builds(x)",
    "class": "%%compile\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
    "        super().__init__()\n        self.lin = torch.nn.Linear(8, 2)\n"
    "    def forward(self, x):\n        return self.lin(x).relu()\n"
    "net = Net()\nout = net(x).sum()\nout.backward()",
    "raises": "%%compile --explain\ndef raises(x):\n    y = x * 2\n    print('before')\n"
    "    raise ValueError('of the user')\nraises(x)",
    "again": "%tb",
    "later": "1 / 0",
    "unsupported": "%%compile --fullgraph\ndef f(x):\n    print(x)\n    return x\nf(torch.ones(2))",
    "option": "@jitmagic.jit(options={'recompile_limits': 4})\ndef g(x):\n    return x",
    "tagging": "\njitmagic.jit(1)",
    "stage": "jitmagic.lower(step)(x).as_text('ccp')",
    "question": "jitmagic.passport(step, x)",
    "untagged": "jitmagic.why(len)(x)",
    "awaits": "%%compile\nimport asyncio\nawait asyncio.sleep(0)\nawait asyncio.gather(1)",
    "plain module": "%%compile\nimport math\nmath.sqrt(-1)",
}


@pytest.fixture(scope="module")
def cells() -> dict[str, Any]:
    return dict(
        zip(CELLS, run_cells([f"{SETUP}\nx = torch.ones(8)", *CELLS.values()])[1:], strict=True)
    )


def displayed(cell: Any) -> list[str]:
    return [o.data["text/plain"] for o in cell.outputs if o.get("data")]


def traceback(cell: Any) -> str:
    (error,) = [o for o in cell.outputs if o.output_type == "error"]
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))


def marked(cell: Any) -> list[str]:
    """The lines that a traceback points at."""
    return [line.strip() for line in re.findall(r"^-+> \d+(.*)$", traceback(cell), re.MULTILINE)]


@pytest.mark.parametrize(
    ("name", "lines"),
    {
        "raises": ["raises(x)", "raise ValueError('of the user')"],
        "again": ["raises(x)", "raise ValueError('of the user')"],
        "later": ["1 / 0"],
        "unsupported": ["print(x)"],
        "plain module": ["math.sqrt(-1)"],
    }.items(),
)
def test_an_error_begins_on_the_users_line(
    cells: dict[str, Any], name: str, lines: list[str]
) -> None:
    assert marked(cells[name]) == lines
    assert "skipping hidden" not in traceback(cells[name])


def test_an_error_after_an_await_begins_on_the_users_line(cells: dict[str, Any]) -> None:
    assert marked(cells["awaits"])[0] == "await asyncio.gather(1)"


@pytest.mark.parametrize("name", ["option", "tagging", "stage", "question", "untagged"])
def test_jitmagic_errors_show_only_the_users_frame(cells: dict[str, Any], name: str) -> None:
    (line,) = marked(cells[name])
    assert line.startswith(("jitmagic.", "@jitmagic.jit("))
    assert "jitmagic/" not in traceback(cells[name])


def test_misspelt_option_suggests_the_nearest(cells: dict[str, Any]) -> None:
    assert "did you mean 'recompile_limit'?" in traceback(cells["option"])
    assert "no stage 'ccp' (did you mean 'cpp'?); known: torch," in traceback(cells["stage"])


def test_no_error_output_without_an_error(cells: dict[str, Any]) -> None:
    told = [o.text for c in cells.values() for o in c.outputs if o.get("name") == "stderr"]
    assert told == []


def test_a_break_is_one_dim_line_on_the_source(cells: dict[str, Any]) -> None:
    (told,) = [text for text in displayed(cells["noisy"]) if "plain Python" in text]
    assert "jitmagic: noisy runs partly as plain Python: Cell In[" in told
    assert "(more: %%compile --explain; to hide this: %%compile --quiet)" in told
    assert "], line 4, in noisy: `print('between')` print() writes" in told


@pytest.mark.parametrize("name", ["module", "class"])
def test_creating_a_module_shows_no_message(cells: dict[str, Any], name: str) -> None:
    assert not [text for text in displayed(cells[name]) if "plain Python" in text]


def test_a_generator_is_compiled(cells: dict[str, Any]) -> None:
    assert displayed(cells["generator"])[-1].startswith("compiled gen as part of this cell")


def test_the_line_names_what_was_compiled(cells: dict[str, Any]) -> None:
    line = displayed(cells["inlined"])[-1]
    assert re.fullmatch(r"compiled step as part of this cell in .+: 1 graph, 1 kernel", line)
    assert re.match(r"compiled noisy in .+: 2 graphs, 2 kernels$", displayed(cells["noisy"])[-1])
    assert displayed(cells["card"]) == ["step: compiled as part of a cell"]


def test_the_ledger_names_the_line_of_the_cell_that_called(cells: dict[str, Any]) -> None:
    (where,) = displayed(cells["ledger"])
    assert re.search(r"lineno=6\b", where), where


def test_the_report_is_there_when_the_cell_raises(cells: dict[str, Any]) -> None:
    reports = [text for text in displayed(cells["raises"]) if " is not measured yet" in text]
    assert len(reports) == 1  # the cell's top level has no graph of its own
    assert "graph break: print() writes output" in reports[0]
