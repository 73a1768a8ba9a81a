"""One joint graph for all sizes gives eager's results and gradients for unseen size tuples without
tracing; it is rebuilt if a decision differs.
"""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import jitmagic
from jitmagic.api import handle_of
from jitmagic.compile import sizes
from jitmagic.compile.template import Templates
from jitmagic.errors import CompileFailed, JitmagicWarning
from jitmagic.extension import runtime_module
from jitmagic.records import LazyPayload
from jitmagic.runtime import load
from jitmagic.runtime.cuda_graphs.replayer import Replayer
from jitmagic.runtime.native import SIZES_KEPT

Program = Callable[..., Any]
Make = Callable[[int, int], tuple[torch.Tensor, ...]]
VECTORS = [(9, 5), (5, 9), (16, 16), (2, 3), (33, 64), (2, 2), (7, 8), (64, 3)]
EDGES = [(1, 6), (6, 1), (1, 1)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = self.into(self.norm(x)).view(b, n, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        weights = (q @ k.transpose(-1, -2)).masked_fill(~mask, float("-inf")).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, n, width))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(self.norm(self.first(x)).relu(), 2, ceil_mode=True)
        return self.head(self.second(y).relu().mean((2, 3)))


def pair(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, m), torch.randn(n, m)


def matrices(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, m), torch.randn(m, n)


def rows(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, m), torch.randn(m)


def sequences(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, m, 8),)


def images(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 2, m + 7, 2 * m + 5),)


def strided(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(m, n).t(), torch.randn(n, m)


def channels_last(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 2, m + 7, m + 7).to(memory_format=torch.channels_last),)


def gapped(n: int, m: int) -> tuple[torch.Tensor, ...]:
    """Strides are constants of the variant: where they fit a size, a reshape is a view."""
    return (torch.randn(n, m, 2 * m)[..., ::2],)


def numbers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n, m = x.shape
    filled = torch.full((m,), n + m), torch.arange(n), torch.arange(1, n, 2) * m
    return x * n + y, *filled, torch.arange(n) + m, torch.ones(n, dtype=torch.int32) * n


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2
    z[:, 1:] += y[:, :-1]
    z[x.shape[0] // 2] = 0.5
    return z.cumsum(0)


def branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > x.shape[1]:
        return x.t() @ y
    return x * y if x.numel() % 2 else x - y


def views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x + y
    return z, z.t(), z[1:], x.view(-1)[2:], z.sum()


def cross_entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ y, torch.arange(x.shape[0]))


