"""Meta tensors of symbolic sizes: what one trace says of shapes, strides and offsets holds for each
size that its guards let in.

Every operation runs on meta tensors at one hint; then on real tensors of other sizes. Where ranges
and relations hold for a size, shape and strides have to be the real ones.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from jitmagic.autograd.recording.traced import Traced
from jitmagic.graph.attribution import Silence, call_from
from jitmagic.graph.dispatch_mode import dataless
from jitmagic.graph.fresh_meta import Metas, fresh_meta, sharing
from jitmagic.graph.node_meta import tensors_in
from jitmagic.graph.operators.kernel_refusals import check_dtypes
from jitmagic.graph.operators.recurrent import by_one_step
from jitmagic.graph.operators.symbolic_shapes import CallSignature, shapes_by_sampling
from jitmagic.graph.propagate import EagerRaises, run_on_meta
from jitmagic.graph.symbolic.sym_node import SizeNode, as_dimension, as_dimensions, as_torch
from jitmagic.symbols.context import Context, Specialize
from jitmagic.symbols.expr import Expr
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.size import Size, is_same, size_of
from jitmagic.symbols.symbolic_numbers import Symbol, evaluate

COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
SIZES = (2, 3, 4, 6, 7, 8, 12, 16, 33, 64, 128)
Program = Callable[[Any, Any, Callable[..., torch.Tensor], Callable[..., torch.Tensor]], Any]


def _gru(x: torch.Tensor, E: Callable[..., torch.Tensor], batch: int) -> Any:
    """Run a layer whose batch is that dimension; meta tensors take one step of it."""
    run = by_one_step(torch.gru) if x.is_meta else torch.gru
    weights = [E(12, 8), E(12, 4), E(12), E(12)] * 2
    return run(x, E(2, x.shape[batch], 4), weights, True, 1, 0.0, False, True, batch == 0)


# Of sizes n and m; E makes floats, I makes ints.
FREE: dict[str, Program] = {
    "add": lambda n, m, E, I: E(n, 64) + E(n, 64),
    "row": lambda n, m, E, I: E(n, 64) + E(64),
    "column": lambda n, m, E, I: E(n, 1) * E(m),
    "transposed": lambda n, m, E, I: E(n, m).t() + E(m, 1),
    "relu": lambda n, m, E, I: torch.relu(E(n, 64).t()),
    "sum": lambda n, m, E, I: (E(n, m).sum(-1), E(n, m).sum(0), E(n, m).sum()),
    "mean": lambda n, m, E, I: E(n, m).mean((0, 1), keepdim=True),
    "var": lambda n, m, E, I: (E(n, 64).var(-1), E(n, 64).std()),
    "amax": lambda n, m, E, I: (E(n, m).amax(1), E(n, 3).max(1), E(n, m).argmax(-1)),
    "view": lambda n, m, E, I: E(n, 64).view(n * 64),
    "view -1": lambda n, m, E, I: (E(n, 64).view(-1, 8), E(n, 64).view(n, -1, 8), E(n, m).view(-1)),
    "view_as": lambda n, m, E, I: E(n, m).view_as(E(n, m)),
    "reshape": lambda n, m, E, I: E(n, m, 4).transpose(0, 1).reshape(m, n * 4),
    "heads": lambda n, m, E, I: E(n, m, 32).view(n, m, 4, 8).transpose(1, 2),
    "flatten": lambda n, m, E, I: (E(n, 3, m).flatten(1), E(n, m, 4).flatten(0, 1)),
    "mm": lambda n, m, E, I: (E(n, 64) @ E(64, m), E(2, 4, n, 16) @ E(2, 4, 16, n)),
    "bmm": lambda n, m, E, I: torch.bmm(E(n, m, 5), E(n, 5, 6)),
    "linear": lambda n, m, E, I: (F.linear(E(n, 64), E(5, 64)), F.linear(E(n, m, 8), E(5, 8))),
    "einsum": lambda n, m, E, I: torch.einsum("bij,bkj->bik", E(n, m, 4), E(n, 5, 4)),
    "softmax": lambda n, m, E, I: (torch.softmax(E(n, m), -1), F.log_softmax(E(n, 64), 0)),
    "cat": lambda n, m, E, I: torch.cat([E(n, 4), E(m, 4), E(3, 4)]),
    "stack": lambda n, m, E, I: torch.stack([E(n, m), E(n, m)], 1),
    "slice": lambda n, m, E, I: (E(n, 64)[1:], E(n, 64)[:, 3:9:2], E(n, m)[: n - 1, 1:]),
    "select": lambda n, m, E, I: (E(n, m)[-1], E(n, m)[:, 1]),
    "unfold": lambda n, m, E, I: E(n, 10).unfold(1, 3, 2),
    "permute": lambda n, m, E, I: (E(n, 4, m).permute(2, 0, 1), E(n, m).movedim(0, 1)),
    "squeeze": lambda n, m, E, I: (E(n, 1, 4).squeeze(1), E(n, m).unsqueeze(1)),
    "expand": lambda n, m, E, I: (E(64).expand(n, 64), E(1, m).expand(n, -1)),
    "expand by ones": lambda n, m, E, I: (E(m).expand(n, 1, -1), E(2, m).expand(1, 1, 2, m)),
    "contiguous": lambda n, m, E, I: E(n, m).t().contiguous(),
    "chunk": lambda n, m, E, I: (E(n, 64).chunk(2, -1), E(n, 64).split(16, -1), E(n, 3).unbind(1)),
    "layer_norm": lambda n, m, E, I: F.layer_norm(E(n, m, 64), (64,)),
    "group_norm": lambda n, m, E, I: F.group_norm(E(n, 4, 8, 8), 2, E(4), E(4)),
    "batch_norm": lambda n, m, E, I: F.batch_norm(E(n, 3, m), E(3), E(3), E(3), E(3), True),
    "conv2d": lambda n, m, E, I: F.conv2d(E(n, 3, 8, 8), E(4, 3, 3, 3), padding=1),
    "pool": lambda n, m, E, I: F.adaptive_avg_pool2d(F.max_pool2d(E(n, 3, 8, 8), 2), 1),
    "embedding": lambda n, m, E, I: F.embedding(I(n, m), E(10, 4)),
    "attention": lambda n, m, E, I: F.scaled_dot_product_attention(
        E(n, 4, m, 16), E(n, 4, m, 16), E(n, 4, m, 16)
    ),
    "gather": lambda n, m, E, I: torch.gather(E(n, 3), 1, I(n, 3)),
    "index": lambda n, m, E, I: (E(n, 64)[I(7)], E(n, 64).index_select(1, I(m))),
    "where": lambda n, m, E, I: torch.where(E(n, m) > 0, E(n, 1), E(m)),
    "tril": lambda n, m, E, I: torch.tril(E(n, n)),
    "topk": lambda n, m, E, I: E(n, 64).topk(3),
    "cumsum": lambda n, m, E, I: (E(n, m).cumsum(0), E(n, m).flip(0), E(n, m).roll(1, 0)),
    "repeat": lambda n, m, E, I: (E(n, m).repeat(2, 1), F.pad(E(n, m), (1, 1))),
    "loss": lambda n, m, E, I: (F.cross_entropy(E(n, 9), I(n)), F.mse_loss(E(n, m), E(n, m))),
    "in place": lambda n, m, E, I: E(n, m).add_(E(m)).mul_(2),
    "new": lambda n, m, E, I: (E(n).new_zeros(n, m), torch.zeros_like(E(n, m).t()).double()),
    "diagonal": lambda n, m, E, I: E(n, n).diagonal(),
    "gru": lambda n, m, E, I: (_gru(E(n, m, 8), E, 0), _gru(E(n, m, 8), E, 1)),
}  # fmt: skip
GUARDED: dict[str, Program] = {
    "conv1d": lambda n, m, E, I: F.conv1d(E(2, 3, n), E(4, 3, 3)),
    "slice of a part": lambda n, m, E, I: E(n, 4)[: n // 2 + 1],
    "negative slice": lambda n, m, E, I: E(n, 4)[-5:],
    "beyond": lambda n, m, E, I: E(n, 4)[:100],
    "halves": lambda n, m, E, I: E(n, 4).view(2, n // 2, 4),
    "shorter": lambda n, m, E, I: E(n) + E(m)[: n] if n <= m else E(n)[:m] + E(m),
    "conv2d last": lambda n, m, E, I: F.conv2d(
        E(n, 3, m, 8).contiguous(memory_format=torch.channels_last), E(4, 3, 1, 1)
    ).relu(),
    "select late": lambda n, m, E, I: E(n, m)[5],
}  # fmt: skip


class Guards:
    """The guards of a trace of two sizes."""

    def __init__(self, *hints: int) -> None:
        self.ranges: dict[Expr, Interval] = {}
        self.relations: list[tuple[str, Expr, Expr]] = []
        context = Context(self.ranges.__setitem__, lambda *told: self.relations.append(told))
        self.symbols = [Symbol(f"s{i}", int, Interval(2, 2**31), i) for i in range(len(hints))]
        for symbol, hint in zip(self.symbols, hints, strict=True):
            context.add(symbol, hint)
        self.sizes = [as_torch(size_of(symbol, context)) for symbol in self.symbols]

    def known(self, *values: int) -> dict[Expr, Any]:
        return dict(zip(self.symbols, values, strict=True))

    def hold(self, *values: int) -> bool:
        known = self.known(*values)
        return all(range.has(known[s]) for s, range in self.ranges.items()) and all(
            COMPARE[op](evaluate(a, dict(known)), evaluate(b, dict(known)))
            for op, a, b in self.relations
        )


def traced(program: Program, *hints: int) -> tuple[Guards, list[torch.Tensor]]:
    guards = Guards(*hints)

    def meta(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        return lambda *shape: torch.empty(shape, dtype=dtype, device="meta")

    def run() -> Any:
        return program(*guards.sizes, meta(torch.float32), meta(torch.int64))

    return guards, list(tensors_in(run_on_meta(run, (), {}, True)))


def check(guards: Guards, found: list[torch.Tensor], program: Program, *sizes: int) -> None:
    real = program(*sizes, torch.ones, lambda *shape: torch.zeros(shape, dtype=torch.int64))

    def number(value: Any) -> int:
        return evaluate(value.expr, guards.known(*sizes)) if isinstance(value, Size) else value

    for made, wanted in zip(found, tensors_in(real), strict=True):
        shape = tuple(map(number, as_dimensions(made.shape)))
        assert shape == tuple(wanted.shape)
        strides = tuple(map(number, as_dimensions(made.stride())))
        pairs = zip(strides, wanted.stride(), shape, strict=True)
        assert all(a == b for a, b, n in pairs if n > 1), (strides, wanted.stride(), shape)


def test_sampling_skips_large_sizes_if_results_are_counted() -> None:
    """`unbind` of a product of three sizes gave millions of tensors at sizes made up."""
    runs = []

    def unbound(arguments: tuple[torch.Tensor]) -> tuple[Any, tuple[()]]:
        runs.append(arguments[0].numel())
        return arguments[0].flatten().clone().unbind(0), ()

    x = torch.empty(Guards(4, 12, 6).sizes, device="meta")
    assert shapes_by_sampling(unbound, (x,)) is None
    assert len(runs) == 2


def test_sampled_shapes_are_cached_per_call_signature() -> None:
    """Each cell of a recurrent layer ran at ten vectors and its results were read off them."""
    runs: list[torch.Size] = []
    guards, place = Guards(8, 12), Silence()

    def halved(arguments: tuple[torch.Tensor]) -> tuple[Any, tuple[()]]:
        runs.append(arguments[0].shape)
        return (arguments[0][: len(arguments[0]) // 2].clone(),), ()

    def told(x: torch.Tensor, *more: Any) -> tuple[int, Any]:
        runs.clear()
        made = shapes_by_sampling(halved, (x, *more), CallSignature("halved", place))
        return len(runs), made

    n, m = guards.sizes
    empty = partial(torch.empty, device="meta")
    first, [a] = told(empty(n, m))
    again, [b] = told(empty(n, m))
    assert first > 1 and again == 0 and a is not b
    assert [*map(str, as_dimensions(b.shape))] == ["(s0 // 2)", "s1"]
    assert as_dimensions(b.stride()) == as_dimensions(a.stride())

    # What lies otherwise, has a history, is told of other numbers, or in another mode.
    column = torch.empty_strided((n, m), (1, n), device="meta")
    for other in (column, empty(n, m, dtype=torch.double), empty(n, m, requires_grad=True)):
        assert told(other)[0]
    x = empty(n, m)
    assert all(told(x, more)[0] for more in (0.0, -0.0, 0, False, x, empty(n, m)))
    with torch.no_grad():
        assert told(x)[0] and not told(x)[0]
    again, [c] = told(empty(n, m, requires_grad=True))
    assert again == 0 and c.requires_grad and c.grad_fn is not None

    # A size that a guard has left one value is that number.
    assert as_dimension(n) == 8 and told(x)[0]
    assert not told(empty(8, m))[0]


def test_warnings_of_sampled_calls_are_shown_each_time() -> None:
    def warned(arguments: tuple[torch.Tensor]) -> tuple[Any, tuple[()]]:
        warnings.warn("again", stacklevel=2)
        return (arguments[0].clone(),), ()

    x = torch.empty(Guards(8, 12).sizes, device="meta")
    for place in (Silence(), Silence()):
        run = partial(call_from, place, warned)
        [made] = shapes_by_sampling(
            lambda given, run=run: run((given,), {}), (x,), CallSignature("w", place)
        )
        assert place.has_warned and made.shape == x.shape


PRODUCTS = (
    "mm",
    "linear",
    "attention",
)  # torch 2.11 asks these for ints: graph/operators/symbolic_shapes.py


@cache
def _products_take_symbols() -> bool:
    try:
        traced(FREE["mm"], 8, 12)
    except EagerRaises:
        return False
    return True


@pytest.mark.parametrize("hints", [(8, 12), (12, 12), (33, 7), (2, 64)])
@pytest.mark.parametrize("name", FREE)
def test_one_trace_is_right_for_all_sizes(name: str, hints: tuple[int, int]) -> None:
    if name in PRODUCTS and not _products_take_symbols():
        pytest.skip("this torch takes sizes of products as ints")
    guards, found = traced(FREE[name], *hints)
    let_in = 0
    for n in SIZES:
        for m in SIZES:
            if guards.hold(n, m):
                let_in += 1
                check(guards, found, FREE[name], n, m)
    assert let_in >= 0.6 * len(SIZES) ** 2, (guards.ranges, guards.relations)


@pytest.mark.parametrize("hints", [(8, 12), (33, 7), (6, 64)])
@pytest.mark.parametrize("name", GUARDED)
def test_decisions_on_sizes_are_guarded(name: str, hints: tuple[int, int]) -> None:
    try:
        guards, found = traced(GUARDED[name], *hints)
    except (Specialize, EagerRaises) as refused:
        assert isinstance(refused, Specialize) or hints[0] % 2
        return
    assert guards.hold(*hints)
    for n in SIZES:
        for m in SIZES:
            if guards.hold(n, m):
                check(guards, found, GUARDED[name], n, m)


@pytest.mark.parametrize(
    "use",
    [
        lambda n, E: range(n),
        lambda n, E: E(n, 4).tolist() if int(n) else None,
        lambda n, E: E(n, 4).unbind(0),
        lambda n, E: n * 0.5,
        lambda n, E: E(4).view(n),
    ],
)
def test_reading_an_int_specialises_the_size(use: Callable[..., Any]) -> None:
    guards = Guards(8)
    make = lambda *shape: torch.empty(shape, device="meta")  # noqa: E731 - an argument
    with pytest.raises(Specialize) as caught:
        run_on_meta(use, (*guards.sizes, make), {}, True)
    assert caught.value.symbols == tuple(guards.symbols)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("scatter", lambda x, f: (x, 0, x, x)),
        ("cat", lambda x, f: ([x, f], 1)),
        ("full", lambda x, f: (x.shape, 1e5)),
        ("embedding", lambda x, f: (f, x)),
        ("matmul", lambda x, f: (x, x.mT)),
    ],
)
def test_dtypes_are_probed_at_the_hints(
    name: str, args: Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]]
) -> None:
    """Probing neither hashes nor decides symbols."""
    guards = Guards(8, 12)
    x = torch.empty(guards.sizes, dtype=torch.int64, device="meta")
    given = args(x, torch.empty(guards.sizes, device="meta"))
    check_dtypes(getattr(torch.ops.aten, name), name, given, {}, torch.device("cpu"))
    assert (guards.ranges, guards.relations) == ({}, [])


def test_meta_tensors_of_equal_layout_are_shared() -> None:
    guards = Guards(8, 12)
    n, m = guards.sizes
    known: Metas = {}
    with sharing(known):
        rows = fresh_meta((n, m), torch.float32)
        assert fresh_meta((n, m), torch.float32) is rows
        assert fresh_meta((n, m), torch.float32, rows.stride()) is rows
        others = [
            fresh_meta((m, n), torch.float32),
            fresh_meta((n, m), torch.float64),
            fresh_meta((n, m), torch.float32, (1, n)),
            fresh_meta((3, 4), torch.float32),
        ]
        assert not any(other is rows for other in others)
        assert fresh_meta((3, 4), torch.float32) is not others[-1]  # ints take torch no time
    assert fresh_meta((n, m), torch.float32) is not rows
    assert (guards.ranges, guards.relations) == ({}, [])


def test_shared_meta_tensors_are_thread_local() -> None:
    sizes = Guards(8, 12).sizes
    with sharing({}), ThreadPoolExecutor(1) as others:
        known = fresh_meta(sizes, torch.float32)
        made = others.submit(fresh_meta, sizes, torch.float32).result()
    assert made is not known


def test_a_question_takes_no_range_twice_and_none_where_a_relation_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards = Guards(8, 12)
    n, m = as_dimensions(guards.sizes)
    tried: list[Any] = []
    trial = Context._trial

    def noted(self: Context, ranges: Any) -> Any:
        tried.append(tuple(ranges.items()))
        return trial(self, ranges)

    monkeypatch.setattr(Context, "_trial", noted)
    assert (n // 2 <= m) and len(guards.relations) == 1
    assert tried and len(set(tried)) == len(tried)
    tried.clear()
    monkeypatch.setattr(Context, "_compared", pytest.fail)
    assert n.context.decide(*guards.relations[0]) and not tried


def test_tensor_without_data_adds_no_size_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    guards = Guards(8, 12)
    like = torch.empty(guards.sizes, device="meta")
    asked: list[str] = []
    for name in ("add", "sub", "mul", "eq", "ne", "ge"):
        monkeypatch.setattr(SizeNode, name, lambda *_, name=name: asked.append(name))
    made = dataless(Traced, like, torch.device("cpu"), 0, False)
    assert not asked
    assert all(map(is_same, as_dimensions(made.shape), as_dimensions(like.shape)))
