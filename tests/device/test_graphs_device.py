"""CUDA graphs on a GPU: eager's results, and nothing that a user holds is overwritten."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import jitmagic
from jitmagic.errors import FallbackWarning
from jitmagic.runtime.cuda_graphs import refusals
from jitmagic.runtime.cuda_graphs.capture import capture
from jitmagic.runtime.cuda_graphs.replayer import MAX_RECORDINGS, Replayer
from jitmagic.runtime.cuda_graphs.replayer import replaying as replay_of

from .compiled import executable, lowered

pytestmark = pytest.mark.device


def mlp(x, w, b, v):
    return (x @ w + b).relu() @ v, x.sum(0)


def inputs(n: int = 64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s, device="cuda:0") for s in ((n, 32), (32, 48), (48,), (48, 10))]


class Called:
    """A Replay, with the attributes of its replayer."""

    def __init__(self, call):
        self.call, self.policy = call, call.policy

    def __call__(self, *inputs):
        return self.call(*inputs)

    def __getattr__(self, name):
        return getattr(self.policy, name)


def replaying(fn, *given: torch.Tensor) -> Called:
    program, _ = lowered(fn, *given)
    return Called(executable(program, mode="reduce-overhead").run)


def same(got, want) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_replays_give_what_eager_gives():
    _, *weights = given = inputs()
    call = replaying(mlp, *given)
    for _ in range(6):
        x = torch.randn(64, 32, device="cuda:0")
        same(call(x, *weights), mlp(x, *weights))
    assert call.replays >= 4
    assert not call.refused


def test_weights_are_read_where_they_are():
    x, *weights = given = inputs()
    call = replaying(mlp, *given)
    for _ in range(6):
        same(call(x, *weights), mlp(x, *weights))
        for weight in weights:
            weight.add_(0.01)
    assert call.made == 1


def test_results_that_are_held_are_never_overwritten():
    _, *weights = given = inputs()
    call = replaying(mlp, *given)
    held = []
    for _ in range(MAX_RECORDINGS + 5):
        x = torch.randn(64, 32, device="cuda:0")
        first, second = call(x, *weights)
        held.append((first[3:5].t(), mlp(x, *weights)[0][3:5].t()))
        held.append((second, x.sum(0)))
        del first, second
    for got, want in held:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert call.made == 2
    assert call.replays == MAX_RECORDINGS + 4


def test_memory_of_temporaries_is_not_the_users():
    """Results of one recording stay whole while other recordings run."""
    fn = lambda x: ((x @ x).exp().sum(0), (x @ x @ x).tanh())
    call = replaying(fn, torch.randn(300, 300, device="cuda:0") * 0.01)
    kept = []
    for _ in range(12):
        x = torch.randn(300, 300, device="cuda:0") * 0.01
        kept.append((call(x), fn(x)))
        kept = kept[-3:]
        for got, want in kept:
            same(got, want)


def test_streams():
    x, *weights = given = inputs()
    call = replaying(mlp, *given)
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for number in range(9):
        stream = streams[number % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x + number
            results = [(call(y, *weights), mlp(y, *weights))]
            torch.cuda._sleep(1_000_000)
    torch.cuda.synchronize()
    for got, want in results:
        same(got, want)


def test_random_numbers_go_on_as_in_eager():
    fn = lambda x: torch.ops.aten.native_dropout(x, 0.5, True)[0] * 2
    x = torch.ones(4096, device="cuda:0")
    call = replaying(fn, x)
    torch.manual_seed(7)
    wanted = [fn(x) for _ in range(5)]
    torch.manual_seed(7)
    got = [call(x)[0].clone() for _ in range(5)]
    for a, b in zip(got, wanted):
        assert torch.equal(a, b)


def test_what_cannot_be_recorded_says_why():
    fn = lambda x: (torch.ops.aten.nonzero(x) * 2,)
    x = torch.tensor([0.0, 1.0, 2.0], device="cuda:0")
    program, _ = lowered(lambda x: x * 2, x)
    plan = executable(program, mode="reduce-overhead").run.policy.plan
    call = Called(replay_of(Replayer(lambda x: fn(x), plan)))
    call(x)
    with pytest.warns(FallbackWarning, match="not replayed as a CUDA graph"):
        (got,) = call(x)
    assert got.flatten().tolist() == [2, 4]
    assert call.refused
    torch.cuda.synchronize()
    assert torch.rand(4, device="cuda:0").shape == (4,)  # the generator has left the capture
    x, *weights = given = inputs()
    other = replaying(mlp, *given)
    for _ in range(3):
        same(other(x, *weights), mlp(x, *weights))
    assert other.replays == 2


def test_in_place_updates():
    fn = lambda p, g: p.copy_(p - 0.1 * g)
    p, g = torch.ones(1000, device="cuda:0"), torch.ones(1000, device="cuda:0")
    call = replaying(fn, p.clone(), g)
    for _ in range(6):
        (made,) = call(p, g)
        assert made is p
    torch.testing.assert_close(p, torch.full_like(p, 0.4))


def test_training_with_reduce_overhead():
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)]
        return torch.nn.Sequential(*layers).cuda()

    plain, tagged = model(), model()
    jitmagic.jit(tagged, mode="reduce-overhead")
    losses = []
    for net in (plain, tagged):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(8):
            x, y = torch.randn(16, 32).cuda(), torch.randn(16, 10).cuda()
            optimizer.zero_grad()
            loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    torch.testing.assert_close(losses[8:], losses[:8], rtol=1e-3, atol=1e-4)


def test_gradients_of_several_forwards_before_one_backward():
    def fn(x, w):
        return torch.tanh(x @ w).sum(-1)

    tagged = jitmagic.jit(fn, mode="reduce-overhead")
    torch.manual_seed(0)
    w = torch.randn(32, 16, device="cuda:0", requires_grad=True)
    for _ in range(4):
        batches = [torch.randn(8, 32, device="cuda:0") for _ in range(3)]
        total = sum(tagged(x, w).sum() for x in batches)
        (got,) = torch.autograd.grad(total, w)
        (want,) = torch.autograd.grad(sum(fn(x, w).sum() for x in batches), w)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "kind", ["EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION", "MATH"]
)
def test_training_attention_with_dropout(kind):
    """Steps whose forward is recorded and whose backward is not, and the other way round, too."""
    dtype = torch.float32 if kind in ("EFFICIENT_ATTENTION", "MATH") else torch.bfloat16

    def fn(w, x):
        return F.scaled_dot_product_attention(w, x, x, dropout_p=0.1)

    tagged = jitmagic.jit(fn, mode="reduce-overhead")
    w = torch.randn(2, 4, 64, 64, device="cuda:0", dtype=dtype, requires_grad=True)
    held = []
    with sdpa_kernel(getattr(SDPBackend, kind)):
        for step in range(3 * MAX_RECORDINGS):
            x = torch.randn_like(w, requires_grad=False)
            gradients = []
            for call in (tagged, fn):
                torch.manual_seed(step)
                out = call(w, x)
                gradients.append(torch.autograd.grad(out.float().square().sum(), w)[0])
                held.append((step, out))  # keeps recordings from being replayed
            torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-2)
            held = [] if step % 5 == 4 else held


def test_a_capture_that_fails_gives_its_memory_back():
    def run(x):
        return ((x @ x).exp().sum().cpu(),)

    x = torch.randn(2048, 2048, device="cuda:0")
    kept = []
    for _ in range(4):
        with pytest.raises(RuntimeError):
            capture(run, [x], 0, (16,), lambda outputs: ())
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        kept.append(torch.cuda.memory_reserved())
    assert kept[-1] == kept[0]


def test_recordings_give_their_memory_back():
    """Also what libraries keep for the stream of a recording is there once."""
    _, *weights = inputs()
    kept = []
    for n in range(64, 72):
        call = replaying(mlp, *inputs(n))
        for _ in range(4):
            call(torch.randn(n, 32, device="cuda:0"), *weights)
        assert call.replays
        del call
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        kept.append(torch.cuda.memory_allocated())
    assert kept[-1] == kept[1]


def test_every_alignment_and_size_is_copied():
    """Copies within a graph: at odd addresses, and more of them than a node has room for."""
    sizes = [1, 3, 15, 16, 17, 255, 4097, 100_003]
    programs = [(size, offset) for size in sizes for offset in (0, 1, 7, 16)]
    fn = lambda *xs: tuple(x + 1 for x in xs)
    given = [torch.zeros(size, dtype=torch.uint8, device="cuda:0") for size, _ in programs]
    call = replaying(fn, *given)
    held = []
    for number in range(6):
        whole = [
            torch.randint(0, 250, (size + offset,), dtype=torch.uint8, device="cuda:0")
            for size, offset in programs
        ]
        xs = [x[offset:] for x, (_, offset) in zip(whole, programs)]
        held.append((call(*xs), [x + 1 for x in xs], whole))
        for got, want, _ in held:
            assert all(torch.equal(a, b) for a, b in zip(got, want))
    assert len(call.moving) == len(call.copied) == len(programs)
    assert call.replays == 5


def test_large_inputs_are_copied_whole():
    fn = lambda x, w: ((x @ w).relu() @ w).relu() @ w
    w = torch.randn(256, 256, device="cuda:0") / 16
    xs = [torch.randn(20_000, 256, device="cuda:0") for _ in range(6)]
    call = replaying(fn, xs[0], w)
    for x in xs:
        torch.testing.assert_close(call(x, w)[0], fn(x, w), rtol=1e-3, atol=1e-3)
    assert call.replays


def test_written_inputs_that_move_are_written():
    def fn(state, x):
        new = state * 0.5 + x
        return state.copy_(new), new.sum(0)

    x = torch.randn(64, 32, device="cuda:0")
    call = replaying(fn, x.clone(), x)
    states = [torch.randn(64, 32, device="cuda:0") for _ in range(8)]
    for _ in range(2):
        for state in states:
            expected = state * 0.5 + x
            same_state, total = call(state, x)
            assert same_state is state
            torch.testing.assert_close(state, expected)
            torch.testing.assert_close(total, expected.sum(0), rtol=1e-4, atol=1e-4)
    assert call.moving == {0}
    assert call.replays == 15


def test_random_numbers_of_replays_mix_with_eagers():
    """A replay advances the generator as the calls would, also between draws outside of it."""
    fn = lambda x: torch.ops.aten.native_dropout(x, 0.5, True)[0] * 2
    x = torch.ones(4096, device="cuda:0")
    call = replaying(fn, x)
    draws = []
    for run in (lambda x: (fn(x),), call):
        torch.manual_seed(7)
        draws.append([(run(x)[0].clone(), torch.rand(5, device="cuda:0")) for _ in range(6)])
    for (a, b), (c, d) in zip(*draws):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    assert len({a.sum().item() for a, _ in draws[1]}) > 1


def test_graphs_of_few_kernels_are_launched(monkeypatch):
    monkeypatch.undo()
    x = torch.randn(64, device="cuda:0")
    call = replaying(lambda x: x.sin() + 1, x)
    for _ in range(3):
        same(call(x), (x.sin() + 1,))
    assert refusals.REPLAY_TIME
    assert "takes less time" in call.refused


def test_threads_replay_one_graph():
    _, *weights = given = inputs()
    call = replaying(mlp, *given)

    def run(seed: int):
        torch.cuda.set_device(0)
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(40):
                x = torch.full((64, 32), float(seed + step), device="cuda:0")
                same(call(x, *weights), mlp(x, *weights))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, n) for n in range(4)]:
            done.result()


def test_accumulated_gradients():
    fn = lambda x, w: torch.tanh(x @ w).square().mean()
    tagged = jitmagic.jit(fn, mode="reduce-overhead")
    w = [torch.randn(32, 16, device="cuda:0", requires_grad=True) for _ in range(2)]
    with torch.no_grad():
        w[1].copy_(w[0])
    for step in range(12):
        x = torch.randn(8, 32, device="cuda:0")
        tagged(x, w[0]).backward()
        fn(x, w[1]).backward()
        torch.testing.assert_close(w[0].grad, w[1].grad, rtol=1e-4, atol=1e-5)
        if step % 4 == 3:
            w[0].grad = w[1].grad = None
