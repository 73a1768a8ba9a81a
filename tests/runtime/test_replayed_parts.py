"""Programs of which only parts can be recorded, by the stand-in for CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.runtime import load
from jitmagic.runtime.cuda_graphs import replayer as policy
from jitmagic.runtime.cuda_graphs.graph_pool import MAX_SIZES
from jitmagic.runtime.cuda_graphs.replayer import Replayer
from tests.programs.counts import counts_of, eager_of

from .fake_graphs import graphs_on_the_cpu, no_gpu
from .test_replayed_programs import batches, replayed, trained

__all__ = ["graphs_on_the_cpu", "no_gpu"]

pytestmark = pytest.mark.usefixtures("graphs_on_the_cpu")


@torch.library.custom_op("replayed_parts::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def _save_factor(ctx, inputs, output) -> None:
    ctx.factor = inputs[1]


scaled.register_autograd(
    lambda ctx, grad: (scaled(grad, ctx.factor), None), setup_context=_save_factor
)

seen: list[Tensor] = []


@torch.library.custom_op("replayed_parts::seen", mutates_args=())
def watched(x: Tensor) -> Tensor:
    seen.append(x)
    return x + 1


@watched.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("replayed_parts::added", mutates_args=("x",))
def added(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@pytest.fixture
def cut(monkeypatch) -> Iterator[list[Replayer]]:
    """The replayers of plans that were cut into parts."""
    found: list[Replayer] = []
    whole = Replayer._cut

    def noted(self, *given):
        found.append(self)
        return whole(self, *given)

    monkeypatch.setattr(Replayer, "_cut", noted)
    yield found
    found.clear()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(scaled(self.first(x).relu(), 2.0) + 1))


def loss_of(net, x):
    return net(x).square().mean()


def replays_of(cut: list[Replayer]) -> list[list[int]]:
    """For each plan that was cut, how often its parts were replayed."""
    return [[part.replays for part in whole.parts.replayers] for whole in cut]


@pytest.mark.parametrize(("zeroed_every", "forwards"), [(1, 1), (3, 1), (1, 3)])
def test_training_around_a_custom_operator(cut, zeroed_every, forwards):
    xs = batches(12)
    want = trained(loss_of, Net(), xs, zeroed_every, forwards)
    call = replayed(loss_of)
    got = trained(call, Net(), xs, zeroed_every, forwards)
    torch.testing.assert_close(got, want)
    assert len(cut) == 2  # forward and backward
    for first, between, last in replays_of(cut):
        assert between == 0
        assert min(first, last) >= 12 - max(zeroed_every, forwards)
    assert counts_of(call).graphs == 1
    assert eager_of(call) == []


def test_parts_that_hold_results(cut):
    """A custom operator keeps what a recording made: it is never overwritten."""
    call = replayed(lambda x, w: watched((x @ w).relu() * 2).square() @ w)
    w = torch.randn(8, 8)
    seen.clear()
    held = []
    for x in [torch.randn(4, 8) for _ in range(12)]:
        held.append((call(x, w), x))
    assert len(seen) == 12
    for (got, x), kept in zip(held, seen, strict=True):
        middle = (x @ w).relu() * 2
        torch.testing.assert_close(kept, middle)
        torch.testing.assert_close(got, (middle + 1).square() @ w)
    ((first, _, last),) = replays_of(cut)
    assert (first, last) == (11, 11)


def test_results_of_a_recording_stay_where_they_are_for_the_next(cut):
    """What the first part makes is read by the last where it is, not copied."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        left = (x @ w).tanh() * 2
        return (scaled(left, 0.5) + left.exp()) @ w

    call, w = replayed(program), torch.randn(8, 8)
    kept = []
    for x in [torch.randn(4, 8) for _ in range(8)]:
        kept.append(x)  # so that the next one is elsewhere
        torch.testing.assert_close(call(x, w), program(x, w))
    (whole,) = cut
    first, _, last = whole.parts.replayers
    crossing = [n for n in range(last.plan.inputs) if n not in last.moving]
    assert len(crossing) >= 2  # the weight, and what the first part made
    # What is launched between may by chance be twice at one address before it moves.
    assert last.replays == 7
    assert first.moving == {0}


