"""CUDA graphs of the parts of a plan, around what cannot be recorded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from jitmagic.runtime.cuda_graphs.replayer import Replayer
from tests.programs.counts import eager_of

pytestmark = pytest.mark.device

seen: list[Tensor] = []


@torch.library.custom_op("parts_device::gated", mutates_args=())
def gated(x: Tensor, gate: float) -> Tensor:
    seen.append(x)
    return x * gate + 1


@gated.register_fake
def _(x: Tensor, gate: float) -> Tensor:
    return torch.empty_like(x)


def _save_gate(ctx, inputs, output) -> None:
    ctx.gate = inputs[1]


gated.register_autograd(lambda ctx, grad: (grad * ctx.gate, None), setup_context=_save_gate)


@torch.library.custom_op("parts_device::pushed", mutates_args=("x",))
def pushed(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@pytest.fixture(autouse=True)
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
    seen.clear()
    gc.collect()


def replays_of(cut: list[Replayer]) -> list[list[int]]:
    return [[part.replays for part in whole.parts.replayers] for whole in cut]


def compiled(fn: Callable[..., object]) -> Callable[..., object]:
    return jitmagic.jit(fn, mode="reduce-overhead", options={"keep": "compiled"})


def same(got: object, want: object) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = (
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.first(x))
        return self.last(self.norm(gated(y, 0.5) + y)).tanh()


def batches(count: int) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(32, 64, device="cuda") for _ in range(count)]


def test_forward_around_a_custom_operator(cut):
    net = Block().cuda()
    call = compiled(lambda x: net(x))
    with torch.no_grad():
        for x in batches(10):
            same(call(x), net(x))
    ((first, between, last),) = replays_of(cut)
    assert between == 0
    assert min(first, last) >= 8
    assert eager_of(call) == []


@pytest.mark.parametrize("zeroed_every", [1, 3])
def test_training_around_a_custom_operator(cut, zeroed_every):
    found = []
    for is_compiled in (False, True):
        net = Block().cuda()

        def loss(x, net=net):
            return net(x).square().mean()

        call = compiled(loss) if is_compiled else loss
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for step, x in enumerate(batches(14)):
            made = call(x)
            losses.append(made.detach())
            made.backward()
            if (step + 1) % zeroed_every == 0:
                optimizer.step()
                optimizer.zero_grad()
        found.append([*losses, *(p.detach() for p in net.parameters())])
    same(*found)
    (parts,) = replays_of(cut)  # the formula of the gradient needs no custom operator
    assert max(parts) >= 8


def test_results_that_are_held_are_never_overwritten(cut):
    """Neither are those that the operator itself keeps."""
    net = Block().cuda()
    call = compiled(lambda x: net(x))
    with torch.no_grad():
        held = [(call(x), x) for x in batches(12)]
        ours = list(seen)
        for (got, x), kept in zip(held, ours, strict=True):
            same(got, net(x))
            same(kept, F.gelu(net.first(x)))
    ((first, _, last),) = replays_of(cut)
    assert min(first, last) >= 8


def test_indexing_with_masks(cut):
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = gated((x @ w).relu(), 0.5)
        return y[y > 1.5].sum() * 2, (y @ w).tanh()

    call, w = compiled(program), torch.randn(64, 64, device="cuda") * 0.1
    for x in batches(8):
        same(call(x, w), program(x, w))


def test_a_step_that_waits_for_the_size_of_its_result(cut):
    """Kernels before and after an index with a mask, all in one graph."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).relu()
        y[y > 0.5] = 0.25
        return (y @ w).tanh()

    call, w = compiled(program), torch.randn(64, 64, device="cuda") * 0.1
    for x in batches(8):
        same(call(x, w), program(x, w))


def test_writes_between_the_parts(cut):
    def program(x: Tensor, state: Tensor) -> Tensor:
        state.mul_(0.5).add_(x.sum(0))
        y = gated((x * state).tanh().cos(), 0.5)
        state.add_(y.mean(0))
        pushed(state, y[0])
        view = state[8:24]
        view.mul_(1.5)
        return (y + state).sin()

    call = compiled(program)
    ours, theirs = (torch.zeros(64, device="cuda") for _ in range(2))
    for step, x in enumerate(batches(12)):
        if step % 3 == 2:
            ours = ours.clone()
        same(call(x, ours), program(x, theirs))
        same(ours, theirs)
    assert len(cut) == 1


def test_random_numbers_go_on_as_in_eager(cut):
    def program(x: Tensor) -> Tensor:
        y = F.dropout(x, 0.5, True) * 2
        return F.dropout(gated(y, 0.5), 0.25, True) + torch.rand_like(x)

    call, x = compiled(program), torch.ones(32, 64, device="cuda")
    found = []
    for run in (program, call):
        torch.cuda.manual_seed(7)
        found.append([run(x).clone() for _ in range(5)])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


def test_streams(cut):
    net = Block().cuda()
    call = compiled(lambda x: net(x))
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    with torch.no_grad():
        for number, x in enumerate(batches(12)):
            stream = streams[number % 3]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(500_000)
                got = call(x)
                found.append((got.clone(), net(x)))
            del got
    torch.cuda.synchronize()
    for got, want in found:
        same(got, want)


@pytest.mark.parametrize("train", [False, True])
def test_sizes_share_kernels_and_have_parts_of_their_own(cut, train):
    net = Block().cuda().requires_grad_(train)
    call = jitmagic.jit(net.forward, mode="reduce-overhead", dynamic=True)
    for n in (8, 24, 40, 8, 24, 40):
        for _ in range(3):
            x = torch.randn(n, 64, device="cuda", requires_grad=train)
            got, want = call(x), net(x)
            same(got, want)
            if train:
                same(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))
            del got, want
    assert eager_of(call) == []
    assert any(max(parts) for parts in replays_of(cut))


def test_inputs_that_are_not_aligned(cut):
    """Kernels of a part that load 16 bytes at once do not meet them."""
    net = Block().cuda()
    call = compiled(lambda x: net(x))
    memory = torch.randn(32 * 64 + 8, device="cuda")
    with torch.no_grad():
        for start in (0, 0, 1, 0, 3, 0, 4):
            x = memory[start : start + 32 * 64].view(32, 64)
            same(call(x), net(x))
