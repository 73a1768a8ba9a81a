"""Programs of the ecosystem's libraries `subclasses` and `distributed`: as eager, without breaks.

Each library runs in one fresh process: a group of processes is a state of the process, and so are
modes. The distributed programs run on gloo's group of one process and on a fake group of two;
tests/distributed runs them on two processes.
"""

from __future__ import annotations

import textwrap

import pytest
import torch

from ...processes import run_forked

needs_distributed = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch has no distributed package"
)
# torch.compile breaks in these too, or leaves them to eager; it captures "made of arguments", where
# the program makes a leaf that requires grad.
BREAKS = {
    "distributed": ("distribute_tensor", "product"),
    "subclasses": (
        *("attention", "unbind", "transformer layer", "with SGD", "dispatch mode inside"),
        "made of arguments",
    ),
}
CODE = """
    import sys
    from tests.ecosystem.case import load
    from tests.ecosystem.examine import examine

    library, backend, *breaks = sys.argv[1:]
    for case in load(library):
        row = examine(case, backend, rival=False)
        is_whole = row.ours.graphs and not row.ours.breaks
        if row.wrong or not (is_whole or any(word in case.title for word in breaks)):
            print(case.title, row.wrong, row.ours)
    print("done")
"""


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
@pytest.mark.parametrize(
    "library", ["subclasses", pytest.param("distributed", marks=needs_distributed)]
)
def test_programs_have_no_graph_breaks(library: str, backend: str) -> None:
    done = run_forked(textwrap.dedent(CODE), library, backend, *BREAKS[library])
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
    assert done.stdout.count("\n") == 1, done.stdout
