"""When CUDA graphs are recorded and replayed: the choices, with a recorder that needs no GPU.

The stand-in for a graph computes again into the memory that its results were first given; what real
graphs do is in tests/device.
"""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from jitmagic.codegen.plan import Alloc, Call, Launch, Plan, Slot, View
from jitmagic.errors import FallbackWarning
from jitmagic.runtime import cudagraph
from jitmagic.runtime.cudagraph import (
    MAX_MADE,
    MAX_RECORDINGS,
    MAX_UNUSED,
    Replayer,
    recording_refusal,
    with_cuda_graphs,
)
from jitmagic.runtime.graph_pool import MAX_SIZES, GraphPool

CPU = torch.device("cpu")
MADE = Alloc(2, (4,), (1,), torch.float32, CPU)


class FakeGraph:
    def __init__(self, run, inputs, outputs):
        self.run, self.inputs, self.outputs = run, inputs, outputs

    def replay(self):
        for old, new in zip(self.outputs, self.run(*self.inputs)):
            if old is not None:
                old.copy_(new)


def fake_record(run, inputs):
    outputs = run(*inputs)
    return FakeGraph(run, [at_address(x) for x in inputs], outputs), outputs


def at_address(x):
    """The same memory, which this tensor does not keep: a graph knows addresses alone."""
    memory = x.untyped_storage()
    where = memory.data_ptr(), x.device, memory.nbytes()
    same = torch._C._construct_storage_from_data_pointer(*where)
    return torch.empty(0, dtype=x.dtype).set_(same, x.storage_offset(), x.shape, x.stride())


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(cudagraph, "_record", fake_record)
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)


def plan_of(**facts) -> Plan:
    given = {"inputs": 2, "steps": (MADE,), "outputs": (2,), **facts}
    return Plan("p", **{"constants": (), **given})


class Counted:
    def __init__(self, fn):
        self.fn, self.calls = fn, 0

    def __call__(self, *inputs):
        self.calls += 1
        return self.fn(*inputs)


def adding() -> tuple[Counted, Replayer]:
    run = Counted(lambda x, w: (x + w,))
    return run, Replayer(run, plan_of())


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
    assert replayer.recordings[0].moving == (0,)


def test_results_that_are_held_are_never_overwritten():
    _, replayer = adding()
    w = torch.randn(4)
    held = []
    for n in range(MAX_RECORDINGS + 4):
        x = torch.full((4,), float(n))
        (y,) = replayer(x, w)
        held.append((y.view(2, 2)[1], (x + w).view(2, 2)[1]))
    assert all(torch.equal(got, expected) for got, expected in held)
    assert replayer.made == MAX_RECORDINGS
    replays = replayer.replays
    held.clear()
    replayer(x, w)
    assert replayer.replays == replays + 1


