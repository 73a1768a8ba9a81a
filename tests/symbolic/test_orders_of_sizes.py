"""Results with the lesser of two sizes, or of a size and a number: the order is guarded, and a
wrong conjecture of the trace never reaches the user as an error.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of

Program = Callable[[torch.Tensor], torch.Tensor]


def _written(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return torch.diag(x)


PROGRAMS: dict[str, Program] = {
    "diag": lambda x: torch.diag(x),
    "written before": _written,
    "diagonal": lambda x: torch.diagonal(x) * 2,
    "moved diagonal": lambda x: torch.diagonal(x, 1) * 2,
    "singular values": lambda x: torch.linalg.svdvals(x),
    "qr": lambda x: torch.linalg.qr(x)[1].abs(),
    "lu": lambda x: torch.linalg.lu(x)[1],
}
WIDE = [(2, 9), (5, 17), (4, 11), (6, 20)]
BOTH = [(2, 9), (5, 17), (7, 3), (3, 7), (9, 9), (20, 4), (4, 2)]
NARROW = [(9, 4), (11, 4), (3, 4), (4, 4), (2, 4), (30, 4)]


@pytest.mark.filterwarnings("error::jitmagic.errors.FallbackWarning")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shapes", [WIDE, BOTH, NARROW], ids=["wide", "both", "narrow"])
def test_the_lesser_of_two_sizes(name: str, shapes: list[tuple[int, int]]) -> None:
    program = PROGRAMS[name]
    compiled = jitmagic.jit(program)
    for shape in shapes:
        ours = torch.randn(shape)
        eagers = ours.clone()
        torch.testing.assert_close(compiled(ours), program(eagers))
        assert torch.equal(ours, eagers)
    if shapes is WIDE:
        assert len(handle_of(compiled).journal) == 2


@pytest.mark.parametrize("name", ["svdvals", "qr"])
def test_either_order_is_one_variant(name: str) -> None:
    program = PROGRAMS["qr" if name == "qr" else "singular values"]
    compiled = jitmagic.jit(program)
    for shape in BOTH:
        compiled(torch.randn(shape))
    assert len(handle_of(compiled).journal) == 3
