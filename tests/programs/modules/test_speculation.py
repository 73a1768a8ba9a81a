"""Data-dependent branches in code of installed packages take the side of the compiled call. The
library is text that is compiled as a file of site-packages. Whichever side data select, results,
gradients, buffers and the generator's state equal eager's.
"""

from __future__ import annotations

import sysconfig
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.trace.values.numbers import speculation

from ..counts import counts_of

_LIBRARY = '''
import torch

def masked_mean(x, mask):
    """A branch on the padding mask, as in Longformer."""
    if (mask == 0).any():
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return x.mean(1)

def by_item(x, mask):
    some = mask.flatten().eq(0).any().item()
    return x * 2 if some else x - 1

def experts(x, mask):
    """Those that get something, by their names, as in Switch Transformers."""
    made = torch.zeros_like(x)
    for index in (mask.sum(0) > 0).nonzero():
        made = made + {"e%d" % n: x * (n + 1) for n in range(9)}[f"e{index[0]}"]
    return made

def as_count(x, mask):
    longest = int((mask > 0).sum(1).max())
    names = ["a"] * 9
    return x[:, : len(names[:longest])]

def as_size(x, mask):
    """A tensor where sizes are taken, as in Longformer's global attention."""
    most = (mask > 0).sum(1).max()
    made = x.new_zeros(most, 2)
    made[torch.arange(most) > 1] = 1
    return made.sum() + x

def as_list(x, mask):
    """Segments by their lengths, as in Qwen2-VL, of which data say how many there are."""
    some = (mask > 0).long().sum(0)
    lengths = torch.repeat_interleave(some * 0 + 7, some)
    return x * sum(n + 1 for n in lengths.tolist())

def as_long_list(x, mask):
    rows = (mask > 0).long().repeat(4, 1).tolist()
    names = {(1, 1, 1, 1): 2, (1, 1, 0, 0): 3}
    return sum(names.get(tuple(row), 1) * x for row in rows)

def as_rows(x, mask):
    """Of which the number has to be known."""
    chosen = mask.flatten()[mask.flatten() > 0]
    return x * {n: n + 1 for n in range(13)}[len(chosen)] + chosen.sum()

def as_grid(x, mask):
    """A shape that fits some numbers alone."""
    size = int((mask.sum() > 9).long() * 2 + 2)
    grid = torch.arange(size).reshape(size // 2, 2).T.flatten()
    return x + grid.to(x).mean()

def behind_much(x, mask):
    """What is computed beside it is not computed for it."""
    much = (x.flatten()[:1].expand(1 << 13, 1 << 12) + 1).sum()
    return x + much * 0 if (mask == 0).any() else x - 1

def behind_writes(x, mask):
    seen = torch.zeros(3, 4)
    row = seen[1]
    row.copy_(mask[1])
    seen[0] = 1
    return x + 1 if (row == 0).any() and seen.sum() > 5 else x - 1

def written_later(x, mask):
    """By what is computed of something else."""
    kept = torch.zeros(3, 4)
    some = kept.sum() + mask.sum()
    kept.view(-1)[1:] += x.sum()
    return x + kept.sum() if some < 12 else x - 1

def behind_a_draw(x, mask):
    x = x + torch.rand_like(x)
    if x.sum() > 0:
        return x * torch.rand_like(x)
    return x - 1

def behind_a_write(x, mask):
    mask += 1
    if (mask == 1).any():
        return x * mask[..., None]
    return x + mask[..., None]

def read_late(x, mask):
    """The last branch reads what was written to after the first one."""
    y = mask * 1
    before = y + 0.5
    if y.sum() < 0:
        return x
    y.mul_(-1)
    if y.sum() > 0:
        return x * 3
    return x + 1 if before.sum() > 0 else x - 1

def between_draws(x, mask):
    for _ in range(3):
        x = x + torch.rand_like(x)
        if x.sum() > 40:
            x = x * 0.5
    return x

def halved(x, mask):
    for _ in range(20):
        x = x.detach() * 0.5
        if x.abs().sum() > 1e-3:
            x = x + 1e-6
    return x

def differentiated(x, mask):
    slope, = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)
    return slope * 2 if slope.sum() > 100 else slope + x
'''
NAMES = (
    "masked_mean by_item experts as_count as_size as_list as_long_list as_rows as_grid behind_much "
    "behind_writes written_later read_late behind_a_draw between_draws behind_a_write "
    "differentiated"
).split()


