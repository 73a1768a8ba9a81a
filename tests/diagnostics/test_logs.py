"""logs: each name tells on the user's lines, through logging, and nothing when it is off."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.diagnostics.logs import NAMES, logs_of_environment
from jitmagic.records import watchers
from tests.processes import run_forked


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    yield
    jitmagic.logs(None)


def program(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    y = x * 2
    print(end="")
    return torch.sort(y.sum(-1) + n).values


@pytest.fixture
def heard(logged: Any) -> Iterator[Callable[[str], list[logging.LogRecord]]]:
    """Runs the program while it tells about these names."""

    def run(names: str) -> list[logging.LogRecord]:
        jitmagic.logs(names)
        tagged = jitmagic.jit(program)
        for size in (3, 4):
            x = torch.ones(size, 5, requires_grad=True)
            tagged(x).sum().backward()
        return list(logged.records)

    logger = logging.getLogger("jitmagic")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield run
    logger.setLevel(before)


SAID = {
    "graph_breaks": ("print", 'print(end="")'),
    "recompiles": ("variant 2, not 1: x.shape is (4, 5), was (3, 5) (to stop it:", "y = x * 2"),
    "guards": ("x: float32[3, 5] cpu", "y = x * 2"),
    "graph_code": ("def forward", ""),
    "aot_graphs": ("backward:\n", ""),
    "fusions": ("fused: ", ""),
    "perf_hints": ("sort", ""),
    "kernels": ("#include", ""),
    "cudagraphs": ("forward: no CUDA graph: it runs on cpu", ""),
}


@pytest.mark.parametrize("name", NAMES)
def test_each_log_has_messages_about_its_subject(name: str, heard: Callable[[str], Any]) -> None:
    words, line = SAID[name]
    records = heard(name)
    assert {record.name for record in records} == {f"jitmagic.{name}"}
    assert {record.levelno for record in records} == {logging.INFO}
    [first, *_] = [record for record in records if words in record.getMessage()]
    if line:
        text = Path(first.pathname).read_text().splitlines()[first.lineno - 1]
        assert text.strip() == line


def test_no_messages_without_logs(heard: Callable[[str], Any]) -> None:
    assert jitmagic.logs("output_code, graph_breaks") == {"kernels", "graph_breaks"}
    before = len(watchers)
    assert jitmagic.logs("") == frozenset()
    assert len(watchers) == before - 1
    assert heard("") == []


def test_all_is_everything() -> None:
    assert jitmagic.logs("all") == set(NAMES)


def test_names_of_torch_logs_are_accepted() -> None:
    assert jitmagic.logs("+dynamo") == {"graph_breaks", "recompiles", "guards", "graph_code"}
    assert jitmagic.logs("output_code,fusion, inductor") == {"kernels", "fusions", "perf_hints"}
    assert jitmagic.logs("recompiles_verbose,aot") == {"recompiles", "aot_graphs"}


def test_every_name_of_torch_logs_is_accepted(logged: Any) -> None:
    """So that a setting can be copied; what tells nothing here is said."""
    registry: Any = torch._logging._internal.log_registry
    for name in (*registry.log_alias_to_log_qnames, *registry.artifact_names, "torch.fx"):
        assert jitmagic.logs(name) <= set(NAMES)
    assert jitmagic.logs("recompiles, -dynamo") == {"recompiles"}
    logged.records.clear()
    assert jitmagic.logs("graph_code,export,bytecode") == {"graph_code"}
    assert [record.getMessage() for record in logged.records] == [
        "jitmagic has no logs for these names of TORCH_LOGS: export, bytecode"
    ]


_LINE = re.compile(r"V\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [^:]+:\d+\] (\{.*\})")


def traced(path: Path) -> list[tuple[dict[str, Any], str]]:
    """Records and texts, as a tool reads them."""
    found: list[tuple[dict[str, Any], list[str]]] = []
    for line in path.read_text().rstrip("\n").split("\n"):
        if line.startswith("\t"):
            found[-1][1].append(line[1:])
        else:
            match = _LINE.fullmatch(line)
            assert match is not None, line
            found.append((json.loads(match[1]), []))
    return [(record, "\n".join(lines)) for record, lines in found]


def test_a_trace_has_what_each_stage_made(tmp_path: Path) -> None:
    jitmagic.logs(trace=tmp_path / "trace")
    tagged = jitmagic.jit(program)
    for size in (3, 4):
        tagged(torch.ones(size, 5, requires_grad=True)).sum().backward()
    jitmagic.logs(None)
    jitmagic.jit(program)(torch.ones(9))
    [path] = (tmp_path / "trace").iterdir()
    records = traced(path)
    kinds = [kind for record, _ in records for kind in record if kind in SHOWN]
    assert set(kinds) == set(SHOWN)
    for record, text in records:
        assert bool(text) == ("has_payload" in record)
        digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        assert record.get("has_payload", digest) == digest
    told = [(record["artifact"]["name"], text) for record, text in records if "artifact" in record]
    breaks = [text for name, text in told if name == "graph_break of program"]
    missed = [text for name, text in told if name == "recompile_reasons of program"]
    assert all("print() writes output" in text for text in breaks) and len(breaks) == 2
    assert "x.shape is (4, 5), was (3, 5)" in missed[0]
    compiles = {(r["frame_id"], r["frame_compile_id"]) for r, _ in records if "frame_id" in r}
    assert len(compiles) >= 4  # the function and what follows its break, twice
    assert not [w for w in watchers if getattr(w, "__name__", "") == "watch"]


SHOWN = ["dynamo_start", "dynamo_output_graph", "aot_forward_graph", "aot_backward_graph",
         "inductor_output_code", "artifact"]  # fmt: skip


def test_environment_variable_starts_a_trace(tmp_path: Path) -> None:
    script = "import torch, jitmagic\njitmagic.jit(lambda x: x + 1)(torch.ones(3))"
    assert run_forked(script, imported="torch", JITMAGIC_TRACE=str(tmp_path)).returncode == 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".log"]


def test_an_unknown_name_is_refused_and_changes_nothing() -> None:
    jitmagic.logs("guards")
    with pytest.raises(jitmagic.OptionError, match="did you mean 'recompiles'"):
        jitmagic.logs("recompile")
    assert jitmagic.logs("guards") == {"guards"}


def test_unknown_log_in_the_environment_is_a_warning(logged: Any) -> None:
    logs_of_environment("guards,kernel", "")
    [record] = logged.records
    assert "unknown log 'kernel'" in record.getMessage()


def test_logs_are_printed_without_logging_configuration() -> None:
    script = (
        "import os; os.environ['JITMAGIC_LOGS'] = 'graph_breaks'\n"
        "import torch, jitmagic\n"
        "@jitmagic.jit(backend='eager')\n"
        "def f(x):\n    x = x + 1\n    print('seen')\n    return x * 2\n"
        "f(torch.ones(3))"
    )
    done = run_forked(script, imported="torch")
    assert done.stdout == "seen\n"
    assert "[jitmagic.graph_breaks] <string>:6: f:" in done.stderr