def test_only_recently_used_sizes_keep_recordings():
    graph_pool, w = GraphPool(), torch.randn(4)
    replayers = [
        Replayer(Counted(lambda x, w: (x + w,)), plan_of(), graph_pool)
        for _ in range(MAX_SIZES + 3)
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
        replayer = Replayer(Counted(lambda x, w: (x + w,)), plan_of(), graph_pool)
        for _ in range(3):
            replayer(torch.randn(4), w)
        gc.collect()  # the stand-in for a graph has what it runs
    assert len(graph_pool._used) <= 2
    assert replayer.recordings


def test_a_weight_that_moves_is_recorded_again_then_copied():
    _, replayer = adding()
    x = torch.randn(4)
    w = torch.randn(4)
    replayer(x, w)
    replayer(x, w)
    kept = []
    for _ in range(MAX_RECORDINGS + 3):
        kept.append(torch.randn(4))
        (y,) = replayer(x, kept[-1])
        assert torch.equal(y, x + kept[-1])
        del y
    assert replayer.made == MAX_RECORDINGS + 1
    assert replayer.recordings[-1].moving == (1,)
    assert not replayer.refused


def test_a_backward_reads_what_its_forward_recorded():
    """Its first inputs came from a forward that ran plainly; only the gradient is copied."""
    forward = Replayer(Counted(lambda x, w: (x * w, x + w)), plan_of(outputs=(2, 3)))
    backward = Replayer(Counted(lambda saved, g: (saved * g,)), plan_of())
    w, kept = torch.randn(4), []
    for _ in range(6):
        x, g = torch.randn(4), torch.randn(4)
        kept += [x, g]  # so that the next ones are elsewhere
        y, saved = forward(x, w)
        (result,) = backward(saved, g)
        assert torch.equal(result, (x + w) * g)
        del y, saved, result
    assert (forward.made, backward.made) == (1, 1)
    assert backward.recordings[0].moving == (1,)


def test_written_input_is_not_copied():
    def run(x, m):
        m.add_(x)
        return (x * 2,)

    replayer = Replayer(run, plan_of(mutated=(1,)))
    x, state = torch.ones(4), torch.zeros(4)
    for n in range(4):
        replayer(x, state)
    # the stand-in runs while it records: one more than the calls
    assert torch.equal(state, torch.full((4,), 5.0))
    kept = [torch.zeros(4) for _ in range(MAX_MADE + 2)]
    with pytest.warns(FallbackWarning, match="move at every call"):
        assert [replayer(x, moved)[0].sum() for moved in kept]
    assert replayer.refused


def test_results_in_the_memory_of_inputs_are_the_callers():
    steps = (MADE, View(3, 0, (2,), (1,), 1, torch.float32))
    replayer = Replayer(lambda x, w: (x, x[1:3], x + w), plan_of(steps=steps, outputs=(0, 3, 2)))
    w = torch.randn(4)
    kept = [torch.randn(4) for _ in range(5)]
    for x in kept:
        same, view, total = replayer(x, w)
        assert same is x
        assert view.data_ptr() == x[1:].data_ptr()
        assert view.shape == (2,)
        assert torch.equal(total, x + w)


def test_an_operation_that_returns_its_input_is_refused():
    replayer = Replayer(lambda x, w: (w.view(2, 2),), plan_of())
    x, w = torch.randn(4), torch.randn(4)
    replayer(x, w)
    with pytest.warns(FallbackWarning, match="memory of an input"):
        (y,) = replayer(x, w)
    assert torch.equal(y, w.view(2, 2))


def test_failed_capture_warns_and_runs_plainly(monkeypatch):
    def failing(run, inputs):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cudagraph, "_record", failing)
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
    replayer = Replayer(lambda x, w: (x + w,), plan_of())
    w = torch.randn(3, 4)
    kept = []
    for n in range(4):
        kept.append(
            [torch.randn(1).expand(3, 4), torch.randn(4, 3).t(), torch.randn(3, 9)[:, ::3]][n % 2]
        )
        (y,) = replayer(kept[-1], w) if n % 2 == 0 else (kept[-1] + w,)
        assert torch.equal(y, kept[-1] + w)


def test_reasons_not_to_record():
    x = torch.randn(4)
    gpu = torch.device("cuda", 0)
    assert "lives on cpu" in recording_refusal(plan_of(device=gpu), [x, x])
    sizes = Call(torch.ops.aten.nonzero.default, (Slot(0),), {}, (2,))
    assert "size of its result" in recording_refusal(plan_of(steps=(sizes,)), [x, x])
    random = Call(torch.ops.aten.rand.default, ([4],), {}, (2,))
    assert recording_refusal(plan_of(steps=(random,)), [x, x]) == ""
    own = Call(torch.ops.aten.rand.generator, ([4],), {"generator": torch.Generator()}, (2,))
    assert "generator of its own" in recording_refusal(plan_of(steps=(own,)), [x, x])


def test_host_reads_sizes_that_only_kernels_take():
    """A size is a constant of the CPU, whose number a kernel is launched with."""
    facts = {"constants": (torch.tensor(7, device="meta"),), "outputs": (3,)}
    made = Alloc(3, (4,), (1,), torch.float32, CPU)
    steps = (made, Launch("k", (0, 2, 3)))
    assert recording_refusal(plan_of(steps=steps, **facts), [torch.randn(4)] * 2) == ""
    call = Call(torch.ops.aten.add.Tensor, (Slot(0), Slot(2)), {}, (3,))
    assert "a constant" in recording_refusal(plan_of(steps=(call,), **facts), [torch.randn(4)] * 2)
    view = (View(4, 2, (), (), 0, torch.int64), *steps)
    outputs = {**facts, "outputs": (4,)}
    assert "a constant" in recording_refusal(plan_of(steps=view, **outputs), [torch.randn(4)] * 2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8])
@pytest.mark.parametrize("made", [True, False])
def test_indexing_syncs_with_the_host_only_for_masks(dtype, made):
    x, index = torch.randn(4), torch.zeros(4, dtype=dtype)
    alloc = Alloc(2, (4,), (1,), dtype, torch.device("cpu"))
    call = Call(torch.ops.aten.index.Tensor, (Slot(0), [None, Slot(2 if made else 1)]), {}, (3,))
    why = recording_refusal(plan_of(steps=(alloc, call)), [x, index])
    assert bool(why) == (dtype in (torch.bool, torch.uint8))


