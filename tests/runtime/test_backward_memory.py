"""A backward without retain_graph frees what was saved as it runs, as eager's nodes do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import jitmagic
from tests.programs.counts import counts_of

LAYERS, SIZE = 6, 64
saved: list[StorageWeakRef] = []  # results of layers
alive: list[int] = []  # of these, whenever the backward comes by


@torch.library.custom_op("jitmagic_tests::watched", mutates_args=())
def watched(x: Tensor) -> Tensor:
    made = x.clone()
    saved.append(StorageWeakRef(made.untyped_storage()))
    return made


@torch.library.custom_op("jitmagic_tests::watched_back", mutates_args=())
def watched_back(x: Tensor) -> Tensor:
    alive.append(sum(not one.expired() for one in saved))
    return x.clone()


watched.register_fake(torch.empty_like)
watched_back.register_fake(torch.empty_like)
watched.register_autograd(lambda ctx, grad: watched_back(grad))


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    saved.clear()
    alive.clear()


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        x = watched(torch.mm(x, w).sin())
    return x


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(SIZE, SIZE) / SIZE**0.5 for _ in range(LAYERS + 1)]
    return [x.requires_grad_() for x in made]


@pytest.mark.parametrize("retains", [False, True])
def test_saved_tensors_are_freed_on_the_way(retains: bool) -> None:
    fn, given = jitmagic.jit(layers), inputs()
    loss = fn(*given).sum()
    found = torch.autograd.grad(loss, given, retain_graph=retains)
    assert counts_of(fn).graphs == 1
    # The result of the last layer is not saved. What the first `mm` of a layer reads is dead then.
    freed = [*range(LAYERS - 1, -1, -1)]
    assert alive == ([LAYERS - 1] * LAYERS if retains else freed)
    torch.testing.assert_close(found, torch.autograd.grad(layers(*given).sum(), given))


def test_none_is_freed_with_retain_graph() -> None:
    fn, given = jitmagic.jit(layers), inputs()
    out = fn(*given).sum()
    first = torch.autograd.grad(out, given, retain_graph=True)
    second = torch.autograd.grad(out, given)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, given)
    torch.testing.assert_close(first, torch.autograd.grad(layers(*given).sum(), given))


def test_tensors_that_the_user_holds_stay() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.mm(x, w).exp()  # saved, and a result
        return torch.mm(y, w).sum(), y

    x, w = inputs()[:2]
    total, kept = jitmagic.jit(fn)(x / SIZE, w / SIZE)
    before = kept.detach().clone()
    total.backward()
    assert torch.equal(kept, before)


def test_an_error_in_the_backward_leaves_no_half_freed_graph() -> None:
    def fn(x: Tensor, index: Tensor) -> Tensor:
        return torch.mm(x, x).sin()[index].exp()

    x, index = inputs()[0], torch.arange(3)
    for call in (fn, jitmagic.jit(fn)):
        out = call(x / SIZE, index)
        with pytest.raises(RuntimeError):
            out.backward(torch.ones(7, SIZE))
        out.sum().backward()
        x.grad = None
