"""Programs of torch.distributed (tests/ecosystem/with_distributed.py) on one and on two processes.

On one process the group is gloo's, or a fake one of two ranks; on two processes it is gloo's.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from ...processes import ROOT, child_environment, run_forked

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch has no distributed package"
)
# torch.compile breaks there too: the function scatters a tensor when it is called.
BREAKS = "distribute_tensor", "product"
CODE = """
    import sys
    from tests.ecosystem.case import load
    from tests.ecosystem.examine import examine

    for case in load("distributed"):
        row = examine(case, sys.argv[1], rival=False)
        is_one = not row.ours.breaks and row.ours.graphs == 1
        if row.wrong or not (is_one or any(word in case.title for word in BREAKS)):
            print(case.title, row.wrong, row.ours)
    print("done")
"""


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_programs_on_one_process_are_one_graph(backend: str) -> None:
    code = textwrap.dedent(CODE).replace("BREAKS", repr(BREAKS))
    done = run_forked(code, backend)
    assert done.stdout == "done\n", done.stdout + done.stderr


def test_programs_on_two_processes_are_one_graph(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.programs.subclasses.on_two_ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)],
            cwd=ROOT,
            env=child_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(timeout=240)[0] for rank in ranks]
    for text in texts:
        assert "done" in text.splitlines(), text
        assert "wrong:" not in text, text
        counts = [line for line in text.splitlines() if " graphs, " in line]
        assert len(counts) > 20
        for line in counts:
            assert ": 1 graphs, 0 breaks" in line or any(word in line for word in BREAKS), line