@pytest.mark.parametrize("moves", [False, True])
def test_writes_to_inputs_between_parts(cut, moves):
    """Every part sees what those before have written, in the input's own memory."""

    def program(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state.mul_(0.5).add_(x.sum(0))
        view = state[1:3]
        y = scaled(x * state, 2.0)
        state.add_(y.mean(0))
        added(state, y[0])
        view.mul_(1.5)
        return y + state, view * 2

    call = replayed(program)
    states = torch.randn(4), torch.randn(4)
    kept = []
    for x in [torch.randn(3, 4) for _ in range(10)]:
        if moves:
            kept.append(states)
            states = tuple(state.clone() for state in states)
        ours, theirs = states
        theirs.copy_(ours)
        torch.testing.assert_close(call(x, ours), program(x, theirs))
        torch.testing.assert_close(ours, theirs)
    (whole,) = cut
    assert sum(part.replays > 0 for part in whole.parts.replayers) >= 2


def test_indexing_with_masks(cut):
    """What follows a data-dependent size is compiled apart; parts are cut within that."""

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = scaled((x @ w).relu(), 2.0)
        chosen = y[y > 0.5]
        return chosen.sum() * 2, (y @ w).tanh()

    call, w = replayed(program), torch.randn(4, 4)
    for x in [torch.randn(4, 4) for _ in range(8)]:
        torch.testing.assert_close(call(x, w), program(x, w))
    assert eager_of(call) == []
    assert any(part.replays for whole in cut for part in whole.parts.replayers)


def test_numbers_that_only_some_kernels_read(cut):
    """A number of the CPU, such as a learning rate, is read by what a part launches."""

    def program(p: Tensor, g: Tensor, rate: float) -> Tensor:
        p.sub_(g.tanh() * rate)
        return (p.exp() @ p).relu()

    call = replayed(program)
    ours, theirs = torch.ones(4, 4), torch.ones(4, 4)
    for n in range(8):
        g = torch.randn(4, 4)
        rate = 0.1 * (n + 1)
        torch.testing.assert_close(call(ours, g, rate), program(theirs, g, rate))
        torch.testing.assert_close(ours, theirs)


def test_results_that_are_inputs_or_views_of_them(cut):
    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = scaled(x.sin() + 1, 2.0)
        return y.cos(), x, x[1:]

    call = replayed(program)
    for _ in range(5):
        x = torch.randn(4)
        y, same, rest = call(x)
        torch.testing.assert_close(y, program(x)[0])
        assert same is x
        assert rest.data_ptr() == x[1:].data_ptr()
    assert len(cut) == 1


def test_random_numbers_go_on_as_in_eager(cut):
    """Draws are in the program's order, on both sides of what is not recorded."""

    def program(x: Tensor) -> Tensor:
        y = x + torch.rand(4)
        return scaled(y * 2, 2.0) + torch.rand(4)

    call, x = replayed(program), torch.zeros(4)
    found = []
    for run in (program, call):
        torch.manual_seed(3)
        found.append([run(x).clone() for _ in range(4)])
    torch.testing.assert_close(*found)


def test_an_operator_that_raises_leaves_the_parts_usable(cut):
    @torch.library.custom_op("replayed_parts::picky", mutates_args=())
    def picky(x: Tensor) -> Tensor:
        if float(x[0]) > 5:
            raise ValueError("too much")
        return x * 2

    picky.register_fake(lambda x: torch.empty_like(x))
    call = replayed(lambda x: (picky(x.sin() * 0 + x) + 1).exp().sum())
    for n in range(8):
        x = torch.full((4,), float(n % 4 * 2))
        if float(x[0]) > 5:
            with pytest.raises(ValueError, match="too much"):
                call(x)
        else:
            torch.testing.assert_close(call(x), (x * 2 + 1).exp().sum())
    ((first, _, last),) = replays_of(cut)
    assert first > last > 1


def test_only_the_part_that_gives_up_is_launched(cut, monkeypatch):
    recorded = policy.capture
    failing: list[Callable[..., object]] = []

    def capture(run, *given):
        failing.append(run)
        if len(failing) == 1:
            raise RuntimeError("an operation that CUDA cannot record")
        return recorded(run, *given)

    monkeypatch.setattr(policy, "capture", capture)
    call, x = replayed(lambda x: scaled(x.sin() + 1, 2.0).exp().sum()), torch.randn(4)
    with pytest.warns(jitmagic.FallbackWarning, match="part 1 of 3: not replayed"):
        found = [call(x) for _ in range(6)]
    torch.testing.assert_close(found, [((x.sin() + 1) * 2).exp().sum()] * 6)
    ((first, _, last),) = replays_of(cut)
    assert (first, last) == (0, 5)


def test_a_thread_that_comes_while_a_plan_is_cut_runs_the_parts(cut):
    call, x = replayed(lambda x: scaled(x.sin() + 1, 2.0).exp().sum()), torch.randn(4)
    call(x)
    (whole,) = cut
    assert whole.choose((x,)) is whole.parts.run
    assert whole.choose((torch.randn(4),)) is whole.parts.run
    assert len(cut) == 1
    assert not whole.recordings


def test_sizes_have_parts_of_their_own(cut):
    def program(x: Tensor) -> Tensor:
        return scaled(x.softmax(0) * x.shape[0], 2.0).tanh().sum(0)

    call = jitmagic.jit(program, dynamic=True, options={"cuda_graphs": True, "keep": "compiled"})
    sizes = range(3, 3 + MAX_SIZES + 3)
    for n in (*sizes, *sizes, *sizes):
        x = torch.randn(n, 5)
        torch.testing.assert_close(call(x), program(x))
    assert len(cut) == len(sizes)
    assert sum(record.kernels > 0 for record in handle_of(call).journal) == 1
    recorded = [whole for whole in cut if whole.parts.recordings]
    assert len(recorded) == MAX_SIZES  # a size counts once, whatever its parts


@pytest.fixture
def aligned_kernels(monkeypatch) -> list[bool]:
    """Kernels of the CPU are loaded as those of a GPU: for aligned inputs, and for any."""
    built: list[bool] = []

    def kernels(plan, source, target, options, images, is_aligned=True):
        built.append(is_aligned)
        return load._host_kernels(source, target, options, lambda text: None, images)

    def template(plan, source, *given):
        return load._triton_template(plan, source, *given)

    monkeypatch.setattr(load, "_triton_kernels", kernels)
    monkeypatch.setattr(load, "_load_host", load._load_triton)
    monkeypatch.setattr(load, "_loaded_template", template)
    return built


@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_that_are_not_aligned(cut, aligned_kernels, dynamic):
    """Kernels for any input are built once for all parts, when one first needs them."""

    def program(x: Tensor) -> Tensor:
        return (scaled(x.sin() + 1, 2.0) * x).exp().sum()

    options = {"cuda_graphs": True, "keep": "compiled"}
    call, memory = jitmagic.jit(program, dynamic=dynamic, options=options), torch.randn(64)
    for start in (1, 0, 3, 4, 1):  # the first call of each part launches its kernels
        for size in (20, 30)[: 1 + dynamic]:
            x = memory[start : start + size]
            torch.testing.assert_close(call(x), program(x))
    assert aligned_kernels == [True, False]
    assert len(cut) == 1 + dynamic


def test_parts_are_freed_with_the_function(cut):
    call = replayed(lambda x: scaled(x.sin() + 1, 2.0).exp().sum())
    for _ in range(3):
        call(torch.ones(4))
    (whole,) = cut
    alive = [part for part in whole.parts.replayers if part.recordings]
    assert len(alive) == 2
    number = len([one for one in gc.get_objects() if isinstance(one, Replayer)])
    cut.clear()
    del call, whole, alive
    gc.collect()
    assert len([one for one in gc.get_objects() if isinstance(one, Replayer)]) <= number - 4
