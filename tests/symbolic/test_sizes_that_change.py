"""Sizes that change under dynamic=None: few compiles, and eager's results and gradients at each."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.compile import sizes
from jitmagic.errors import CompileFailed
from jitmagic.trace.varying.concrete import places_of
from tests.covering import covered
from tests.programs.counts import counts_of

SIZES = (8, 5, 16, 3, 2, 7, 9, 32, 64, 33, 12, 1, 24, 48, 6, 10)
Program = Callable[..., Any]


class Block(nn.Module):
    """A block of a residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(6, 32), nn.Linear(8, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        made = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.into(x[:, t]) + self.back(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            made.append(h)
        return torch.stack(made, 1)


class Decoder(nn.Module):
    """A step of a small GPT: logits for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(128, 16)
        self.into, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n = x.shape
        z = self.tokens(x) + self.places(torch.arange(n, device=x.device))
        q, k, v = (t.view(b, n, 2, 8).transpose(1, 2) for t in self.into(z).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(z + self.out(mixed.transpose(1, 2).reshape(b, n, 16)))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))


Model = tuple[Callable[[], nn.Module], Callable[[int, int], torch.Tensor]]
MODELS: dict[str, Model] = {
    "encoder": (encoder, lambda b, n: torch.randn(b, n, 16)),
    "mlp": (perceptron, lambda b, n: torch.randn(b, n, 20)),
    "block": (Block, lambda b, n: torch.randn(b, 4, n, n)),
    "decoder": (Decoder, lambda b, n: torch.randint(0, 50, (b, n))),
    "recurrent": (Recurrent, lambda b, n: torch.randn(b, n, 6)),
}
CHANGING: dict[str, list[tuple[int, int]]] = {
    "batch": [(n, 6) for n in SIZES],
    "length": [(3, n) for n in SIZES],
    "both": [(n, SIZES[5 * i % 16]) for i, n in enumerate(SIZES)],
}


def compiles(fn: Any) -> int:
    """Return the compiles of the frame."""
    return sum(r.result("trace") is not None for r in handle_of(fn).journal.records)


def check(
    found: Any, wanted: Any, ours: nn.Module | None = None, theirs: nn.Module | None = None
) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    if ours is None or theirs is None:
        return
    for module, result in ((ours, found), (theirs, wanted)):
        module.zero_grad()
        result.square().mean().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)


def run_model(name: str, changing: str, train: bool, **options: Any) -> int:
    """Return how often the frame was compiled."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model = make().train(train)
    plain = copy.deepcopy(model)
    made = jitmagic.jit(model, **options)
    for b, n in CHANGING[changing]:
        x = inputs(b, n)
        with torch.set_grad_enabled(train):
            found, wanted = made(x), plain(x)
        check(found, wanted, *((model, plain) if train else ()))
    assert handle_of(made).given_up is None
    return compiles(made)


@covered(
    backend=["eager", "aot_eager"],
    name=[name for name in MODELS if name != "recurrent"],
    changing=CHANGING,
    train=[False, True],
)
def test_two_compiles_and_one_where_any_dimension_is_one(
    backend: str, name: str, changing: str, train: bool
) -> None:
    assert any(1 in sizes for sizes in CHANGING[changing])
    assert run_model(name, changing, train, backend=backend) == 3


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["mlp", "decoder", "recurrent"])
def test_generated_code(name: str, train: bool) -> None:
    assert run_model(name, "batch", train, options={"keep": "compiled"}) == 3


def test_a_loop_over_a_size_is_a_variant_for_each_and_says_so() -> None:
    """Nothing may be a symbol here; otherwise the loop is rolled, see test_rolled_loops.py."""
    torch.manual_seed(0)
    plain = Recurrent()
    made = jitmagic.jit(copy.deepcopy(plain), backend="eager", dynamic=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", jitmagic.RecompileWarning)
        for n in SIZES:
            x = torch.randn(3, n, 6)
            check(made(x), plain(x))
    assert compiles(made) == 8 and len(caught) == 1


# ------------------------------------------------------------------ programs that look at sizes


def on_size(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 8 else x - 1


def on_divisibility(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, 2, 4).sum(1) if x.shape[0] % 2 == 0 else x.cumsum(0)


def on_equality(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y if x.shape[0] == y.shape[0] else x.sum() * y


def sizes_returned(x: torch.Tensor) -> tuple[Any, ...]:
    return x + x.shape[0], x.shape[0], x.shape, len(x) // 2, x.numel()


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    half = x.shape[0] // 2
    return x[:half], x[half:], x.reshape(-1), x[-1], x.unsqueeze(1).expand(-1, 3, -1).sum(1)


def of_list(xs: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(xs).sum(0) * len(xs)


def one(n: int) -> tuple[Any, ...]:
    return (torch.randn(n, 4),)


def pairs(n: int) -> tuple[Any, ...]:
    return torch.randn(n, 4), torch.randn(n if n % 3 else n + 1, 4)


def lists(n: int) -> tuple[Any, ...]:
    return ([torch.randn(n, 4)] * (2 + n % 2),)


# Variants at most: the static one, the symbolic ones of each outcome, those of size one and zero;
# of two rows there is one pair, which broadcasts.
LOOKING: dict[str, tuple[Program, Callable[[int], tuple[Any, ...]], int]] = {
    "a branch on a size": (on_size, one, 5),
    "divisibility": (on_divisibility, one, 6),
    "equality": (on_equality, pairs, 7),
    "sizes returned": (sizes_returned, one, 4),
    "views": (views, one, 4),
    "a list of changing length": (of_list, lists, 8),
}


def run_program(name: str, **options: Any) -> int:
    program, inputs, _ = LOOKING[name]
    own = types.FunctionType(program.__code__.replace(), program.__globals__, program.__name__)
    made = jitmagic.jit(own, **options)
    torch.manual_seed(0)
    for n in (8, 5, 16, 3, 12, 9, 1, 6, 32, 0, 7, 1, 10, 2, 15):
        args = inputs(n)
        try:
            wanted = program(*args)
        except Exception as error:
            with pytest.raises(type(error)):
                made(*args)
        else:
            found = made(*args)
            check(found, wanted)
            if isinstance(wanted, tuple):
                assert list(map(type, found)) == list(map(type, wanted))
    return compiles(made)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", LOOKING)
def test_programs_that_look_at_sizes(name: str, backend: str) -> None:
    assert run_program(name, backend=backend, options={"keep": "compiled"}) <= LOOKING[name][2]


def test_sizes_zero_and_one_are_static_and_apart() -> None:
    @jitmagic.jit(backend="eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.relu().sum(0)

    for n, wanted in ((1, 1), (4, 2), (6, 2), (0, 3), (9, 3), (1, 3), (0, 3), (2, 3)):
        x = torch.randn(n, 3)
        check(f(x), x.relu().sum(0))
        assert compiles(f) == wanted


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_sizes_of_the_static_variant_keep_its_kernels(train: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4)).requires_grad_(train)
    made = jitmagic.jit(copy.deepcopy(model), options={"keep": "compiled"})
    for n in (8, 5, 8, 6, 8):
        x = torch.randn(n, 6)
        torch.testing.assert_close(made(x), model(x))
    records = [r for r in handle_of(made).journal if r.result("forward: render")]
    texts = [s.result[1].text for r in records for s in r.stages if s.stage == "forward: render"]
    assert len(texts) == 3  # static, for all sizes, and the first again
    assert texts[2] == texts[0] != texts[1]
    assert records[2].cache_hits


def test_size_tuples_run_op_by_op_after_the_limit_of_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: Any) -> None:
        raise CompileFailed("sizes cannot go through it")

    monkeypatch.setattr(sizes, "SizedJoint", refused)
    program = lambda x: x.relu().sum(0)  # noqa: E731 - a program

    def compiled(fn: Any) -> int:
        return sum(r.result("trace") is None for r in handle_of(fn).journal.records)

    options = {"recompile_limit": 4, "keep": "compiled"}
    made = jitmagic.jit(program, dynamic=True, fullgraph=True, options=options)
    counts = []
    for n in (3, 4, 5, 6, 7, 8, 4, 7):
        x = torch.randn(n, 11)
        check(made(x), program(x))
        counts.append(compiled(made))
    assert counts == [0, 1, 2, 3, 3, 3, 3, 3]


@pytest.mark.parametrize(
    "inputs",
    [
        [torch.ones(4, 0, 3), torch.ones(4, 0, 7), torch.ones(9, 0, 5)],
        [torch.ones(0, 3), torch.ones(0, 7), torch.ones(0, 5)],
        [torch.ones(5, 3, 1).mT, torch.ones(6, 7, 1).mT, torch.ones(9, 4, 1).mT],
    ],
    ids=["no elements", "no rows", "strides of a size of one"],
)
def test_insignificant_strides_need_no_variant(inputs: list[torch.Tensor]) -> None:
    compiled = jitmagic.jit(lambda x: x * 2 + x.shape[-1], dynamic=True)
    for x in inputs:
        assert torch.equal(compiled(x), x * 2 + x.shape[-1])
    assert counts_of(compiled).graphs == 1


# --------------------------------------------------------------- sizes that a frame itself changes


class Layer:
    """A cache of a decoder, as attributes, as items of a list or of a dict."""

    def __init__(self, kind: str, start: torch.Tensor) -> None:
        self.kind, self.keys = kind, start
        self.parts, self.named = [start.clone()], {"keys": start.clone()}

    def read(self) -> torch.Tensor:
        return {"list": self.parts[0], "dict": self.named["keys"]}.get(self.kind, self.keys)

    def write(self, keys: torch.Tensor) -> None:
        if self.kind == "list":
            self.parts[0] = keys
        elif self.kind == "dict":
            self.named["keys"] = keys
        else:
            self.keys = keys


def step(cache: Layer, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    keys = torch.cat([cache.read(), x])
    cache.write(keys)
    return (x @ keys.t()).masked_fill(~mask, -9.0).softmax(-1) @ keys


@pytest.mark.parametrize("kind", ["attribute", "list", "dict"])
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("start", [1, 5])
def test_size_that_the_frame_changes_is_a_symbol_at_once(
    kind: str, backend: str, start: int
) -> None:
    """And the mask that grows with it. One that begins at one is an unbacked size."""
    made = jitmagic.jit(step, backend=backend, options={"keep": "compiled"})
    ours, theirs = (Layer(kind, torch.ones(start, 4)) for _ in range(2))
    for n in range(start + 1, 30):
        x, mask = torch.randn(1, 4), torch.rand(n) > 0.2
        mask[-1] = True
        check(made(ours, x, mask), step(theirs, x, mask))
        assert ours.read().shape == theirs.read().shape == (n, 4)
    assert compiles(made) == 1


def spread(cache: Layer) -> torch.Tensor:
    """A size of one is spread over three, the next one is three."""
    wide = cache.keys * torch.arange(12.0).view(3, 4)
    cache.keys = torch.cat([cache.keys] * 3)
    return wide


def branched(cache: Layer) -> torch.Tensor:
    size = cache.keys.shape[0]
    cache.keys = torch.cat([cache.keys, cache.keys])
    return cache.keys * (7 if size == 1 else size)


@pytest.mark.parametrize("program", [spread, branched])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_decision_on_a_size_of_one(program: Program, backend: str) -> None:
    made = jitmagic.jit(program, backend=backend, options={"keep": "compiled"})
    for _ in range(2):
        ours, theirs = (Layer("attribute", torch.ones(1, 4)) for _ in range(2))
        for _ in range(2):
            check(made(ours), program(theirs))
            assert ours.keys.shape == theirs.keys.shape
    if program is spread:  # nine are no three
        for fn, cache in ((made, ours), (program, theirs)):
            with pytest.raises(RuntimeError, match="must match the size"):
                fn(cache)
    assert handle_of(made).given_up is None


def test_dimensions_marked_static_stay_static() -> None:
    made = jitmagic.jit(step, backend="eager")
    cache = Layer("attribute", torch.ones(5, 4))
    jitmagic.mark_static(cache.keys)
    made(cache, torch.randn(1, 4), torch.ones(6, dtype=torch.bool))
    (record,) = handle_of(made).journal.records
    assert not list(places_of(record.result("trace")))


def test_repeated_size_is_not_a_new_variant() -> None:
    def turn(cache: Layer) -> torch.Tensor:
        cache.keys = cache.keys.t().contiguous().view(5, 4) * 2
        return cache.keys.sum()

    made = jitmagic.jit(turn, backend="eager")
    made(Layer("attribute", torch.ones(5, 4)))
    (record,) = handle_of(made).journal.records
    assert not list(places_of(record.result("trace")))


def test_data_dependent_break_serves_all_sizes() -> None:
    """That ints would do for such a call is not tried: no size is a constant for it."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.gaussian_nll_loss(x * 2, x, x * x + 1) * 2

    made = jitmagic.jit(loss, backend="aot_eager")
    for n in (5, 2, 7, 3, 6, 4):
        x = torch.randn(n, 3)
        check(made(x), loss(x))
    assert compiles(made) == 2


def asks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 1 else x + y


def broadcasts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y[:1]).expand(x.shape[0], x.shape[1]) * y.sum(1, keepdim=True)


def reshapes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.reshape(-1) * y.T.flatten()).view(x.shape[1], -1).contiguous().mT.squeeze(1)


def indexes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[1:], y[-1:], x.flip(1)]).softmax(-1)[:, x.shape[1] // 2 :]


ONES = [(3, 4), (5, 2), (1, 7), (6, 1), (1, 1), (2, 9), (1, 3), (8, 1), (4, 4)]


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", [0, 2, 4])
@pytest.mark.parametrize("program", [asks, broadcasts, reshapes, indexes])
def test_sizes_of_one_in_any_order(
    program: Program, first: int, dynamic: bool | None, backend: str
) -> None:
    """The result does not depend on whether size one matters to the program."""
    made = jitmagic.jit(program, dynamic=dynamic, backend=backend, options={"keep": "compiled"})
    for b, n in (*ONES[first:], *ONES[:first], *ONES):
        x, y = torch.randn(b, n, requires_grad=True), torch.randn(b, n)
        found, wanted = made(x, y), program(x, y)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(each.square().sum(), x) for each in (found, wanted)]
        torch.testing.assert_close(*grads)
    assert handle_of(made).given_up is None


def test_a_range_that_is_asked_for_is_kept_from_one_on() -> None:
    made = jitmagic.jit(lambda x: x * 2, dynamic={"x": {0: (1, 8)}}, backend="eager")
    for n in (3, 1, 8, 9, 2, 1, 9):
        x = torch.ones(n, 3)
        assert torch.equal(made(x), x * 2)
    assert compiles(made) == 3  # and one for 9
