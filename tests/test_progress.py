"""The progress line: on a terminal, gone at the end, never in what is captured."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys

import pytest

from jitmagic.progress import AFTER, Progress
from jitmagic.records import Journal, Recording, RunningStage

from .processes import child_environment

SLOW = """\
import time, torch, jitmagic
def slow(gm, inputs):
    time.sleep(1.0)
    return gm.forward
"""


def screen(text: str) -> list[str]:
    """The rows that a terminal shows after `text`."""
    rows = [""]
    column = 0
    for character in text.replace("\r\n", "\n"):
        if character == "\n":
            rows.append("")
            column = 0
        elif character == "\r":
            column = 0
        else:
            rows[-1] = rows[-1][:column].ljust(column) + character + rows[-1][column + 1 :]
            column += 1
    return [row.rstrip() for row in rows]


def on_terminal(script: str) -> tuple[str, str]:
    """(stdout through a pipe, stderr through a terminal) of a process."""
    master, slave = pty.openpty()
    command = [sys.executable, "-c", script]
    env = child_environment(JITMAGIC_VERIFY="0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, env=env) as process:
        os.close(slave)
        seen = bytearray()
        while True:
            ready, _, _ = select.select([master], [], [], 120)
            try:
                piece = os.read(master, 4096) if ready else b""
            except OSError:  # the other side was closed
                piece = b""
            if not piece:
                break
            seen += piece
        assert process.stdout is not None
        out = process.stdout.read().decode()
    os.close(master)
    assert process.returncode == 0, seen.decode()
    return out, seen.decode()


def test_it_appears_on_a_terminal_and_vanishes() -> None:
    script = f"{SLOW}\n@jitmagic.jit(backend=slow)\ndef f(x):\n    return x + 1\n"
    script += "x = torch.ones(2)\nprint(f(x).tolist())\nprint(f(x).tolist())\n"
    out, err = on_terminal(script)
    assert out == "[2.0, 2.0]\n[2.0, 2.0]\n"
    lines = re.findall(r"jitmagic: compiling f: backend \((\d+\.\d) s\)", err)
    assert len(set(lines)) >= 2  # it goes on telling the time
    assert screen(err) == [""]


def test_a_quick_compile_is_silent() -> None:
    script = "import torch, jitmagic\nfrom jitmagic import api\napi.load_pipeline()\n"
    script += "from jitmagic import progress\nprogress.AFTER = 60.0\n"
    script += "print(jitmagic.jit(lambda x: x + 1, backend='eager')(torch.ones(1)).item())\n"
    assert on_terminal(script) == ("2.0\n", "")


def test_what_a_function_prints_and_warns_stays_readable() -> None:
    warns = SLOW.replace(
        "    return", "    import warnings; warnings.warn('look here')\n    return"
    )
    script = (
        f"{warns}\n@jitmagic.jit(backend=slow)\ndef f(x):\n    print('in f')\n    return x + 1\n"
    )
    script += "f(torch.ones(2))\n"
    out, err = on_terminal(script)
    assert out == "in f\n"
    assert "jitmagic: compiling f: backend" in err
    rows = screen(err)
    assert sum("UserWarning: look here" in row for row in rows) == 1
    assert rows[-1] == ""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal() -> _Terminal:
    return _Terminal()


def test_short_stages_in_a_row_are_one_wait(terminal: _Terminal) -> None:
    clock = _Clock()
    line, record = Progress(clock, lambda: terminal), Recording("f", Journal())
    for number in range(4):
        stage = RunningStage(f"stage{number}")
        line(record, stage, True)
        clock.now += AFTER / 1.9
        line(record, stage, False)
    text = terminal.getvalue()
    assert "stage1" not in text
    assert "compiling f: stage2 (0.3 s)" in text
    assert screen(text) == [""]


def test_a_stage_of_a_wait_switches_no_thread(terminal: _Terminal, monkeypatch) -> None:
    line, record, told = Progress(_Clock(), lambda: terminal), Recording("f", Journal()), []
    notify = line._changed.notify
    monkeypatch.setattr(line._changed, "notify", lambda: (told.append(1), notify()))
    for _ in range(300):
        stage = RunningStage("stage")
        line(record, stage, True)
        line(record, stage, False)
    assert len(told) < 10  # the ticker may find nothing open, and is told of the next stage


def test_after_a_pause_the_wait_begins_anew(terminal: _Terminal) -> None:
    clock = _Clock()
    line, record = Progress(clock, lambda: terminal), Recording("f", Journal())
    for _ in range(4):
        stage = RunningStage("stage")
        line(record, stage, True)
        clock.now += AFTER / 1.9
        line(record, stage, False)
        clock.now += 10
    assert terminal.getvalue() == ""


def test_details_and_width(terminal: _Terminal) -> None:
    clock = _Clock()
    line, record = Progress(clock, lambda: terminal), Recording("f" * 200, Journal())
    outer, inner = RunningStage("outer", detail="3 of 7"), RunningStage("inner")
    line(record, outer, True)
    clock.now += 1
    line(Recording("g", Journal()), inner, True)
    assert "compiling g: inner (1.0 s)" in terminal.getvalue()
    line(record, inner, False)  # the outer one speaks again, cut to what fits on a row
    (row,) = screen(terminal.getvalue())
    assert row.startswith("jitmagic: compiling ffff")
    assert len(row) < 100
    line(record, outer, False)
    assert screen(terminal.getvalue()) == [""]


def test_a_broken_terminal_breaks_no_compile(terminal: _Terminal, monkeypatch) -> None:
    def write(text: str) -> int:
        raise OSError("gone")

    monkeypatch.setattr(terminal, "write", write)
    clock = _Clock()
    line, record, stage = (
        Progress(clock, lambda: terminal),
        Recording("f", Journal()),
        RunningStage("stage"),
    )
    clock.now += 1
    line(record, stage, True)
    clock.now += 1
    line(record, RunningStage("more"), True)
    line(record, stage, False)
    assert line._shown == 0


def test_files_and_captured_streams_stay_clean(capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    line, record, stage = Progress(clock), Recording("f", Journal()), RunningStage("stage")
    line(record, stage, True)
    clock.now += 5
    line(record, RunningStage("more"), True)
    assert capsys.readouterr() == ("", "")
    clock.now += 5
    Progress(clock, lambda: None)(record, stage, True)


def test_an_interrupted_stage_is_closed(terminal: _Terminal, monkeypatch) -> None:
    clock = _Clock()
    line, record = Progress(clock, lambda: terminal), Recording("f", Journal())

    def interrupt(*event: object) -> None:
        if event[2]:
            raise KeyboardInterrupt

    monkeypatch.setattr("jitmagic.records.watchers", [line, interrupt])
    with pytest.raises(KeyboardInterrupt), record.stage("load"):
        raise AssertionError
    assert line._open == []