def lists(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n, m = x.shape
    table = torch.tensor([[n, 2], [3, n * m], [m, m - 1]], dtype=x.dtype)
    return x * torch.tensor(n) + y * table.sum() + torch.as_tensor([m, 0.5]).prod()


def sampled(x: torch.Tensor) -> torch.Tensor:
    grid = x.mean(1)[:, :5, :4].tanh().unsqueeze(-1).repeat(1, 1, 1, 2)
    return F.grid_sample(x, grid, align_corners=False) / 16


def windows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    parts = torch.stft(x.repeat(1, 8), 8, 4, window=x.new_ones(8), return_complex=True)
    return parts.abs().mean() + y


PROGRAMS: dict[str, tuple[Program, Make]] = {
    "pointwise": (lambda x, y: (x * y + y.sin()).relu() / 3, pair),
    "broadcast": (lambda x, y: x * y + x.sum(1, keepdim=True), rows),
    "of two layouts": (lambda x, y: (x * y).exp() + x, strided),
    "mean squares": (lambda x, y: F.mse_loss(x, y) + (x - y).square().mean(), pair),
    "cross entropy": (cross_entropy, matrices),
    "smooth l1": (lambda x, y: F.smooth_l1_loss(x, y), pair),
    "products": (lambda x, y: (x @ y).softmax(-1) @ x, matrices),
    "norms": (lambda x, y: F.layer_norm(x, x.shape[1:]) * F.normalize(y, dim=0), pair),
    "cat": (lambda x, y: torch.cat([x, y, x[:1]]).std(0), pair),
    "chunks": (lambda x, y: torch.cat([a * i for i, a in enumerate(x.chunk(2))]) + y, pair),
    "splits": (lambda x, y: [a.sum() for a in (x * y).split(x.shape[0] // 2 + 1)], pair),
    "padded": (lambda x, y: F.pad(x, (1, 2)).unfold(1, 3, 1).amax(-1) + y.mean(), pair),
    "flattened": (lambda x, y: (x.t() + 1).reshape(-1) * y.reshape(-1), pair),
    "gathered": (lambda x, y: x.gather(1, y.argsort(1)).flip(0), pair),
    "indexed": (lambda x, y: x[x.shape[0] - 1, None] * y[:, y.shape[1] // 2, None], pair),
    "written": (written, pair),
    "numbers": (numbers, pair),
    "branches": (branches, pair),
    "views": (views, pair),
    "numbers in lists": (lists, pair),
    "range of floats": (lambda x, y: x * torch.linspace(1, x.shape[1], x.shape[1]) + y, pair),
    "strip of a strip": (lambda x, y: (x + y).softmax(-1)[:, x.shape[1] // 2 :], pair),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ki", x, y).tril(), matrices),
    "resized": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), images),
    "sampled": (sampled, images),
    "spectra": (lambda x, y: torch.fft.rfft(x).abs() + torch.fft.fft(y).abs().mean(), pair),
    "windows": (windows, pair),
    "block": (Block(), sequences),
    "images": (Images(), images),
    "images, channels last": (Images(), channels_last),
}


def copies(args: tuple[torch.Tensor, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [one.detach().clone().to(dtype).requires_grad_() for one in args]


def called(fn: Program, args: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """The results and their gradients, of inputs and parameters."""
    results = tree_leaves(fn(*args))
    loss = sum((one.square().sum() for one in results), torch.zeros((), dtype=args[0].dtype))
    leaves = [*args, *(fn.parameters() if isinstance(fn, nn.Module) else ())]
    return results, list(torch.autograd.grad(loss, leaves, allow_unused=True))


def check(made: Program, program: Program, args: tuple[torch.Tensor, ...]) -> None:
    """float64 judges: no further from it than float32's rounding allows."""
    exact = copy.deepcopy(program)
    exact = exact.double() if isinstance(exact, nn.Module) else exact
    found, gradients = called(made, copies(args, torch.float32))
    wanted, theirs = called(program, copies(args, torch.float32))
    judged, best = called(exact, copies(args, torch.float64))
    for one, other, judge in zip(found, wanted, judged, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        torch.testing.assert_close(one.double(), judge.double(), rtol=1e-4, atol=1e-5)
    for one, other, judge in zip(gradients, theirs, best, strict=True):
        assert (one is None) is (other is None)
        if one is not None:
            torch.testing.assert_close(one.double(), judge, rtol=1e-3, atol=1e-4)


def stages(fn: Program) -> Iterator[str]:
    return (s.stage for record in handle_of(fn).journal for s in record.stages)


def joints(fn: Program) -> list[Any]:
    records = handle_of(fn).journal.records
    return [s for r in records for s in r.stages if s.stage == "joint for all sizes"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_were_never_seen(name: str) -> None:
    torch.manual_seed(0)
    program, make = PROGRAMS[name]
    program = copy.deepcopy(program)
    made = jitmagic.jit(copy.deepcopy(program), dynamic=True, options={"keep": "compiled"})
    for values in [*VECTORS, *EDGES, *VECTORS[::-3]]:  # some of them once more
        if isinstance(program, nn.Module):
            made.load_state_dict(program.state_dict())  # running statistics go apart
        check(made, program, make(*values))
    known = list(stages(made))
    assert known.count("joint for all sizes") <= 12  # of up to six variants of the frame
    assert not any(str(stage.kept).startswith("only for") for stage in joints(made))


def test_no_stage_runs_for_sizes_that_satisfy_the_predicates() -> None:
    made = jitmagic.jit(copy.deepcopy(PROGRAMS["block"][0]), dynamic=True)
    for values in VECTORS[:2]:
        called(made, copies(sequences(*values), torch.float32))
    before = len(handle_of(made).journal)
    for values in itertools.product(range(3, 20), (4, 7)):
        called(made, copies(sequences(*values), torch.float32))
    assert len(handle_of(made).journal) == before


@pytest.mark.parametrize("name", ["block", "views", "numbers", "written", "norms"])
def test_new_sizes_do_not_enter_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward; its results are right, and stay so when it is forgotten."""
    program, make = PROGRAMS[name]
    asked: list[object] = []
    made = jitmagic.jit(copy.deepcopy(program), dynamic=True, options={"keep": "compiled"})
    for values in (*VECTORS[:3], (25, 43)):  # rows of one step of lanes have kernels of their own
        check(made, program, make(*values))
        made(*make(*values))  # without gradients it is another variant
    for owner, method in ((sizes.SizeCompiler, "compile_for"), (Templates, "template")):
        was = getattr(owner, method)

        def told(self: Any, *args: Any, was: Any = was) -> Any:
            asked.append(args)
            return was(self, *args)

        monkeypatch.setattr(owner, method, told)
    vectors = [(n, m) for n in range(20, 35) for m in (36, 41, 47, 53, 60, 61)]
    for values in [*vectors, vectors[0]]:
        found, wanted = made(*make(*values)), program(*make(*values))
        for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
            assert (one.shape, one.stride()) == (other.shape, other.stride())
    for values in (vectors[7], vectors[0], (34, 43)):
        check(made, program, make(*values))
    assert len(vectors) > SIZES_KEPT and asked == []


def test_diagnostic_payload_is_built_lazily() -> None:
    made = jitmagic.jit(lambda x: torch.relu(x * 2).sum(-1), dynamic=True)
    made(torch.randn(7, 9))
    [record] = handle_of(made).journal
    kept = {stage.stage.rpartition(": ")[2]: stage.kept for stage in record.stages}
    for name in ("partition", "render"):
        assert isinstance(kept[name], LazyPayload) and not vars(kept[name]).keys() & {"made"}
    assert not record.result("trace").graph._written  # its Python code, for a call op by op
    parts, (plan, source) = record.result("partition"), record.result("forward: render")
    shapes = [node.meta["spec"].shape for node in parts.forward.graph.find_nodes(op="placeholder")]
    assert shapes == [(7, 9)] and source is not None and plan is record.result("forward: render")[0]


def test_templates_are_freed_with_their_function() -> None:
    """They know what compiles the backward, and that knows them."""

    def alive() -> int:
        for _ in range(3):
            gc.collect()
        kind = runtime_module().AutogradTemplate
        return sum(type(each) is kind for each in gc.get_objects())

    def use() -> int:
        made = jitmagic.jit(PROGRAMS["views"][0], dynamic=True, options={"keep": "compiled"})
        for n in range(3, 8):
            called(made, copies(pair(n, 5), torch.float32))
        return alive()

    gc.collect()
    gc.freeze()  # nine collections walk what is made here, not a million objects of others
    before = alive()
    assert use() > before
    assert alive() == before


def test_joint_is_rebuilt_if_its_predicates_fail() -> None:
    """The written view is dense in one order of its dimensions or in the other."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.maximum(x.expand(y.shape[0], -1) * 2, y.sum(1, keepdim=True)).t().clone()

    made = jitmagic.jit(program, dynamic=True, options={"keep": "compiled"})
    for n, m in [*VECTORS, *EDGES]:
        check(made, program, (torch.randn(1, m), torch.randn(n, m)))


def test_a_reshape_is_a_view_where_it_is_one_in_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.numel() // x.shape[-1], -1)

    made = jitmagic.jit(program, dynamic=True, options={"recompile_limit": 32})
    for values in [*VECTORS, *EDGES]:
        (x,) = gapped(*values)
        found, wanted = made(x), program(x)
        assert found.stride() == wanted.stride()
        assert (found.data_ptr() == x.data_ptr()) is (wanted.data_ptr() == x.data_ptr())


def test_a_size_that_can_only_be_the_least_one_is_guarded() -> None:
    """Its range ends where the symbol's began."""
    made = jitmagic.jit(written, dynamic=True, options={"keep": "compiled"})
    traces = []
    for values in ((3, 2), (33, 64), (5, 2)):
        check(made, written, pair(*values))
        traces.append(list(stages(made)).count("trace"))
    assert traces == [1, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8])
def test_a_size_that_fills_a_tensor_is_no_constant(dtype: torch.dtype) -> None:
    """Rounded as eager rounds an int; what does not fit is eager's error."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return torch.full((3,), n * 5 + 1, dtype=dtype), torch.full((2,), n // 9, dtype=dtype)

    made = jitmagic.jit(program, dynamic=True, options={"keep": "compiled"})
    refused = 0
    for n in (7, 9, 24, 25, 50, 413, 2051):
        answers: list[Any] = []
        for fn in (made, program):
            try:
                answers.append(fn(torch.zeros(n)))
            except RuntimeError as error:
                answers.append(str(error))
        assert str(answers[0]) == str(answers[1])
        refused += isinstance(answers[1], str)
    assert list(stages(made)).count("forward: render") <= 1 + refused


def test_sizes_that_cpp_reads_as_ints_are_constants_of_a_joint_graph() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.gradient(x, dim=0)[0].sum() * y.relu()

    made = jitmagic.jit(program, dynamic=True, options={"keep": "compiled"})
    for n, m in [(9, 5), (9, 7), (12, 5), (9, 31), (12, 8), (12, 4)]:
        check(made, program, (torch.randn(n, 6), torch.randn(m)))
    assert [s.kept.count("9 <= s0 <= 9") for s in joints(made)] == [1, 0]


def test_graph_without_a_joint_for_all_sizes_is_compiled_for_each_size_tuple(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: Any) -> None:
        raise CompileFailed("sizes cannot go through it")

    monkeypatch.setattr(sizes, "SizedJoint", refused)
    made = jitmagic.jit(written, dynamic=True, options={"keep": "compiled"})
    for values in VECTORS[:5]:
        check(made, written, pair(*values))
    assert list(stages(made)).count("joint for all sizes") == 1
    assert list(stages(made)).count("forward: load") == 5


@pytest.mark.parametrize("values", VECTORS[:4])
def test_partial_and_double_backward(values: tuple[int, int]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * y).sin().sum(0), (x.exp() @ y.t()).relu()

    made = jitmagic.jit(program, dynamic=True, options={"keep": "compiled"})
    called(made, copies(pair(6, 11), torch.float32))
    args = pair(*values)
    for chosen in (0, 1):
        ours, theirs = copies(args, torch.float32), copies(args, torch.float32)
        for fn, given in ((made, ours), (program, theirs)):
            fn(*given)[chosen].square().sum().backward()
        torch.testing.assert_close(ours[0].grad, theirs[0].grad, rtol=1e-4, atol=1e-4)
    twice = []
    for fn in (made, program):
        x, y = copies(args, torch.float32)
        with pytest.warns(JitmagicWarning) if fn is made else nullcontext():
            (first,) = torch.autograd.grad(fn(x, y)[0].sum(), x, create_graph=True)
            twice.append(torch.autograd.grad(first.square().sum(), (x, y)))
    torch.testing.assert_close(*twice, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grad", [False, True])
def test_each_size_tuple_has_its_own_recordings(
    grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate CUDA graphs: kernels serve all sizes, recordings one."""
    made_for: list[Any] = []

    class Recorded(Replayer):
        def __init__(self, run: Any, plan: Any, pool: Any = None, bind: Any = None) -> None:
            super().__init__(run, plan, pool, bind)
            if pool is not None:
                made_for.append(plan)

    monkeypatch.setattr(load, "can_replay", lambda plan: bool(plan.steps))
    monkeypatch.setattr(load, "Replayer", Recorded)
    monkeypatch.setattr(load, "replaying", lambda replayer: replayer.run)
    options = {"keep": "compiled", "cuda_graphs": True}

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(0) * x.shape[0]

    made = jitmagic.jit(program, dynamic=True, options=options)
    for n in (3, 7, 12, 3, 7, 12, 3):
        x = torch.randn(n, 5, requires_grad=grad)
        ours, eager = made(x), program(x)
        torch.testing.assert_close(ours, eager)
        if grad:
            pairs = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, eager)]
            torch.testing.assert_close(*pairs)
    handle = handle_of(made)
    assert handle is not None
    assert sum(record.kernels > 0 for record in handle.journal) == 1 + grad
    assert len(made_for) == 3 * (1 + grad)
