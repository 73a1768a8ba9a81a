"""No entry of a program before an edit serves the program after it."""

from __future__ import annotations

import pytest

from tests.processes import run_forked

from .edits import EDITS

CODE = """
    import sys
    from tests.artifact.edited import outcomes
    from tests.artifact.edits import EDITS
    kind, step = sys.argv[1], int(sys.argv[2])
    found = 0
    for before, after in EDITS[kind][::step]:
        results = outcomes(before, after)
        assert all(one["same"] for one in results), (before, after, results)
        found += not results[1]["traced"]
    print("found", found, "of", len(EDITS[kind][::step]))
"""


@pytest.mark.parametrize("kind", EDITS)
def test_edited_programs_are_compiled_anew(kind):
    done = run_forked(CODE, kind, "9", JITMAGIC_PERSIST="1")
    assert done.returncode == 0, done.stderr[-3000:]
    _, found, _, count = done.stdout.split()
    assert int(found) >= 0.6 * int(count)  # unchanged programs are found, or the test shows nothing
