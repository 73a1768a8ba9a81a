"""Overlapping writes are refused where their result depends on the kernel's order, accepted
otherwise.
"""

from __future__ import annotations

import pytest
import torch

from jitmagic.graph.operators.overlap import why_order_matters

X = torch.empty(4, 6, device="meta")
WINDOW = torch.empty(12, device="meta").as_strided((4, 6), (1, 1))
SQUARE = torch.empty(4, 4, device="meta")
HARMLESS = {
    "itself": ("add_", (X, X)),
    "a product, of one matrix twice": ("addmm_", (SQUARE[:2, :2], SQUARE[2:, 2:], SQUARE[2:, 2:])),
    "halves": ("copy_", (X[:2], X[2:])),
    "columns that interleave": ("copy_", (X[:, ::2], X[:, 1::2])),
    "another storage": ("add_", (X, torch.empty_like(X))),
    "one row to another": ("setitem", (X, 0, X[-1])),
    "the part just read": ("setitem", (X, slice(1, None), X[1:])),
    "two tensors of a list": ("_foreach_add_", ([X[0], X[1]], 1)),
}
HARMFUL = {
    "shifted": ("copy_", (X[1:], X[:-1])),
    "an element of its own": ("add_", (X.diagonal(), X[0, 0])),
    "a transpose": ("copy_", (X[:, :4], X[:, :4].t())),
    "a sliding window": ("add_", (WINDOW, 1)),
    "an expanded row": ("add_", (X[:1].expand(4, 6), 1)),
    "a row among the written": ("setitem", (X, slice(0, 2), X[0])),
    "another element size": ("copy_", (X.view(torch.int16)[0], X[0])),
    "one tensor twice in a list": ("_foreach_add_", ([X, X], 1)),
    "a product of its own": ("addmm_", (SQUARE, SQUARE, torch.empty_like(SQUARE))),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_plain_changes_of_values(case: str) -> None:
    name, args = HARMLESS[case]
    written = args[0] if isinstance(args[0], list) else [args[0]]
    assert why_order_matters(name, args, {}, written) is None


@pytest.mark.parametrize("case", HARMFUL)
def test_overlapping_writes_are_refused(case: str) -> None:
    name, args = HARMFUL[case]
    written = args[0] if isinstance(args[0], list) else [args[0]]
    assert why_order_matters(name, args, {}, written) is not None


@pytest.mark.parametrize(("name", "harmful"), [("mul", False), ("mm", True), ("cumsum", True)])
def test_out_that_overlaps_an_operand_is_refused(name: str, harmful: bool) -> None:
    """`out=`: a kernel that reads on while it writes gives what its own order makes of that."""
    found = why_order_matters(name, (SQUARE, SQUARE), {"out": SQUARE}, [SQUARE])
    assert (found is not None) is harmful


def test_calls_that_do_not_write_are_not_checked() -> None:
    assert why_order_matters("add", (X[1:], X[:-1]), {}, []) is None
