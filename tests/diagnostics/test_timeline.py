"""timeline: when a call computes, when it communicates, and how much of that is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import jitmagic
from jitmagic.diagnostics.timeline import RankTimeline, Span, Timeline
from jitmagic.errors import UsageError


def timeline_of(
    compute: list[tuple[float, float]], communication: list[tuple[float, float]]
) -> RankTimeline:
    spans = [tuple(Span("op", *ends) for ends in row) for row in (compute, communication)]
    return RankTimeline(0, 10.0, *spans)


@pytest.mark.parametrize(
    ("compute", "communication", "seconds", "hidden"),
    [
        ([(0, 2)], [], 0, None),
        ([(0, 2)], [(2, 4)], 2, 0.0),
        ([(0, 4)], [(1, 3)], 2, 1.0),
        ([(0, 1), (2, 3)], [(0, 4)], 4, 0.5),
        ([(0, 2), (1, 3)], [(2, 4), (3, 6)], 4, 0.25),
        ([], [(0, 1)], 1, 0.0),
    ],
)
def test_spans_that_overlap_count_once(
    compute: list[tuple[float, float]],
    communication: list[tuple[float, float]],
    seconds: float,
    hidden: float | None,
) -> None:
    one = timeline_of(compute, communication)
    assert one.communicating == pytest.approx(seconds)
    assert one.hidden == (None if hidden is None else pytest.approx(hidden))


def test_a_call_is_made_once_and_its_kernels_are_found() -> None:
    calls = []

    @jitmagic.jit
    def normalised(x: Tensor) -> Tensor:
        return x.softmax(-1) * 2

    def step(x: Tensor) -> None:
        calls.append(normalised(x))

    x = torch.randn(64, 64)
    step(x)
    found = jitmagic.timeline(step)(x)
    assert len(calls) == 2
    (rank,) = found.ranks
    assert any("kernel 0 of" in span.name for span in rank.compute)
    assert rank.hidden is None
    assert all(0 <= span.start <= span.end <= rank.seconds for span in rank.compute)
    assert "no communication" in str(found)


def test_an_error_of_the_call_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        jitmagic.timeline(lambda: 1 / 0)()
    with pytest.raises(UsageError, match=r"timeline\(f\)\(x\)"):
        jitmagic.timeline(torch.sin, torch.ones(2))  # type: ignore[call-arg]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch has no distributed")
@pytest.mark.usefixtures("group")
def test_collectives_are_communication() -> None:
    def step(x: Tensor) -> Tensor:
        y = x @ x
        dist.all_reduce(y)
        return y.sin()

    found = jitmagic.timeline(step, all_ranks=True)(torch.randn(32, 32))
    (rank,) = found.ranks
    assert [span.name for span in rank.communication] == ["gloo:all_reduce"]
    assert not any(span.name.startswith("c10d") for span in rank.compute)
    assert "1 collective" in str(found)


def test_the_picture_has_two_rows_for_each_rank() -> None:
    found = Timeline("step", (timeline_of([(0, 4)], [(1, 3)]), timeline_of([(0, 1)], [])))
    svg = found.picture().svg
    assert svg.count("<rect") == 3
    assert "100% of it hidden" in svg
    assert "no communication" in svg


def test_the_picture_draws_kernels_that_are_too_near_as_one() -> None:
    spans = [(n / 400, n / 400 + 1e-5) for n in range(4000)]
    svg = Timeline("step", (timeline_of(spans, []),)).picture().svg
    assert 300 < svg.count("<rect") < 600
    assert "and 8 more" in svg