def test_plans_of_the_cpu_are_left_alone():
    run = Counted(lambda x: (x,))
    assert with_cuda_graphs(run, plan_of()) is run


class TestGeneratorState:
    """The generator state of a draw is a CPU scalar after a plain forward, a CUDA one after a
    recorded one.
    """

    OP = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default

    def plan(self) -> Plan:
        places = [argument.name for argument in self.OP._schema.arguments]
        given = [Slot(0)] * 9 + [0.1, [True] * 4]
        given[places.index("philox_seed")], given[places.index("philox_offset")] = Slot(1), Slot(2)
        return plan_of(inputs=3, steps=(Call(self.OP, tuple(given), {}, (3,)),), outputs=(3,))

    def test_generator_state_may_be_on_any_device(self):
        x, meta = torch.zeros(4), torch.zeros((), device="meta")
        assert recording_refusal(self.plan(), (x, meta, meta)) == ""
        assert "input 0" in recording_refusal(self.plan(), (meta, x, x))

    def test_recordings_hold_generator_state_in_own_memory(self):
        call = Replayer(lambda x, seed, offset: (x + seed + offset,), self.plan())
        x = torch.ones(4)
        for number in range(5):
            seed, offset = torch.tensor(float(number)), torch.tensor(0.5)
            assert torch.equal(call(x, seed, offset)[0], x + number + 0.5)
        assert call.made == 1
        assert call.replays == 4

    def test_plain_run_reads_generator_state_on_the_cpu(self):
        seen = []
        call = Replayer(
            lambda x, *state: seen.append([type(t) for t in state]) or (x,), self.plan()
        )
        call.refused = "because"

        class Elsewhere(torch.Tensor):
            def cpu(self):
                return self.as_subclass(torch.Tensor)

        state = [torch.zeros(()).as_subclass(Elsewhere) for _ in range(2)]
        call(torch.ones(4), *state)
        assert seen == [[torch.Tensor, torch.Tensor]]


@pytest.mark.parametrize("limit", [15, 16])
def test_copies_that_take_longer_than_launches(limit, monkeypatch):
    """An input that is never where it was is copied as long as that is less than what it saves."""
    monkeypatch.setattr(cudagraph, "LAUNCH_BYTES", limit)
    run = Counted(lambda x, w: (x + w,))
    call, w, kept = Replayer(run, plan_of()), torch.ones(4), []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in range(6):
            kept.append(torch.full((4,), float(n)))
            assert torch.equal(call(kept[-1], w)[0], kept[-1] + 1)
    assert bool(call.refused) == (limit < 16)
    assert bool(told) == (limit < 16)
    assert (call.replays > 0) == (limit >= 16)


def test_recordings_that_are_never_replayed_again_are_given_up():
    """More and more inputs move, as what a plain forward saves for a backward does."""
    run = Counted(lambda *xs: (sum(xs),))
    plan = plan_of(inputs=40, steps=(replace(MADE, slot=40),), outputs=(40,))
    replayer = Replayer(run, plan)
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


def test_moving_input_at_its_last_address_by_chance():
    """Freed memory is handed out again: an input moves if any recording has it elsewhere."""
    _, replayer = adding()
    xs, ws = ([torch.randn(4) for _ in range(4)] for _ in range(2))
    places = [(0, 0), (0, 0), (1, 1), (2, 1), (0, 2), (0, 3), (1, 0), (2, 1), (3, 2)]
    for x, w in ((xs[a], ws[b]) for a, b in places):
        (y,) = replayer(x, w)
        assert torch.equal(y, x + w)
        del y
    assert not replayer.refused
    assert replayer.made == MAX_RECORDINGS + 1
    assert replayer.recordings[-1].moving == (0, 1)


def test_failed_recording_has_no_recorded_memory(monkeypatch):
    def fail(run, inputs):
        raise RuntimeError("not permitted")

    monkeypatch.setattr(cudagraph, "_record", fail)
    failed = []
    try:
        cudagraph._Recording(lambda x: (x,), [torch.randn(4)], frozenset(), CPU)
    except RuntimeError as error:
        failed.append(error)  # its traceback holds the recording
    assert failed
    cudagraph._recorded_memory()
