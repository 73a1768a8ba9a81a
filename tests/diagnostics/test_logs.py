"""logs: each name tells on the user's lines, through logging, and nothing when it is off."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import jitmagic
from jitmagic.diagnostics.logs import NAMES, logs_of_environment
from jitmagic.records import watchers
from tests.processes import run_python


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    yield
    jitmagic.logs(None)


def program(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    y = x * 2
    print(end="")
    return torch.sort(y.sum(-1) + n).values


def heard(names: str, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    caplog.clear()
    jitmagic.logs(names)
    tagged = jitmagic.jit(program)
    with caplog.at_level(logging.INFO, "jitmagic"):
        for size in (3, 4):
            x = torch.ones(size, 5, requires_grad=True)
            tagged(x).sum().backward()
    return list(caplog.records)


SAID = {
    "graph_breaks": ("print", 'print(end="")'),
    "recompiles": ("variant 2, not 1: x.shape is (4, 5), was (3, 5) (to stop it:", "y = x * 2"),
    "guards": ("x: float32[3, 5] cpu", "y = x * 2"),
    "graph_code": ("def forward", ""),
    "aot_graphs": ("backward:\n", ""),
    "fusions": ("fused: ", ""),
    "perf_hints": ("sort", ""),
    "kernels": ("#include", ""),
}


@pytest.mark.parametrize("name", NAMES)
def test_each_name_tells_what_it_is_about(name: str, caplog: pytest.LogCaptureFixture) -> None:
    words, line = SAID[name]
    records = heard(name, caplog)
    assert {record.name for record in records} == {f"jitmagic.{name}"}
    assert {record.levelno for record in records} == {logging.INFO}
    [first, *_] = [record for record in records if words in record.getMessage()]
    if line:
        text = Path(first.pathname).read_text().splitlines()[first.lineno - 1]
        assert text.strip() == line


def test_nothing_is_told_when_it_is_off(caplog: pytest.LogCaptureFixture) -> None:
    assert jitmagic.logs("output_code, graph_breaks") == {"kernels", "graph_breaks"}
    before = len(watchers)
    assert jitmagic.logs("") == frozenset()
    assert len(watchers) == before - 1
    assert heard("", caplog) == []


def test_all_is_everything() -> None:
    assert jitmagic.logs("all") == set(NAMES)


def test_an_unknown_name_is_refused_and_changes_nothing() -> None:
    jitmagic.logs("guards")
    with pytest.raises(jitmagic.OptionError, match="did you mean 'recompiles'"):
        jitmagic.logs("recompile")
    assert jitmagic.logs("guards") == {"guards"}


def test_the_environment_asks_and_what_it_misspells_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs_of_environment("guards,kernel")
    assert "no log 'kernel'" in caplog.text


def test_a_script_hears_them_without_setting_logging_up() -> None:
    script = (
        "import os; os.environ['JITMAGIC_LOGS'] = 'graph_breaks'\n"
        "import torch, jitmagic\n"
        "@jitmagic.jit(backend='eager')\n"
        "def f(x):\n    x = x + 1\n    print('seen')\n    return x * 2\n"
        "f(torch.ones(3))"
    )
    done = run_python(script)
    assert done.stdout == "seen\n"
    assert "[jitmagic.graph_breaks] <string>:6: f:" in done.stderr
