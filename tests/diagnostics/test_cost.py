"""Costs of lines: each operation is on a line of the user's, and the costs of the lines add up."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from demos.models import CharGPT, Classifier, fused
from jitmagic.api import tagged_copy, tagged_handle
from jitmagic.diagnostics.builds import MeasuredFrame, newest_variants, nodes_of
from jitmagic.diagnostics.explanation.cost import costs_of
from jitmagic.diagnostics.explanation.explain import Explanation, explanation_of
from jitmagic.diagnostics.explanation.gutter import listings
from jitmagic.diagnostics.explanation.line_timing import _without_clock
from jitmagic.figures import duration
from jitmagic.graph.node_meta import lines_of


def three_lines(x: Tensor, y: Tensor) -> Tensor:
    big = x @ y
    small = big[:2, :2] * 2 + 1
    return small.relu().sum() + inner(big)


def inner(x: Tensor) -> Tensor:
    return torch.stack([part.sum() for part in x.split(1)]).sum()


def breaks(x: Tensor) -> Tensor:
    y = x.sin() * 2
    print("between")
    return y.cos().sum()


def draws(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x, 0.5).mul_(2)


def branch(x: Tensor) -> Tensor:
    for _ in range(2):
        if x.sum() > 0:
            x = x * 2
    return x


def results_of_results(x: Tensor) -> tuple[Tensor, Tensor]:
    features = (x * 2).sin()
    return features, (features @ features).cos()


def of_data(x: Tensor, w: Tensor) -> Tensor:
    h = torch.tanh(x @ w)
    kept = h[h[:, 0] > 0]
    y = torch.relu(kept * 2 + 1)
    return (y @ w).sum(-1)


def experts(x: Tensor, w: Tensor, which: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for expert in range(2):
        rows = (which == expert).nonzero().squeeze(-1)
        out = out.index_add(0, rows, torch.relu(x[rows] @ w))
    return out.sum(-1)


def masked(x: Tensor) -> tuple[Tensor, Tensor]:
    positive = x[x > 0]
    return positive.sin().mean(), positive


SQUARE = torch.randn(32, 32)
ROUGH = SQUARE.clone().requires_grad_()
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "fused": (fused, (torch.randn(8, 64), torch.randn(8, 64))),
    "lines": (three_lines, (SQUARE, SQUARE)),
    "gradients": (three_lines, (SQUARE, SQUARE.clone().requires_grad_())),
    "classifier": (Classifier().requires_grad_(False), (torch.randn(32, 784),)),
    "classifier, training": (Classifier(), (torch.randn(32, 784),)),
    "gpt": (CharGPT(50, layers=1, dropout=0.0), (torch.randint(0, 50, (2, 16)),)),
    "break": (breaks, (torch.randn(64),)),
    "break, training": (breaks, (torch.randn(64, requires_grad=True),)),
    "random": (draws, (torch.randn(64),)),
    "callees": (branch, (torch.ones(8),)),
    "results of results": (results_of_results, (SQUARE,)),
    "results of results, training": (results_of_results, (ROUGH,)),
    "data decide sizes": (of_data, (SQUARE, SQUARE)),
    "data decide sizes, training": (of_data, (SQUARE, ROUGH)),
    "experts": (experts, (SQUARE, SQUARE, torch.arange(32) % 2)),
    "experts, training": (experts, (SQUARE, ROUGH, torch.arange(32) % 2)),
    "masked": (masked, (SQUARE,)),
    "masked, training": (masked, (ROUGH,)),
}


@pytest.fixture(params=PROGRAMS)
def found(request: pytest.FixtureRequest) -> Explanation:
    fn, args = PROGRAMS[request.param]
    made: Explanation = jitmagic.explain(fn)(*args)
    return made


def test_times_of_a_functions_lines_add_up(found: Explanation) -> None:
    costs = found.costs
    assert costs.eager > 0
    assert costs.compiled > 0
    assert not costs.notes
    own = listings(found)[0]
    rest = costs.unattributed
    assert own.eager + rest.eager == pytest.approx(costs.eager, rel=0.05)
    assert own.compiled + rest.compiled == pytest.approx(costs.compiled, rel=0.05)
    assert sum(k.seconds for k in costs.kernels) == pytest.approx(costs.compiled, rel=0.05)


def test_every_view_shows_times_beside_the_lines(found: Explanation) -> None:
    page, full = found._repr_html_(), str(found.full())
    for cost in found.costs.kernels:
        assert cost.kernel.title in unescape(page)
        assert cost.kernel.title in full
    for row in listings(found)[0].rows:
        for seconds in filter(None, (row.eager, row.compiled)):
            assert duration(seconds) in page
            assert duration(seconds) in full
    assert "<script" not in page
    assert "http" not in page.replace("https://www.w3.org", "")


def test_measuring_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of the user's runs twice, no random number is missing, no input is written to."""
    x = torch.arange(4.0)
    for fn in (breaks, draws):
        torch.manual_seed(0)
        with torch.random.fork_rng():
            wanted = fn(x.clone())
            after = torch.get_rng_state()
        told = capsys.readouterr().out
        jitmagic.explain(fn)(x)
        assert torch.equal(torch.get_rng_state(), after)
        assert capsys.readouterr().out == told
    assert torch.equal(x, torch.arange(4.0))
    assert wanted.shape == (4,)


