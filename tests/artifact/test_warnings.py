"""A process that finds an entry on disk shows the warnings of its calls, as eager does."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from jitmagic.call_warnings import warning_always
from tests.processes import run_forked

HELPER = """
import torch.nn.functional as F

def softmax(x):
    return F.softmax(x)
"""
PROGRAM = """
import torch
import torch.nn.functional as F
import helper

def guessed(x):
    return F.softmax(x) * 2

def in_helper(x):
    return helper.softmax(x * 2) + 1

def once(x):
    return x[None].T + 1

def once_more(x):
    return x[None].T + 2

def twice_the_same(x):
    return F.softmax(x) * F.softmax(x + 1)

def after_a_break(x):
    y = F.softmax(x)
    print("broken")
    return F.mse_loss(y, x[:1])

def broadcast(x):
    return F.mse_loss(x, x[:1])
"""
RUN = """
import json, sys, warnings
sys.path.insert(0, sys.argv[2])
import torch, jitmagic
names, how, action, rows = json.loads(sys.argv[1])
import program
assert program.__file__.startswith(sys.argv[2])
dynamic = True if how == "dynamic" else None
shown, traced = [], False
for name in names:
    run = getattr(program, name.strip("!"))
    if how != "eager" and "!" not in name:
        run = jitmagic.jit(run, dynamic=dynamic, options={"cpu_tier": "aten"})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        try:
            run(torch.arange(8.0 * rows).view(-1, 8))
        except UserWarning as error:
            shown.append(["raised", str(error)])
    if "!" not in name:
        shown += [[str(w.message), w.filename, w.lineno] for w in seen]
        handles = [] if how == "eager" else [jitmagic.api.handle_of(run)]
        traced |= any(s.stage == "trace" for h in handles for r in h.journal for s in r.stages)
print("shown", json.dumps([shown, traced]))
"""


class Processes:
    """Fresh processes with the same programs and the same cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM)
        (folder / "helper.py").write_text(HELPER)

    def run(
        self, *names: str, how: str = "compiled", action: str = "default", rows: int = 2
    ) -> tuple[list[Any], bool]:
        """Run functions, those with a "!" as eager and unheard; return the warnings, and whether
        something was traced.
        """
        given = json.dumps([names, how, action, rows])
        variables = {"JITMAGIC_PERSIST": "1", "JITMAGIC_CACHE_DIR": str(self.folder / "cache")}
        done = run_forked(RUN, given, str(self.folder), folder=self.folder, **variables)
        assert done.returncode == 0, done.stderr[-3000:]
        shown, traced = json.loads(done.stdout.rpartition("shown ")[2])
        return shown, traced


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


PROGRAMS = ["guessed", "in_helper", "once", "twice_the_same", "after_a_break"]


def test_a_found_entry_warns_as_eager(processes: Processes) -> None:
    eager, _ = processes.run(*PROGRAMS, how="eager")
    assert len(eager) == 6
    assert processes.run(*PROGRAMS) == (eager, True)
    assert processes.run(*PROGRAMS) == (eager, False)


def test_filters_are_those_of_the_process(processes: Processes) -> None:
    eager, _ = processes.run("guessed", how="eager")
    assert processes.run("guessed", action="ignore") == ([], True)
    assert processes.run("guessed") == (eager, False)
    ((_, text),) = processes.run("guessed", how="eager", action="error")[0]
    assert processes.run("guessed", action="error") == ([["raised", text]], True)


def test_what_torch_warns_of_once_is_shown_once(processes: Processes) -> None:
    """Also if the process that compiled had shown it before."""
    eager, _ = processes.run("once", "once_more", how="eager")
    assert len(eager) == 1
    assert processes.run("once!", "once", "once_more") == ([], True)
    assert processes.run("once", "once_more") == (eager, False)


def test_a_text_that_names_varying_sizes_is_not_kept(processes: Processes) -> None:
    for rows in (5, 7):
        eager, _ = processes.run("broadcast", how="eager", rows=rows)
        assert f"[{rows}, 8]" in eager[0][0]
        assert processes.run("broadcast", how="dynamic", rows=rows) == (eager, True)


def test_threads_leave_torchs_flag_as_it_was():
    def flip():
        for _ in range(2000):
            with warning_always(True), warning_always(False):
                pass

    threads = [threading.Thread(target=flip) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torch.is_warn_always_enabled()