def library() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "somelib"}
    folder = sysconfig.get_paths()["purelib"]
    exec(compile(_LIBRARY, f"{folder}/somelib/masks.py", "exec"), names)
    return names


def call(name: str, padded: bool, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(3, 4)
    if padded:
        mask[1:, 3] = 0
        mask[:, 2] = 0
    return x.requires_grad_(name != "behind_a_write" or seed > 0), mask


def seen(run: Callable[..., Any], name: str, padded: bool, seed: int) -> list[Any]:
    """Return the results of a call, its arguments after it, and the next random draw."""
    torch.manual_seed(seed)
    x, mask = call(name, padded, seed)
    result = run(x, mask)
    if result.requires_grad:
        result.square().sum().backward()
    return [result.detach(), mask, x.grad, torch.rand(2)]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", NAMES)
def test_both_sides_equal_eager(name: str, backend: str) -> None:
    function = library()[name]

    def user(x, mask):
        return function(x, mask) + 1

    tagged = jitmagic.jit(user, backend=backend)
    for seed, padded in enumerate((True, True, False, True, False, False, True)):
        expected = seen(user, name, padded, seed)
        torch.testing.assert_close(seen(tagged, name, padded, seed), expected)
        if not seed:
            counts = counts_of(tagged)
            assert (counts.breaks, counts.graphs - bool(expected[0].requires_grad)) == (0, 1)


@pytest.mark.parametrize("name", ["behind_writes", "read_late", "between_draws"])
def test_compiled_side_is_that_of_the_traced_call(name: str) -> None:
    function = library()[name]
    tagged = jitmagic.jit(lambda x, mask: function(x, mask) + 1, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(
            seen(tagged, name, True, 5)[0], seen(function, name, True, 5)[0] + 1
        )
    handle = handle_of(tagged)
    assert handle is not None
    assert [entry.notes.mispredictions for entry in handle.dispatcher.entries] == [0]


def test_branches_of_a_trace_run_each_operation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    function = library()["halved"]
    runs: list[Any] = []
    run = speculation._called
    monkeypatch.setattr(speculation, "_called", lambda *args: runs.append(args[0]) or run(*args))
    tagged = jitmagic.jit(lambda x, mask: function(x, mask), backend="eager", fullgraph=True)
    tagged(*call("halved", True, 0))
    operations = [node for node in runs if node.meta.get("val") is not None]
    assert len(operations) == len(set(operations)) > 60


def test_fullgraph_is_one_graph_and_mispredictions_run_in_eager() -> None:
    function = library()["masked_mean"]
    tagged = jitmagic.jit(lambda x, mask: function(x, mask), backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jitmagic.FallbackWarning)
        for seed, padded in enumerate([True] + 9 * [False]):
            x, mask = call("masked_mean", padded, seed)
            torch.testing.assert_close(tagged(x, mask), function(x, mask))


def test_repeated_misprediction_falls_back_to_a_break() -> None:
    function = library()["masked_mean"]

    def user(x, mask):
        return function(x, mask).exp()

    tagged = jitmagic.jit(user, backend="eager")
    for seed, padded in enumerate([True] + 8 * [False] + [True]):
        x, mask = call("masked_mean", padded, seed)
        torch.testing.assert_close(tagged(x, mask), user(x, mask))
    assert counts_of(tagged).breaks > 0


def test_branch_in_user_code_is_a_break() -> None:
    def user(x, mask):
        return x + 1 if (mask == 0).any() else x

    tagged = jitmagic.jit(user, backend="eager")
    tagged(*call("user", True, 0))
    assert counts_of(tagged).breaks == 1


def test_statistic_that_is_initialised_by_the_first_batch() -> None:
    """Take another branch for the first batch than for all others, as I-BERT does."""
    source = """
import torch
class Observer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.zeros(1))
    def forward(self, x):
        if self.most.max() < 1e-5:
            self.most = self.most + x.detach().abs().max()
        else:
            self.most = self.most * 0.9 + x.detach().abs().max() * 0.1
        return x / self.most
"""
    names: dict[str, Any] = {"__name__": "somelib"}
    folder = sysconfig.get_paths()["purelib"]
    exec(compile(source, f"{folder}/somelib/observer.py", "exec"), names)
    plain, tagged = names["Observer"](), jitmagic.jit(names["Observer"](), backend="eager")
    assert isinstance(tagged, nn.Module)
    for seed in range(9):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(tagged(x), plain(x))
        torch.testing.assert_close(tagged.most, plain.most)
