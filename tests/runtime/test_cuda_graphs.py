"""When CUDA graphs are recorded and replayed, and what a replay copies."""

from __future__ import annotations

import gc
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from jitmagic.codegen.plan import Call, Plan, Slot, View
from jitmagic.errors import FallbackWarning
from jitmagic.runtime.cuda_graphs import replayer as policy
from jitmagic.runtime.cuda_graphs.graph_pool import MAX_SIZES, GraphPool
from jitmagic.runtime.cuda_graphs.replayer import (
    MAX_MADE,
    MAX_PLAIN,
    MAX_RECORDINGS,
    MAX_UNUSED,
)

from .fake_graphs import (
    LAUNCHES,
    MADE,
    Called,
    Counted,
    FakeGraph,
    adding,
    no_gpu,
    plan_of,
    why_not,
)

__all__ = ["no_gpu"]

pytestmark = pytest.mark.usefixtures("no_gpu")


def test_plain_then_recorded_then_replayed():
    run, replayer = adding()
    x, w = torch.randn(4), torch.randn(4)
    for _ in range(5):
        (y,) = replayer(x, w)
        assert torch.equal(y, x + w)
        del y
    assert (replayer.made, replayer.replays) == (1, 4)


def test_moving_inputs_are_copied_and_weights_are_not():
    _, replayer = adding()
    w = torch.randn(4)
    kept = [torch.randn(4) for _ in range(6)]
    for x in kept:
        (y,) = replayer(x, w)
        assert torch.equal(y, x + w)
        w.add_(1.0)
        del y
    assert replayer.made == 1
    assert replayer.moving == {0}


def test_results_that_are_held_are_copied_and_never_overwritten():
    run, replayer = adding()
    w = torch.randn(4)
    held = []
    for n in range(12):
        x = torch.full((4,), float(n))
        (y,) = replayer(x, w)
        held.append((y.view(2, 2)[1], (x + w).view(2, 2)[1]))
        del y
    assert all(torch.equal(got, expected) for got, expected in held)
    assert replayer.made == 2  # the second one copies its result
    assert (replayer.replays, replayer.copied) == (11, {0})
    assert len({got.data_ptr() for got, _ in held}) == 12


def test_large_results_that_are_held_are_in_further_recordings(monkeypatch):
    monkeypatch.setattr(policy, "CHEAP_BYTES", 0)
    _, replayer = adding()
    w, held = torch.randn(4), []
    for n in range(MAX_RECORDINGS + 4):
        x = torch.full((4,), float(n))
        (y,) = replayer(x, w) if n else (x + w,)
        held.append((y, x + w))
        del y
    assert all(torch.equal(got, expected) for got, expected in held)
    assert replayer.replays


def test_results_that_share_memory_share_it_when_copied():
    replayer = Called(
        lambda x, w: (lambda y: (y, y[1:3], x * w))(x + w), plan_of(outputs=(2, 3, 4))
    )
    x, w, held = torch.randn(4), torch.randn(4), []
    for _ in range(5):
        whole, part, product = replayer(x, w)
        assert part.data_ptr() == whole[1:].data_ptr()
        part.add_(1)
        held.append((whole, product))
    for whole, product in held:
        expected = x + w
        expected[1:3] += 1
        assert torch.equal(whole, expected)
        assert torch.equal(product, x * w)
    assert replayer.copied == {0, 1, 2}


def test_only_the_held_results_are_copied():
    """A loss in a list does not hold the memory of what its forward saves."""
    replayer = Called(lambda x, w: (x * w, (x + w).sum()), plan_of(outputs=(2, 3)))
    x, w, losses = torch.randn(4), torch.randn(4), []
    for _ in range(6):
        saved, loss = replayer(x, w)
        losses.append(loss)
        del saved, loss
    assert replayer.copied == {1}
    assert (replayer.made, replayer.replays) == (2, 5)
    assert all(torch.equal(loss, (x + w).sum()) for loss in losses)


def test_state_that_is_fed_back_is_replayed():
    _, replayer = adding()
    w, state = torch.ones(4), torch.zeros(4)
    for n in range(12):
        (state,) = replayer(state, w)
        assert torch.equal(state, torch.full((4,), n + 1.0))
    assert replayer.replays == 11
    assert replayer.made <= 3


