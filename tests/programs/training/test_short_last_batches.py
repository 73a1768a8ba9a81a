"""Training over a DataLoader whose last batch is shorter: values and gradients are eager's, no
warning is shown, and two variants serve all batches, for each loss of torch.nn.functional.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
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


# -- models ---------------------------------------------------------------------------------------


class Language(nn.Module):
    """As pytorch/examples' word_language_model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(12, 8), nn.LSTM(8, 8, 2)
        self.decode = nn.Linear(8, 12)

    def forward(self, x: Tensor, hidden: Any) -> tuple[Tensor, Any]:
        out, hidden = self.rnn(self.embed(x), hidden)
        return self.decode(out).view(-1, 12).log_softmax(1), hidden


class Encoder(nn.Module):
    """A transformer's encoder, with a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x), src_key_padding_mask=x == 0).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, CLASSES))


def tokens(n: int) -> Sequence[Tensor]:
    x = torch.randint(1, 12, (n, 9))
    x[0, -2:] = 0
    return x, *classes(n)


MODELS: dict[str, tuple[Callable[[], nn.Module], Make]] = {
    "perceptron": (perceptron, lambda n: (torch.randn(n, 8), *classes(n))),
    "recurrent": (Recurrent, lambda n: (torch.randn(n, 5, 8), *classes(n))),
    "convolutional": (convolutional, lambda n: (torch.randn(n, 3, 8, 8), *classes(n))),
    "encoder": (Encoder, tokens),
}
SIZES = {"a short one": (16, 16, 5, 16, 5), "three": (16, 7, 16, 11, 7), "one": (16, 16, 1, 16, 1)}


@covered(
    name=MODELS,
    update=(None, torch.optim.SGD, torch.optim.Adam),
    sizes=SIZES,
    dynamic=(None, True),
    cast=(False, True),
)
def test_model_trains_over_batches_of_several_sizes(
    name: str, update: Any, sizes: str, dynamic: bool | None, cast: bool
) -> None:
    make, batch = MODELS[name]

    def step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss

    torch.manual_seed(0)
    start = make() if cast else make().double()
    models = [start, copy.deepcopy(start)]
    optimizers = [update and update(model.parameters(), lr=0.01) for model in models]
    made = jitmagic.jit(step, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in SIZES[sizes]:
            x, y = batch(n)
            x = x.double() if x.is_floating_point() and not cast else x
            losses = []
            for fn, model, optimizer in zip((made, step), models, optimizers, strict=True):
                torch.manual_seed(n)
                losses.append(fn(model, optimizer, x, y))
            torch.testing.assert_close(*losses, rtol=1e-2 if cast else 1e-7, atol=1e-6)
    if not cast:
        for found, wanted in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dynamic", [None, True])
def test_language_model_trains_over_chunks(dynamic: bool | None) -> None:
    def step(model: nn.Module, x: Tensor, y: Tensor, hidden: Any) -> tuple[float, Any]:
        model.zero_grad()
        hidden = tuple(part.detach() for part in hidden)
        out, hidden = model(x, hidden)
        loss = F.nll_loss(out, y.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.5)
        return loss.item(), hidden

    torch.manual_seed(0)
    start = Language()
    models = [start, copy.deepcopy(start)]
    hiddens: list[Any] = [(torch.zeros(2, 3, 8),) * 2] * 2
    made = jitmagic.jit(step, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in (7, 7, 4, 7, 4, 6):
            x, y = torch.randint(12, (2, length, 3))
            losses = []
            for at, fn in enumerate((made, step)):
                loss, hiddens[at] = fn(models[at], x, y, hiddens[at])
                losses.append(loss)
            torch.testing.assert_close(*losses)
            torch.testing.assert_close(*hiddens)
    for found, wanted in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
