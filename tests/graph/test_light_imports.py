"""The first use of an ordinary operation imports neither sympy nor torch._dynamo."""

from __future__ import annotations

from tests.processes import run_forked


def test_no_family_of_operations_imports_sympy() -> None:
    child = run_forked("from tests.graph.families import main; main()")
    assert (child.returncode, child.stdout) == (0, ""), child.stderr