def test_only_recently_used_sizes_keep_recordings():
    graph_pool, w = GraphPool(), torch.randn(4)
    replayers = [
        Called(Counted(lambda x, w: (x + w,)), plan_of(), graph_pool) for _ in range(MAX_SIZES + 3)
    ]
    for replayer in replayers:
        for _ in range(3):
            x = torch.randn(4)
            assert torch.equal(replayer(x, w)[0], x + w)
    assert [bool(one.recordings) for one in replayers] == [False] * 3 + [True] * MAX_SIZES
    x = torch.randn(4)
    (held,) = replayers[3](x, w)  # the one used longest ago is the one used last
    assert torch.equal(replayers[0](x, w)[0], x + w)
    assert replayers[3].recordings and replayers[0].recordings and not replayers[4].recordings
    assert torch.equal(held, x + w)


def test_freed_replayers_leave_the_graph_pool():
    graph_pool, w = GraphPool(), torch.randn(4)
    for _ in range(2 * MAX_SIZES):
        replayer = Called(Counted(lambda x, w: (x + w,)), plan_of(), graph_pool)
        for _ in range(3):
            replayer(torch.randn(4), w)
        gc.collect()  # the stand-in for a graph has what it runs
    assert len(graph_pool._users) <= 2
    assert replayer.recordings


def test_a_weight_that_moves_is_copied():
    _, replayer = adding()
    x = torch.randn(4)
    w = torch.randn(4)
    replayer(x, w)
    replayer(x, w)
    kept = []
    for _ in range(5):
        kept.append(torch.randn(4))
        (y,) = replayer(x, kept[-1])
        assert torch.equal(y, x + kept[-1])
        del y
    assert replayer.made == 2
    assert replayer.moving == {1}
    assert not replayer.refused


def test_large_weights_that_alternate_are_read_where_they_are(monkeypatch):
    monkeypatch.setattr(policy, "CHEAP_BYTES", 0)
    _, replayer = adding()
    x, weights = torch.randn(4), [torch.randn(4) for _ in range(MAX_RECORDINGS)]
    for n in range(3 * MAX_RECORDINGS):
        w = weights[n % MAX_RECORDINGS]
        assert torch.equal(replayer(x, w)[0], x + w)
    assert replayer.made == MAX_RECORDINGS
    assert not replayer.moving


def test_a_backward_reads_what_its_forward_recorded():
    """Its first inputs came from a forward that ran plainly; only the gradient is copied."""
    forward = Called(Counted(lambda x, w: (x * w, x + w)), plan_of(outputs=(2, 3)))
    backward = Called(Counted(lambda saved, g: (saved * g,)), plan_of())
    w, kept = torch.randn(4), []
    for _ in range(6):
        x, g = torch.randn(4), torch.randn(4)
        kept += [x, g]  # so that the next ones are elsewhere
        y, saved = forward(x, w)
        (result,) = backward(saved, g)
        assert torch.equal(result, (x + w) * g)
        del y, saved, result
    assert (forward.made, backward.made) == (1, 1)
    assert backward.moving == {1}


def mutating(x, m):
    m.add_(x)
    return (x * 2,)


def test_written_inputs_are_written_where_they_are():
    replayer = Called(mutating, plan_of(mutated=(1,)))
    x, state = torch.ones(4), torch.zeros(4)
    for n in range(4):
        replayer(x, state)
    assert torch.equal(state, torch.full((4,), 4.0))
    kept = [torch.zeros(4) for _ in range(MAX_MADE + 2)]
    for moved in kept:
        replayer(x, moved)
    assert all(torch.equal(moved, x) for moved in kept)
    assert (replayer.made, replayer.moving) == (2, {1})


def call_with_each(replayer, x, states):
    for state in states:
        replayer(x, state)


def test_calls_that_are_hardly_ever_replayed_are_given_up(monkeypatch):
    """Choosing takes time, too."""
    monkeypatch.setattr(policy, "LAUNCH_BYTES", 0)
    monkeypatch.setattr(policy, "CHEAP_BYTES", 0)
    _, replayer = adding()
    x, held = torch.randn(4), []
    with pytest.warns(FallbackWarning, match="results stay referenced"):
        hold_all(replayer, x, held, 2 * MAX_PLAIN)
    assert replayer.refused
    assert all(torch.equal(y, x + x) for y in held)


