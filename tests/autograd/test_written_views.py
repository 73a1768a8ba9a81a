"""Views taken after a write to a tensor with gaps between its elements: they lie in its memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "padded": lambda x: x[..., :2],
    "every other": lambda x: x[:, ::2, ::3],
    "padded and turned": lambda x: x[..., 1:3].transpose(0, 1),
    "gaps in the middle": lambda x: x[:, :2, 2:4],
    "one row": lambda x: x[1, :2, ::2].unsqueeze(0),
}
VIEWS: dict[str, Callable[[Tensor], object]] = {
    "unflatten": lambda x: x.unflatten(-1, (-1, 1)),
    "slice": lambda x: x[:1],
    "select": lambda x: x[..., 1],
    "unsqueeze": lambda x: x.unsqueeze(1),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1)[1:],
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "detach": lambda x: x.detach(),
    "split": lambda x: x.split(1, 2),
    "unbind": lambda x: x.unbind(2),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1),
    "reshape": lambda x: x.reshape(-1),
    "reshape of a view": lambda x: x[:1].reshape(-1),
    "contiguous": lambda x: x.contiguous(),
    "itself and a view": lambda x: (x, x[:1], x.mT),
    "written through": lambda x: x[:1].mul_(3),
    "written twice": lambda x: (x.mT[..., :1].add_(1), x[..., 1].sub_(2)),
    "clone of a view": lambda x: x.mT.clone(),
    "pointwise": lambda x: x[..., :1] * 2,
}


def outcome(run: Callable[..., object], layout: str) -> list[object]:
    """Values, strides and places of results, before and after a write to the input."""
    base = torch.arange(72.0).reshape(3, 4, 6)
    x = LAYOUTS[layout](base)
    made = run(x)
    tensors = [t for t in (made if isinstance(made, tuple) else (made,)) if isinstance(t, Tensor)]
    assert tensors
    facts: list[object] = [base.clone()]
    for t in tensors:
        shared = t.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        facts += [t.clone(), t.stride(), shared, t.storage_offset() if shared else 0]
    base.mul_(-1)
    return [*facts, *(t.clone() for t in tensors)]


def assert_same(ours: list[object], eager: list[object]) -> None:
    assert len(ours) == len(eager)
    for a, b in zip(ours, eager, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b, (a, b)


@covered(layout=LAYOUTS, view=VIEWS, backend=["native", "aot_eager"])
def test_views_of_written_inputs(layout: str, view: str, backend: str) -> None:
    def run(x: Tensor) -> object:
        x.mul_(2).add_(1)
        return VIEWS[view](x)

    compiled = jitmagic.jit(run, backend=backend)
    assert_same(outcome(compiled, layout), outcome(run, layout))


@pytest.mark.parametrize("view", ["slice", "transpose", "reshape of a view", "written through"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_their_gradients(layout: str, view: str) -> None:
    def run(x: Tensor) -> Tensor:
        x.mul_(2)
        made = VIEWS[view](x)
        assert isinstance(made, Tensor)
        return made

    def gradient(f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        leaf = torch.arange(72.0).reshape(3, 4, 6).requires_grad_()
        out = f(LAYOUTS[layout](leaf * 1))
        (out * out.detach().cos()).sum().backward()
        assert leaf.grad is not None
        return out.detach(), leaf.grad, out.stride()

    ours, eager = gradient(jitmagic.jit(run)), gradient(run)
    torch.testing.assert_close(ours[0], eager[0])
    torch.testing.assert_close(ours[1], eager[1])
    assert ours[2] == eager[2]


@pytest.mark.parametrize("layout", [(1, 0), (1, 1)], ids=["expanded", "overlapping"])
def test_a_relabelled_view_of_an_input_is_read_again_behind_a_write(
    layout: tuple[int, int],
) -> None:
    """The program writes to the input itself, not a constant, at one size and at any."""

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        view = x.as_strided((x.shape[0] - 1, 2), layout)
        x[0] = 3
        return y * 2, view

    compiled = jitmagic.jit(run, options={"on_error": "raise"})
    for n in (2, 9, 2, 5):
        ours, theirs, y = torch.arange(3.0), torch.arange(3.0), torch.randn(n, requires_grad=True)
        (a, view), (b, expected) = compiled(ours, y), run(theirs, y)
        assert torch.equal(a, b) and torch.equal(view, expected)
        assert view.stride() == expected.stride() and view._base is ours
