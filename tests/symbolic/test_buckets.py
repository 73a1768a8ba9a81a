"""buckets={...}: batches run at the next bucket's size, where rows do not depend on each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import FallbackWarning, OptionError
from jitmagic.options import make_options

KEPT = {"on_error": "raise", "keep": "compiled"}
SIZES = (2, 4, 8)


def bucketed(fn: Callable[..., Any], names: str = "x", **more: Any) -> Callable[..., Any]:
    options = {**KEPT, "buckets": dict.fromkeys(names.split(), SIZES), **more}
    return jitmagic.jit(fn, options=options)


def compiled_batches(run: Callable[..., Any]) -> list[int]:
    """Return the batch sizes for which kernels were compiled, in order."""
    records = handle_of(run).journal.records
    return [record.result("forward: lower").buffers["x"].shape[0] for record in records]


def _cnn() -> nn.Module:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 5)).eval()


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


MODELS: dict[str, tuple[Callable[[], Callable[[Tensor], Any]], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)), (6,)),
    "cnn": (_cnn, (3, 8, 8)),
    "attention": (_Attention, (5, 32)),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), (5, 32)
    ),
    "written out": (lambda: lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x, (4, 6)),
    "several results": (lambda: lambda x: (x.sum(-1), {"t": x.transpose(0, 1) * 2}), (4, 6)),
    "a new state": (
        lambda: lambda x: torch.cat([x, x.new_zeros(x.shape[0], 2)], 1).cumsum(1), (6,)
    ),
    "tokens": (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2)), (5,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_results_are_eagers(name):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    run = bucketed(lambda x: model(x))
    with torch.no_grad():
        for rows in (3, 8, 5, 4, 2, 1, 7):
            x = torch.randn(rows, *shape)
            x = x.abs().long() if name == "tokens" else x
            got, wanted = run(x), model(x)
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
            assert strides(got) == strides(wanted)
    assert sorted(compiled_batches(run)) == [1, 2, 4, 8], "one row is a variant of its own"


def strides(results: Any) -> list[tuple[int, ...]]:
    leaves, _ = torch.utils._pytree.tree_flatten(results)
    return [leaf.stride() for leaf in leaves]


def test_arguments_that_share_the_batch():
    run = bucketed(lambda x, y, w: x * y.unsqueeze(1) + w, "x y")
    for rows in (3, 5, 6):
        x, y, w = torch.randn(rows, 4), torch.randn(rows), torch.randn(4)
        torch.testing.assert_close(run(x, y, w), x * y.unsqueeze(1) + w)
    assert compiled_batches(run) == [4, 8]


def test_added_rows_raise_nothing():
    run = bucketed(lambda x: 60 // x)
    for rows in (3, 5):
        x = torch.arange(1, rows + 1)
        assert torch.equal(run(x), 60 // x), "a row of zeros would divide by zero"


def test_larger_batches_have_variants_of_their_own():
    run = bucketed(lambda x: x.relu() * 2)
    for rows in (20, 3, 30, 5, 25):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), x.relu() * 2)
    assert len(handle_of(run).journal.records) <= 4


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "sum over the batch": (lambda x: x - x.mean(0), "mean combines rows"),
    "softmax over the batch": (lambda x: x.softmax(0), "combines rows"),
    "reversed": (lambda x: x.flip(0), "flip may combine rows"),
    "shifted": (lambda x: torch.cat([x[1:], x[:1]]), "rows are no dimension|may combine rows"),
    "product of rows": (lambda x: x @ x.t(), "rows are no dimension|combines rows"),
    "a number": (lambda x: x / x.shape[0], "batch size"),
    "positions": (lambda x: x + torch.arange(x.shape[0]).unsqueeze(1), "arange"),
    "random": (lambda x: x + torch.rand_like(x), "random"),
    "regrouped": (lambda x: x.view(2, -1, 4).transpose(0, 1).reshape(-1, 8), ""),
    "written": (lambda x: x.add_(1), "writes to its arguments"),
    "a view": (lambda x: x.t(), "view of"),
    "unlisted": (lambda x: x[torch.zeros(3, dtype=torch.long)], ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_graphs_in_which_rows_depend_on_each_other_are_refused(name):
    fn, told = REFUSED[name]
    run = bucketed(fn)
    torch.manual_seed(0)
    with pytest.warns(FallbackWarning, match=f"no batch buckets, because .*({told})"):
        got = run(torch.ones(6, 4))
    torch.manual_seed(0)
    torch.testing.assert_close(got, fn(torch.ones(6, 4)))


def test_results_that_are_differentiated_are_refused():
    layer = nn.Linear(4, 4)
    run = bucketed(lambda x: layer(x))
    with pytest.warns(FallbackWarning, match="no_grad"):
        run(torch.ones(3, 4)).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("value", [{"x": ()}, {"x": (0, 1)}, {"x": 8}, (1, 2), {1: (1, 2)}])
def test_values_that_are_no_buckets_are_refused(value):
    with pytest.raises(OptionError):
        make_options(buckets=value)


def test_sizes_are_sorted():
    assert make_options(buckets={"x": (8, 2, 2)}).buckets == (("x", (2, 8)),)


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
@pytest.mark.parametrize("buckets", [True, False])
def test_threads_share_a_bounded_number_of_variants(buckets):
    torch.manual_seed(0)
    model = _cnn()
    more = {"buckets": {"x": SIZES}} if buckets else {}
    run = jitmagic.jit(lambda x: model(x), options={**KEPT, "freeze": True, **more})
    inputs = [torch.randn(n, 3, 8, 8) for n in range(1, 9)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
    failures: list[BaseException] = []

    def calls(first: int) -> None:
        try:
            with torch.no_grad():
                for n in range(24):
                    place = (first + n) % len(inputs)
                    torch.testing.assert_close(
                        run(inputs[place]), wanted[place], rtol=1e-4, atol=1e-5
                    )
        except BaseException as error:  # reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=calls, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not [thread for thread in threads if thread.is_alive()], "a deadlock"
    assert not failures, failures[0]
    assert len(handle_of(run).journal.records) <= (4 if buckets else 8)