def hold_all(replayer, x, held, calls):
    for _ in range(calls):
        held.extend(replayer(x, x))


def test_written_inputs_with_gaps_are_not_copied():
    """A copy back would also write what is between their elements."""
    replayer = Called(mutating, plan_of(mutated=(1,)))
    x = torch.ones(4)
    kept = [torch.zeros(8)[::2] for _ in range(MAX_MADE + 4)]
    with pytest.warns(FallbackWarning, match="move at every call"):
        call_with_each(replayer, x, kept)
    assert replayer.refused
    assert not replayer.moving


def test_results_in_the_memory_of_inputs_are_the_callers():
    steps = (MADE, *LAUNCHES, View(3, 0, (2,), (1,), 1, torch.float32))
    replayer = Called(lambda x, w: (x, x[1:3], x + w), plan_of(steps=steps, outputs=(0, 3, 2)))
    w = torch.randn(4)
    kept = [torch.randn(4) for _ in range(5)]
    for x in kept:
        same, view, total = replayer(x, w)
        assert same is x
        assert view.data_ptr() == x[1:].data_ptr()
        assert view.shape == (2,)
        assert torch.equal(total, x + w)


def test_an_operation_that_returns_its_input_is_refused():
    replayer = Called(lambda x, w: (w.view(2, 2),), plan_of())
    x, w = torch.randn(4), torch.randn(4)
    replayer(x, w)
    with pytest.warns(FallbackWarning, match="memory of an input"):
        (y,) = replayer(x, w)
    assert torch.equal(y, w.view(2, 2))


def test_failed_capture_warns_and_runs_plainly(monkeypatch):
    def failing(*arguments):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(policy, "capture", failing)
    run, replayer = adding()
    x, w = torch.randn(4), torch.randn(4)
    replayer(x, w)
    with pytest.warns(FallbackWarning, match="not permitted when stream is capturing"):
        (y,) = replayer(x, w)
    assert torch.equal(y, x + w)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replayer(x, w)


def test_expanded_and_strided_inputs_are_copied_whole():
    replayer = Called(lambda x, w: (x + w,), plan_of())
    w = torch.randn(3, 4)
    kept = []
    for n in range(4):
        kept.append(
            [torch.randn(1).expand(3, 4), torch.randn(4, 3).t(), torch.randn(3, 9)[:, ::3]][n % 2]
        )
        (y,) = replayer(kept[-1], w) if n % 2 == 0 else (kept[-1] + w,)
        assert torch.equal(y, kept[-1] + w)


class TestGeneratorState:
    """The generator state of a draw is a CPU scalar after a plain forward, a CUDA one after a
    recorded one.
    """

    OP = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default

    def plan(self) -> Plan:
        places = [argument.name for argument in self.OP._schema.arguments]
        given = [Slot(0)] * 9 + [0.1, [True] * 4]
        given[places.index("philox_seed")], given[places.index("philox_offset")] = Slot(1), Slot(2)
        call = Call(self.OP, tuple(given), {}, (3,))
        return plan_of(inputs=3, steps=(call, *LAUNCHES), outputs=(3,))

    def test_generator_state_may_be_on_any_device(self):
        x, meta = torch.zeros(4), torch.zeros((), device="meta")
        assert why_not(self.plan(), (x, meta, meta)) == ""
        assert "input 0" in why_not(self.plan(), (meta, x, x))

    def test_recordings_hold_generator_state_in_own_memory(self):
        call = Called(lambda x, seed, offset: (x + seed + offset,), self.plan())
        x = torch.ones(4)
        for number in range(5):
            seed, offset = torch.tensor(float(number)), torch.tensor(0.5)
            assert torch.equal(call(x, seed, offset)[0], x + number + 0.5)
        assert call.made == 1
        assert call.replays == 4

    def test_plain_run_reads_generator_state_on_the_cpu(self):
        seen = []
        call = Called(lambda x, *state: seen.append([type(t) for t in state]) or (x,), self.plan())
        call.policy.refused = "because"

        class Elsewhere(torch.Tensor):
            def cpu(self):
                return self.as_subclass(torch.Tensor)

        state = [torch.zeros(()).as_subclass(Elsewhere) for _ in range(2)]
        call(torch.ones(4), *state)
        assert seen == [[torch.Tensor, torch.Tensor]]


