"""Explain shows the user's Triton kernels with their lines."""

from __future__ import annotations

import pytest

from tests.processes import run_python

pytest.importorskip("triton")


def test_explain_names_the_kernel_and_its_line() -> None:
    done = run_python(
        """
        import torch, jitmagic
        from tests.programs.triton_kernels.programs import between_pointwise, rows

        compiled = jitmagic.jit(between_pointwise)
        found = jitmagic.explain(compiled)(rows(50), rows(50))
        assert [call.name for call in found.externs] == ["add_kernel"]
        print(found)
        """,
        TRITON_INTERPRET="1",
    )
    assert "1 graph, no breaks" in done.stdout, done.stderr
    (line,) = [text for text in done.stdout.splitlines() if "add_kernel (your" in text]
    assert "(your Triton kernel)  line" in line
