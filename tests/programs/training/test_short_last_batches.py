"""Training over a DataLoader whose last batch is shorter: values and gradients are eager's, no
warning is shown, and two variants serve all batches, for each loss of torch.nn.functional.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED
from tests.covering import covered

CLASSES = 6
Make = Callable[[int], Sequence[Tensor]]


class Loss(NamedTuple):
    """A function of what a linear layer gives and of targets; `targets` makes those of n rows."""

    call: Callable[..., Tensor]
    targets: Make


def classes(n: int) -> Sequence[Tensor]:
    return (torch.randint(CLASSES, (n,)),)


def probabilities(n: int) -> Sequence[Tensor]:
    return (torch.rand(n, CLASSES).softmax(1),)


def numbers(n: int) -> Sequence[Tensor]:
    return (torch.randn(n, CLASSES),)


def bits(n: int) -> Sequence[Tensor]:
    return (torch.randint(2, (n, CLASSES)).float(),)


def signs(n: int) -> Sequence[Tensor]:
    return (torch.randint(2, (n, CLASSES)) * 2 - 1,)


def sign_of_rows(n: int) -> Sequence[Tensor]:
    return (torch.randn(n, CLASSES), torch.randint(2, (n,)) * 2 - 1)


def pairs(n: int) -> Sequence[Tensor]:
    return (torch.randn(n, CLASSES), torch.randn(n, CLASSES))


def counts(n: int) -> Sequence[Tensor]:
    return (torch.randint(5, (n, CLASSES)).float(),)


def sequences(n: int) -> Sequence[Tensor]:
    return (torch.randint(1, CLASSES, (n, 3)), torch.full((n,), 8), torch.randint(1, 4, (n,)))


def of_steps(out: Tensor, targets: Tensor, lengths: Tensor, expected: Tensor) -> Tensor:
    steps = out[None] * torch.arange(1, 9, dtype=out.dtype)[:, None, None]
    return F.ctc_loss(steps.log_softmax(2), targets, lengths, expected)


WEIGHT = torch.arange(1.0, CLASSES + 1)
LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(F.cross_entropy, classes),
    "label smoothing": Loss(
        lambda out, y: F.cross_entropy(out, y, WEIGHT.to(out), label_smoothing=0.1), classes
    ),
    "ignored class": Loss(lambda out, y: F.cross_entropy(out, y, ignore_index=2), classes),
    "probabilities": Loss(F.cross_entropy, probabilities),
    "a sum of classes": Loss(lambda out, y: F.cross_entropy(out, y, reduction="sum"), classes),
    "each row's": Loss(
        lambda out, y: F.cross_entropy(out, y, reduction="none").mean(), classes
    ),
    "nll_loss": Loss(lambda out, y: F.nll_loss(out.log_softmax(1), y), classes),
    "binary_cross_entropy": Loss(lambda out, y: F.binary_cross_entropy(out.sigmoid(), y), bits),
    "with logits": Loss(F.binary_cross_entropy_with_logits, bits),
    "weighted logits": Loss(
        lambda out, y: F.binary_cross_entropy_with_logits(out, y, pos_weight=WEIGHT.to(out)), bits
    ),
    "mse_loss": Loss(F.mse_loss, numbers),
    "l1_loss": Loss(F.l1_loss, numbers),
    "smooth_l1_loss": Loss(F.smooth_l1_loss, numbers),
    "huber_loss": Loss(F.huber_loss, numbers),
    "kl_div": Loss(
        lambda out, y: F.kl_div(out.log_softmax(1), y, reduction="batchmean"), probabilities
    ),
    "gaussian_nll_loss": Loss(
        lambda out, y: F.gaussian_nll_loss(out, y, out.square() + 0.1), numbers
    ),
    "poisson_nll_loss": Loss(F.poisson_nll_loss, counts),
    "soft_margin_loss": Loss(F.soft_margin_loss, signs),
    "multi_margin_loss": Loss(F.multi_margin_loss, classes),
    "multilabel_margin_loss": Loss(
        lambda out, y: F.multilabel_margin_loss(out, y.argsort(1)), numbers
    ),
    "multilabel_soft_margin_loss": Loss(F.multilabel_soft_margin_loss, bits),
    "hinge_embedding_loss": Loss(F.hinge_embedding_loss, signs),
    "cosine_embedding_loss": Loss(F.cosine_embedding_loss, sign_of_rows),
    "margin_ranking_loss": Loss(
        lambda out, other, y: F.margin_ranking_loss(out[:, 0], other[:, 0], y), sign_of_rows
    ),
    "triplet_margin_loss": Loss(F.triplet_margin_loss, pairs),
    "with distance": Loss(
        lambda out, a, b: F.triplet_margin_with_distance_loss(
            out, a, b, distance_function=lambda x, y: 1 - F.cosine_similarity(x, y)
        ),
        pairs,
    ),
    "ctc_loss": Loss(of_steps, sequences),
}  # fmt: skip


def same(found: Tensor | None, wanted: Tensor | None, exact: Tensor | None) -> None:
    """Near the float64 result, compared with what eager's roundings make of the largest number."""
    assert (found is None) == (wanted is None)
    if found is None or wanted is None or exact is None:
        return
    for name in ("shape", "dtype", "requires_grad", "is_leaf"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert found.stride() == wanted.stride()
    errors = [(tensor - exact).abs().max().item() for tensor in (found, wanted)]
    assert errors[0] <= 4 * errors[1] + 1e-6 * (1 + exact.abs().max().item())


def batches(rows: int, size: int, targets: Make) -> DataLoader[Any]:
    torch.manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(rows, 8), *targets(rows)), batch_size=size)


@covered(name=LOSSES, resets=("to None", "in place", "never"), inside=(True, False), last=(5, 1))
def test_last_batch_is_shorter(name: str, resets: str, inside: bool, last: int) -> None:
    call, targets = LOSSES[name]

    def step(model: nn.Module, x: Tensor, *given: Tensor) -> Tensor:
        loss = call(model(x), *given)
        if inside:
            loss.backward()
        return loss

    made = jitmagic.jit(step)
    start = nn.Linear(8, CLASSES)
    models = [start, copy.deepcopy(start), copy.deepcopy(start).double()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            for batch in batches(2 * 16 + last, 16, targets):
                wide = [t.double() if t.is_floating_point() else t for t in batch]
                losses = []
                for model, fn, given in zip(
                    models, (made, step, step), (batch, batch, wide), strict=True
                ):
                    if resets != "never":
                        model.zero_grad(set_to_none=resets == "to None")
                    losses.append(fn(model, *given))
                    if not inside:
                        losses[-1].backward()
                same(*losses)
                for parameters in zip(*(model.parameters() for model in models), strict=True):
                    same(*(parameter.grad for parameter in parameters))
    handle = handle_of(made)
    traced = [r for r in handle.journal if r.result("trace") is not None]
    assert {r.outcome for r in traced} == {COMPILED}
    own = [r for r in traced if r.frame == handle.serial]
    assert len(own) <= 2 + (inside and resets != "to None")  # one without gradients before