@pytest.mark.parametrize("limit", [3, 4])
def test_copies_that_take_longer_than_launches(limit, monkeypatch):
    """An input that is never where it was is copied as long as that is less than what it saves."""
    monkeypatch.setattr(policy, "LAUNCH_BYTES", limit)
    monkeypatch.setattr(policy, "CHEAP_BYTES", limit)
    run = Counted(lambda x, w: (x + w,))
    call, w, kept = Called(run, plan_of()), torch.ones(4), []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in range(12):
            kept.append(torch.full((4,), float(n)))
            assert torch.equal(call(kept[-1], w)[0], kept[-1] + 1)
    assert bool(call.refused) == (limit < 4)
    assert bool(told) == (limit < 4)
    assert (call.made == 1) == (limit >= 4)


def test_recordings_that_are_never_replayed_again_are_given_up():
    """More and more inputs move, as what a plain forward saves for a backward does."""
    run = Counted(lambda *xs: (sum(xs),))
    plan = plan_of(inputs=40, steps=(replace(MADE, slot=40), *LAUNCHES), outputs=(40,))
    replayer = Called(run, plan)
    kept = [torch.randn(4) for _ in range(40)]
    alive = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for call in range(3 * MAX_RECORDINGS):
            alive.append(kept)  # or their addresses would come back
            kept = [x.clone() if n < 2 * call else x for n, x in enumerate(kept)]
            (y,) = replayer(*kept)
            torch.testing.assert_close(y, sum(kept))
            del y
    assert replayer.refused
    assert replayer.made == MAX_UNUSED < MAX_MADE


def test_moving_input_at_its_last_address_by_chance(monkeypatch):
    """Freed memory is handed out again: an input moves if any recording has it elsewhere."""
    monkeypatch.setattr(policy, "CHEAP_BYTES", 0)
    _, replayer = adding()
    xs, ws = ([torch.randn(4) for _ in range(4)] for _ in range(2))
    places = [(0, 0), (0, 0), (1, 1), (2, 1), (0, 2), (0, 3), (1, 0), (2, 1), (3, 2)]
    for x, w in ((xs[a], ws[b]) for a, b in places):
        (y,) = replayer(x, w)
        assert torch.equal(y, x + w)
        del y
    assert not replayer.refused
    assert replayer.made == MAX_RECORDINGS + 1
    assert replayer.moving == {0, 1}


def test_errors_of_a_call():
    _, replayer = adding()
    with pytest.raises(TypeError, match="takes 2 tensors, got 1"):
        replayer(torch.randn(4))
    with pytest.raises(TypeError, match="argument 1 of a compiled graph is not a tensor"):
        replayer(torch.randn(4), 1)


def test_a_replay_that_fails_leaves_the_recording_usable():
    _, replayer = adding()
    x, w = torch.randn(4), torch.randn(4)
    replayer(x, w)
    replayer(x, w)
    graph_replay = FakeGraph.replay
    try:
        FakeGraph.replay = lambda self: 1 / 0
        with pytest.raises(ZeroDivisionError):
            replayer(x, w)
    finally:
        FakeGraph.replay = graph_replay
    for _ in range(2):
        (y,) = replayer(x, w)
        assert torch.equal(y, x + w)
        del y
    assert replayer.made == 1


def test_threads_do_not_overwrite_each_others_results():
    _, replayer = adding()
    w = torch.randn(4)

    def run(seed):
        for step in range(200):
            x = torch.full((4,), float(1000 * seed + step))
            (y,) = replayer(x, w)
            assert torch.equal(y, x + w)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(run, n) for n in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    assert replayer.replays


def test_description_of_what_is_replayed():
    _, replayer = adding()
    w, held = torch.randn(4), []
    for n in range(5):
        held.append(replayer(torch.full((4,), float(n)), w))
    text = "4 of 5 calls replayed a CUDA graph, which copies 32 bytes: input 0, result 0"
    assert replayer.describe() == text
