"""Gradients between the results of one compiled call, as eager gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitmagic
from jitmagic.frame.tag import handle_of

Function = Callable[..., Any]


class Layers(nn.Module):
    """Two layers; `show` says what forward gives."""

    def __init__(self, show: Function) -> None:
        super().__init__()
        self.first, self.second, self.show = nn.Linear(4, 8), nn.Linear(8, 4), show

    def forward(self, x: torch.Tensor) -> Any:
        return self.show(self, x)


def features_and_loss(self: Layers, x: torch.Tensor) -> Any:
    hidden = torch.tanh(self.first(x))
    return hidden, self.second(hidden).square().sum()


def every_layer(self: Layers, x: torch.Tensor) -> Any:
    a = self.first(x)
    b = a.relu()
    c, d = b.chunk(2, dim=1)
    return a, c, c * d, (c * d).sum()


def with_views(self: Layers, x: torch.Tensor) -> Any:
    hidden = self.first(x)
    flat = hidden.view(-1)
    return hidden, flat, (flat * flat).sum() + hidden.sum()


def kept_in_new_memory(self: Layers, x: torch.Tensor) -> Any:
    hidden = self.first(x)
    return torch.empty_like(hidden).copy_(hidden), hidden


def written_before_use(self: Layers, x: torch.Tensor) -> Any:
    hidden = self.first(x)
    hidden.mul_(2)
    return hidden, self.second(hidden).sum()


def random_between(self: Layers, x: torch.Tensor) -> Any:
    hidden = F.dropout(self.first(x), 0.5)
    return hidden, F.dropout(self.second(hidden), 0.5)


def under_autocast(self: Layers, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = self.first(x)
    with torch.no_grad():
        size = hidden.float().square().sum()
    return hidden, self.second(hidden.float()) / size


def within_one_block(self: Layers, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = self.first(x)
        with torch.autocast("cpu", enabled=False):
            slope = torch.tanh(hidden.float())
            size = self.second(slope)
        return hidden, slope, size, (hidden.T @ size.bfloat16()).float().sum()


SHOWN = [
    features_and_loss,
    every_layer,
    with_views,
    kept_in_new_memory,
    written_before_use,
    random_between,
    under_autocast,
    within_one_block,
]


def between(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of each output with respect to each other."""
    return [
        torch.autograd.grad(last.sum(), first, retain_graph=True, allow_unused=True)[0]
        for last in outputs
        for first in outputs
        if first is not last
    ]


def everything(model: Layers, x: torch.Tensor) -> list[torch.Tensor | None]:
    torch.manual_seed(1)
    outputs = model(x)
    kept = outputs[0]
    kept.retain_grad()
    found = between(outputs)
    model.zero_grad()
    (outputs[-1].sum() + kept.square().sum()).backward()
    return [*outputs, *found, kept.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("show", SHOWN)
def test_results_of_a_module(show: Function) -> None:
    torch.manual_seed(0)
    plain, tagged = Layers(show), Layers(show)
    tagged.load_state_dict(plain.state_dict())
    jitmagic.jit(tagged)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 4)
        for got, want in zip(everything(tagged, x), everything(plain, x), strict=True):
            assert (got is None) == (want is None)
            if got is not None:
                torch.testing.assert_close(got, want)


def middle(x: torch.Tensor, w: torch.Tensor) -> Any:
    hidden = torch.tanh(x @ w)
    score = hidden.square().sum()
    (slope,) = torch.autograd.grad(score, hidden, retain_graph=True)
    return slope, score