def test_operators_of_the_user_do_not_run_again() -> None:
    calls = []
    with torch.library._scoped_library("jitmagic_test_cost", "DEF") as library:
        library.define("counted(Tensor x) -> Tensor")
        library.impl("counted", lambda x: calls.append(1) or x + 1, "CPU")
        library.impl("counted", lambda x: torch.empty_like(x), "Meta")
        op = torch.ops.jitmagic_test_cost.counted

        def fn(x: Tensor) -> Tensor:
            return op(x) * 2

        found = jitmagic.explain(fn)(torch.ones(3))
    assert len(calls) == 1
    assert not found.costs
    assert any("custom operators" in note for note in found.costs.notes)
    assert "custom operators" in str(found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_without_a_plan_say_so(backend: str) -> None:
    found = jitmagic.explain(fused, backend=backend)(torch.ones(2, 2), torch.ones(2, 2))
    assert not found.costs
    assert "code of another backend cannot be timed" in str(found)


@pytest.mark.parametrize("case", ["data decide sizes, training", "masked", "results of results"])
def test_parts_of_any_sizes_are_measured_at_those_of_the_call(case: str) -> None:
    fn, args = PROGRAMS[case]
    found = jitmagic.explain(fn, dynamic=True)(*args)
    assert not found.costs.notes
    own, rest = listings(found)[0], found.costs.unattributed
    assert own.eager + rest.eager == pytest.approx(found.costs.eager, rel=0.05)


def test_a_backward_is_that_of_its_part() -> None:
    """Each part is an autograd node, and its backward is compiled at its first use: the last one's
    before the first one's. What was not called for has none.
    """
    step = tagged_copy(results_of_results, {})
    features, result = step(ROUGH)
    (features.sum() + result.sum()).backward()
    (frame,) = newest_variants(tagged_handle(step).journal)
    first, last = MeasuredFrame.of(frame).parts  # type: ignore[union-attr]
    assert [build.name for build in first.builds] == ["forward", "backward"]
    assert [build.name for build in last.builds] == ["forward", "backward"]
    assert first.builds[0].part is first.builds[1].part is not last.builds[1].part
    lines = [{n: lines_of(node) for n, node in nodes_of(b).items()} for b in first.builds]
    assert all(line[0].lineno == results_of_results.__code__.co_firstlineno + 1
               for known in lines for line in known.values() if line)  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_vary_are_measured_at_those_of_the_call(dynamic: bool | None) -> None:
    found = jitmagic.explain(three_lines, dynamic=dynamic)(torch.ones(6, 6), torch.ones(6, 6))
    assert found.costs.compiled > 0


def test_the_newest_variant_is_the_one_measured() -> None:
    step = tagged_copy(fused, {})
    for size in (3, 8, 5):
        step(torch.ones(2, size), torch.ones(2, size))
    handle = tagged_handle(step)
    assert len(costs_of(handle.journal, handle.options).kernels) == 1


class Nasty(nn.Module):
    """Names and texts that HTML would take for its own."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2  # </pre></details><script>alert("x")</script> & <b>
        return y.sin()


def test_user_text_is_escaped_in_line_costs() -> None:
    page = jitmagic.explain(Nasty())(torch.ones(3))._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_clock_overhead_is_subtracted_equally_and_never_below_zero() -> None:
    assert _without_clock([3.0, 3.0], 4.0) == (2.0, 2.0)
    left = _without_clock([10.0, 1.0, 1.0], 6.0)
    assert sum(left) == pytest.approx(6.0)
    assert min(left) == 0
    assert _without_clock([1.0, 1.0], 4.0) == (1.0, 1.0)


def test_load_beyond_the_clock_overhead_is_removed_by_scaling() -> None:
    left = _without_clock([8.0, 1.0, 1.0], 5.0, 0.1)
    assert sum(left) == pytest.approx(5.0)
    assert left[0] / left[1] == pytest.approx(7.9 / 0.9)


def test_a_long_line_of_code_has_the_largest_share() -> None:
    def uneven(x: Tensor, y: Tensor) -> Tensor:
        small = y + 1
        big = x @ x @ x @ x
        return big.sum() + small.sum()

    found = jitmagic.explain(uneven)(torch.randn(256, 256), torch.ones(2))
    rows = {row.text.strip(): row for row in listings(found)[0].rows}
    dear = rows["big = x @ x @ x @ x"]
    assert dear.eager > 0.5 * found.costs.eager
    assert dear.compiled > 0.5 * found.costs.compiled
    assert found.costs.kernels[dear.kernels[0]].kernel.title == "matrix product"


SAVING = {  # layers whose backward reads what only their forward can write
    "LSTM": lambda: nn.LSTM(4, 6, 2),
    "GRU": lambda: nn.GRU(4, 6),
    "max_pool": lambda: nn.Sequential(nn.Conv1d(5, 4, 2), nn.MaxPool1d(2)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", SAVING)
def test_a_backward_reads_what_its_forward_saved(name: str) -> None:
    """A workspace that is made up would be read as if it were one: memory anywhere."""
    layer = SAVING[name]()

    def fn(x: Tensor) -> Tensor:
        made = layer(x)
        return (made[0] if isinstance(made, tuple) else made) * 2

    call = jitmagic.jit(fn)
    call(torch.randn(3, 5, 4)).sum().backward()
    costs = explanation_of(call, measured=True).costs
    assert not costs.notes
    assert any(kernel.label.startswith("backward") for kernel in costs.kernels)


@pytest.mark.filterwarnings("ignore::jitmagic.FallbackWarning")  # it tells of the split
def test_parts_of_a_split_graph_are_not_run_on_made_up_tensors() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, torch.autograd.grad(y.sum(), x, create_graph=True)[0] + y

    found = jitmagic.explain(fn)(torch.ones(3, requires_grad=True))
    assert found.costs or any("split" in note for note in found.costs.notes)