def slope_of(score: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(score, hidden)[0]


def in_a_helper(x: torch.Tensor, w: torch.Tensor) -> Any:
    hidden = torch.tanh(x @ w)
    return slope_of(hidden.exp().sum(), hidden)


def behind_a_print(x: torch.Tensor, w: torch.Tensor) -> Any:
    hidden = torch.tanh(x @ w)
    score = hidden.exp().sum()
    print("scored")
    return torch.autograd.grad(score, hidden)[0]


def hooked(x: torch.Tensor, w: torch.Tensor) -> Any:
    hidden, seen = torch.tanh(x @ w), []
    score = hidden.exp().sum()
    hidden.register_hook(seen.append)
    score.backward()
    return seen[0]


def hook_in_a_helper(x: torch.Tensor, w: torch.Tensor) -> Any:
    hidden, seen = torch.tanh(x @ w), []
    score = hidden.exp().sum()
    watch(hidden, seen)
    score.backward()
    return seen[0]


def watch(hidden: torch.Tensor, seen: list[torch.Tensor]) -> None:
    hidden.register_hook(seen.append)


def helper_behind_a_print(x: torch.Tensor, w: torch.Tensor) -> Any:
    hidden = torch.tanh(x @ w)
    score = hidden.exp().sum()
    print("scored")
    return slope_of(score, hidden)


INSIDE = [middle, in_a_helper, behind_a_print, hooked, hook_in_a_helper, helper_behind_a_print]


@pytest.mark.parametrize("fn", INSIDE)
def test_gradients_asked_for_inside(fn: Function, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    want = fn(x, w)
    said = capsys.readouterr().out
    tagged = jitmagic.jit(fn)
    for _ in range(2):
        torch.testing.assert_close(tagged(x, w), want)
        assert capsys.readouterr().out == said


def test_the_graph_is_cut_and_its_buffers_are_written_once() -> None:
    torch.manual_seed(0)

    class Camera(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            features = torch.relu(self.norm(self.conv(x)))
            return features, self.head(features.mean((2, 3)))

    plain, tagged = Camera(), Camera()
    tagged.load_state_dict(plain.state_dict())
    jitmagic.jit(tagged)
    for _ in range(3):
        x = torch.randn(2, 1, 6, 6)
        for model in (plain, tagged):
            features, scores = model(x)
            features.retain_grad()
            scores[:, 1].sum().backward()
            model.seen = features.grad
        torch.testing.assert_close(tagged.seen, plain.seen)
    forward = next(iter(handle_of(tagged).journal))  # the backwards are records of their own
    assert sum(stage.stage == "forward: lower" for stage in forward.stages) == 2
    for (name, got), want in zip(
        tagged.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(got, want, msg=name)


def row_and_score(x: torch.Tensor, w: torch.Tensor) -> Any:
    hidden = x @ w
    row = hidden.as_strided((4,), (1,), 4)  # no subgraph can hand on an offset into its memory
    angle = torch.sin(hidden)
    return angle, (angle * hidden).sum() + row.isnan().sum()


def test_results_that_cannot_be_kept_apart_are_a_warning_at_the_users_line() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    tagged = jitmagic.jit(row_and_score)
    with pytest.warns(jitmagic.FallbackWarning, match="one autograd node.*as_strided") as said:
        found = tagged(x, w)
    (warning,) = said
    assert warning.filename == __file__
    assert warning.lineno == row_and_score.__code__.co_firstlineno
    for got, want in zip(found, row_and_score(x, w), strict=True):
        torch.testing.assert_close(got, want)
        slopes = [torch.autograd.grad(one.sum(), w, retain_graph=True)[0] for one in (got, want)]
        torch.testing.assert_close(*slopes)
    tagged(torch.randn(5, 4), w)  # a variant more; it has been said


def test_arguments_named_like_factories_are_distinguished() -> None:
    def named(zeros: torch.Tensor, x: torch.Tensor, full: torch.Tensor) -> Any:
        hidden = torch.sin(x - zeros)
        return hidden, zeros - full, hidden * full, x.shape[0] / x.shape[1], x.shape[0] ** 2

    made = jitmagic.jit(named, dynamic=True)
    for shape in ((3, 3), (2, 5), (4, 7)):
        given = [torch.randn(shape, requires_grad=n == 1) for n in range(3)]
        found, wanted = made(*given), named(*given)
        assert found[3:] == wanted[3:]
        for a, b in zip(found[:3], wanted[:3], strict=True):
            torch.testing.assert_close(a, b)
        slopes = [torch.autograd.grad(r[2].sum(), r[0])[0] for r in (found, wanted)]
        torch.testing.assert_close(*slopes)
