"""Python as people write it around tensors: breaks in every block, effects, aliasing, RNG, dtypes.

Each program runs plainly and compiled, twice over, and must show the same; see harness.py.
"""

# ruff: noqa: T201
from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

from ..harness import Program, check

PROGRAMS: list[Program] = []


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage boundary is verified."""
    monkeypatch.setenv("JITMAGIC_VERIFY", "1")


def r(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor that depends on its shape alone."""
    generator = torch.Generator().manual_seed(sum(shape) + 7 * len(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def program(*calls: Callable[[], tuple[Any, ...]], **stated: Any) -> Callable[[Any], Any]:
    """Register a function, or a Module class, with the argument tuples of its calls."""

    def register(target: Any) -> Any:
        is_class = isinstance(target, type)
        build = target if is_class else lambda: target
        made = Program(target.__name__, build, lambda: [call() for call in calls], **stated)
        PROGRAMS.append(made)
        return target

    return register


# -- breaks in loops -----------------------------------------------------------------------------


@program(lambda: (r(4, grad=True),), graphs=4, breaks=4, kernels=4)
def print_in_for(x):
    for i in range(4):
        x = x * 1.5 + i
        print("step", i)
        x = x.sin()
    return x


# Since 3.14 a loop's condition is compiled once, so both of its breaks go on in one function.
ONCE = sys.version_info >= (3, 14)


@program(
    lambda: (r(5).abs() + 1,), lambda: (r(5).abs() * 3 + 1,),
    graphs=5 - ONCE, breaks=4 - ONCE, kernels=6 - ONCE,
)  # fmt: skip
def while_with_item(x):
    rounds = 0
    while x.sum().item() > 1.0:
        x = x * 0.5
        rounds += 1
        if rounds > 20:
            break
    else:
        rounds += 100
    return x, rounds


@program(lambda: (r(3, 4),))
def breaks_in_nested_loops(x):
    seen = []
    for i, row in enumerate(x):
        for j in range(2):
            if j == 1 and i == 1:
                continue
            print(i, j)
            row = row + j
        seen.append(row * 2)
    return torch.stack(seen), len(seen)


@program(lambda: (r(4), [1, 2, 3]), lambda: (-r(4), [5]))
def zip_and_early_return(x, factors):
    for index, factor in zip("abc", factors, strict=False):
        x = x + factor
        if x.sum() > 6:
            return index, x * 2
    return None, x


# -- breaks in blocks ----------------------------------------------------------------------------


@program(lambda: (r(4, grad=True),), graphs=3, breaks=2, kernels=3)
def break_in_no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = y * 3
        print("inside", z.requires_grad, torch.is_grad_enabled())
        w = z + x
    print(torch.is_grad_enabled())
    return y * w, w.requires_grad


@program(
    lambda: (r(4, grad=True), True), lambda: (r(4, grad=True), False), graphs=2, breaks=1, kernels=2
)
def set_grad_enabled_by_argument(x, on):
    with torch.set_grad_enabled(on):
        y = x * 2
        with torch.enable_grad():
            print("nested")
            z = x * 3
        w = x.exp()
    return y, z, w, torch.is_grad_enabled()


@program(lambda: (r(4), 0), lambda: (r(4), 1), lambda: (r(4), 2), graphs=3, breaks=2, kernels=3)
def break_in_try(x, how):
    try:
        y = x + 1
        print("try", how)
        if how == 1:
            raise ValueError(f"asked for {how}")
        if how == 2:
            return y.reshape(3)
        y = y * 2
    except ValueError as error:
        print("caught", error)
        y = x - 1
    except RuntimeError as error:
        print(type(error).__name__)
        y = x * 7
    else:
        y = y + 100
    finally:
        print("finally")
        x.add_(1)
    return y + x


@program(lambda: (r(4),))
def escaping_exception(x):
    x.mul_(2)
    try:
        print("before")
        return {}[int(x.numel())]
    finally:
        x.add_(1)
        print("after")


@program(lambda: (r(3), r(4)), lambda: (r(3), r(3)))
def mismatched_shapes(x, y):
    z = x * 2
    return z + y


# -- calls ---------------------------------------------------------------------------------------


def _inner(x, scale):
    x = x * scale
    print("inner", tuple(x.shape))
    return x + 1, x.sum()


def _middle(x, scale=3):
    y, total = _inner(x + 1, scale)
    return y * total


@program(lambda: (r(4, grad=True),))
def break_in_nested_callees(x):
    y = _middle(x)
    return _middle(y, scale=0.5) - x


def _power(x, n):
    return x if n == 0 else x * _power(x, n - 1)


def _countdown(x, n):
    if n == 0:
        print("bottom")
        return x
    return _countdown(x * 0.5, n - 1) + n


@program(lambda: (r(4), 3), lambda: (r(4), 5))
def recursion(x, n):
    return _power(x, n), _countdown(x, n)


@program(lambda: (r(4),), graphs=4, breaks=2, kernels=5)
def nonlocal_closures(x):
    total = x.new_zeros(4)
    count = 0

    def add(y):
        nonlocal total, count
        total = total + y
        count += 1
        if count == 2:
            print("twice", count)
        return total.sum()

    sums = [add(x), add(x * 2), add(x * 3)]
    return total, count, sums


def _make_accumulator() -> Callable[[Tensor], Tensor]:
    kept = torch.zeros(3)
    calls = 0

    def accumulate(x):
        nonlocal kept, calls
        calls += 1
        kept = kept + x
        return kept * calls

    return accumulate


PROGRAMS.append(
    Program("closure_with_state", _make_accumulator, lambda: [(r(3),), (r(3) + 1,)] * 2)
)


@program(lambda: (r(4), r(4) + 1, r(4) + 2), graphs=1, breaks=0, kernels=1)
def varied_signatures(x, *rest, scale=2.0, **named):
    def collect(first, *args, last=None, **kwargs):
        return first + sum(args) * kwargs.get("k", 1), last, sorted(kwargs)

    a = collect(x, *rest, k=scale)
    b = collect(*rest, **{"last": x, "k": 3, "other": 1})
    return a, b, len(rest), named


def _make_defaults() -> Callable[..., Any]:
    def with_defaults(x, n=2, names=["z"], *, bias=torch.ones(4)):  # noqa: B006, B008
        names.extend([n, n])  # by two: what grows by one with every call is told
        return x * n + bias, list(names)

    return with_defaults


PROGRAMS.append(
    Program(
        "default_arguments",
        _make_defaults,
        lambda: [(r(4),), (r(4), 5), (r(4), 5, ["a", "b"]), (r(4),)],
    )
)


# -- memory --------------------------------------------------------------------------------------


@program(lambda: (r(4, 6), r(6)), graphs=1, breaks=0, kernels=3)
def in_place_on_inputs_and_views(x, y):
    x[1].add_(y)
    x[:, 2:4] *= 2
    column = x.t()[0]
    column.zero_()
    x.view(-1)[5:7] = torch.tensor([8.0, 9.0])
    y.clamp_(min=0).sub_(x.sum(0))
    return column + 1, x.diagonal()


@program(lambda: (r(4, 6),))
def in_place_around_a_break(x):
    view = x[1:3]
    view.mul_(2)
    print("sum", round(x.sum().item(), 2))
    view += 1
    x.t_()
    return view.sum()


def _aliases(x: Tensor, outputs: tuple[Tensor, ...]) -> list[Any]:
    return [
        (o is x, o.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) for o in outputs
    ]


def outputs_alias_inputs(x):
    y = x + 1
    return x, x.view(6, 4), x[1], y, y.t(), y[0], x.detach()


def test_outputs_alias_inputs_as_in_eager() -> None:
    check(
        Program("aliases", lambda: outputs_alias_inputs, lambda: [(r(4, 6),)], graphs=1, breaks=0)
    )
    eager_x, our_x = r(4, 6), r(4, 6)
    eager, ours = outputs_alias_inputs(eager_x), jitmagic.jit(outputs_alias_inputs)(our_x)
    assert _aliases(eager_x, eager) == _aliases(our_x, ours)
    assert _aliases(eager[3], eager) == _aliases(ours[3], ours)
    ours[2].fill_(5)
    ours[5].fill_(7)
    eager[2].fill_(5)
    eager[5].fill_(7)
    assert all(torch.equal(a, b) for a, b in zip(eager, ours, strict=True))


@program(lambda: (r(4, grad=True),))
def in_place_with_gradient(x):
    y = x * 2
    y[1:3] *= 3
    print("between")
    y.add_(x)
    z = y * 3
    z[0] = 0
    return z, y.relu_()


# -- what comes back -----------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Record:
    value: Tensor
    name: str = "record"
    parts: list[Any] = dataclasses.field(default_factory=list)


@program(lambda: (r(2, 4), {"a": r(4), "b": [r(4), 1]}), exact=True, graphs=1, breaks=0, kernels=4)
def structured_results(x, tree):
    ordered = collections.OrderedDict(one=x + 1, two=Pair(x * 2, (x - 1, None)))
    ordered["three"] = {k: v for k, v in tree.items() if k == "a"}
    tree["added"] = x[0] + 1
    tree["b"].append(tree["a"] * 2)
    values, indices = x.max(1)
    return [
        ordered,
        {"list": [values, indices, "text", 3, True]},
        Pair(left=x.shape, right=x.dtype),
    ]


@program(lambda: (r(4),))
def dataclass_inside(x):
    record = Record(x * 2)
    record.parts.append(record.value + 1)
    copied = dataclasses.replace(record, name=f"{record.name}-copy", value=x)
    print(copied.name)
    return record.value, record.parts, copied.value, copied.parts is record.parts


def test_a_dataclass_comes_back() -> None:
    def make(x):
        return Record(x * 2, parts=[x])

    x = r(4)
    made = jitmagic.jit(make)(x)
    assert type(made) is Record
    assert made.parts[0] is x
    assert torch.equal(made.value, x * 2)


# -- effects -------------------------------------------------------------------------------------


@program(lambda: (r(2, 4),), train=True)
class CountingModule(nn.Module):
    """A counter, a history, and a buffer that is changed both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.history: list[str] = []
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", torch.zeros(2, 4))

    def forward(self, x):
        self.calls += 1
        self.history.append(f"call {self.calls}")
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.last = x.detach() * 2
        y = self.linear(x) * self.calls
        print(len(self.history), self.history[-1])
        return y + self.mean + self.last


_log: list[Any] = []
_total = 0


def reset_globals() -> dict[str, Any]:
    """The globals as they are now, set back for the next run."""
    global _total
    seen = {"total": _total, "log": list(_log), "late": globals().pop("_late", None)}
    _total = 0
    _log.clear()
    return seen


@program(lambda: (r(4),), lambda: (r(5),), state=reset_globals, graphs=2, breaks=1, kernels=2)
def global_writes(x):
    global _total, _late
    _total += x.shape[0]
    _log.append(_total)
    y = x * _total
    print("late", "_late" in globals())
    _late = _total * 2
    return y + _late


# -- random numbers ------------------------------------------------------------------------------


@program(lambda: (r(6, 5, grad=True),), graphs=2, breaks=1, kernels=6)
def random_numbers(x):
    a = torch.rand(6, 5) + torch.randn_like(x)
    b = F.dropout(x, 0.3)
    c = torch.randint(0, 10, (6,))
    print("draws so far", c.tolist())
    d = torch.bernoulli(torch.full((6, 5), 0.25))
    e = torch.empty(3).uniform_(-1, 1)
    p = torch.randperm(6)
    return a.detach(), b, c, d, e, p, x[p], torch.normal(0.0, 1.0, (2,))


@program(lambda: (r(4, 8),), train=True, graphs=2, breaks=1, kernels=2)
class DropoutAndBreaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        y = self.drop(self.first(x))
        print("kept")
        return self.drop(y) + (torch.rand_like(y) > 0.5)


# -- dtypes --------------------------------------------------------------------------------------


@program(
    lambda: (r(8, dtype=torch.bfloat16), r(8, dtype=torch.float16), r(8), torch.arange(8)),
    exact=True,
    graphs=1,
    breaks=0,
    kernels=2,
)
def mixed_dtypes(b, h, f, i):
    wide = b * 2 + f
    mixed = b + h
    flags = (i % 3 == 0) & ~(f > 0)
    return (
        wide.double() / 3,
        mixed,
        h * 0.1 + i,
        i // 3,
        i / 2,
        flags,
        flags.sum(),
        -i.to(torch.int8) << 1,
        i.to(torch.uint8) - 9,
        f.to(torch.int32) ^ 5,
        b.float().to(torch.float16),
        torch.where(flags, h, b),
        i.clamp(2, 5).float().mean(),
        (True + i) * 2.0,
    )


@program(
    lambda: (r(8, dtype=torch.bfloat16, grad=True), r(8, grad=True)), graphs=1, breaks=0, kernels=1
)
def low_precision_gradients(b, f):
    y = (b * f).to(torch.bfloat16) + b
    return y.float().sum(), (b * b).sum()


# -- gradients across breaks ---------------------------------------------------------------------


@program(lambda: (r(4, 3, grad=True), r(3, grad=True), r(4, 3)), graphs=3, breaks=2, kernels=5)
def gradients_across_breaks(x, w, plain):
    y = (x * w).tanh()
    scale = y.detach().abs().max().item()
    z = y / scale + plain
    print(z.requires_grad, plain.requires_grad, y.is_leaf)
    if z.mean() > 0:
        z = z * w
    else:
        z = z - w
    return z, z.detach(), (z**2).mean()


# -- iteration and text --------------------------------------------------------------------------


@program(lambda: (r(3, 4),), graphs=1, breaks=0, kernels=3)
def comprehensions(x):
    rows = [row * i for i, row in enumerate(x)]
    table = {f"row{i}": row.sum() for i, row in enumerate(rows)}
    kept = [row for i, row in enumerate(rows) if i != 1]
    return table, kept, tuple(v + 1 for v in table.values()), {len(k) for k in table}


@program(lambda: (r(3, 4),))
def formatted_text(x):
    shape = f"{tuple(x.shape)!r:>10}|{x.dtype}|{x.ndim:03d}"
    y = x * len(shape)
    value = f"{y.sum().item():.3f} {y.shape[0] + 0.5:6.2f}"
    return y + 1, shape, value, f"{x[0]}"


def _windows(x, size):
    for start in range(0, x.shape[0] - size + 1):
        yield x[start : start + size]
    return "done"


def _delegating(x):
    ended = yield from _windows(x, 2)
    yield x.sum() + len(ended)


@program(lambda: (r(5),))
def generators_inside(x):
    sums = [w.sum() for w in _windows(x, 3)]
    total = sum(w.max() for w in _windows(x, 2))
    last = None
    for last in _delegating(x):
        if last.ndim == 0:
            print("scalar")
    first = next(iter(_windows(x, 4)))
    return sums, total, last, first


# -- modes ---------------------------------------------------------------------------------------


@program(lambda: (r(4, 4, grad=True), r(4, 4)))
def autocast_region(x, y):
    z = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = z @ y
        b = F.linear(a, y) + 1
    c = b.to(y.dtype) @ y
    return a, b, c, a.dtype, torch.is_autocast_enabled("cpu")


@program(lambda: (r(4),))
def inference_region(x):
    y = x * 2
    with torch.inference_mode():
        z = y + 1
        flag = z.is_inference()
        z.mul_(2)
    return y, z, flag, z.is_inference(), y.is_inference()


def test_calls_under_inference_mode_and_no_grad() -> None:
    @jitmagic.jit
    def square(x):
        return x * x

    x = r(4, grad=True)
    with torch.inference_mode():
        assert square(x).is_inference()
    with torch.no_grad():
        assert not square(x).requires_grad
    made = square(x)
    assert made.requires_grad
    assert not made.is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = jitmagic.jit(lambda a: a @ a)(r(4, 4))
    assert product.dtype == torch.bfloat16


@program(
    lambda: (r(4) > 0, r(4, grad=True), r(4) + 9),
    lambda: (r(4) > 9, r(4, grad=True), r(4)),
    graphs=1,
    breaks=0,
    kernels=3,
)
def selections(cond, a, b):
    picked = torch.where(cond, a * 2, b)
    filled = a.masked_fill(cond, -1.0)
    return (
        picked,
        filled,
        torch.where(cond, 1.0, a),
        b.where(~cond, 0.0),
        a[[0, 2]],
        a.gather(0, torch.tensor([3, 1])),
    )


@program(lambda: (r(4),), lambda: (-r(4),), lambda: (r(4, grad=True),))
def branches_on_tensors(x):
    y = x + 1
    if (y > 0).all() and not x.isnan().any():
        y = y.log()
    assert y.shape == x.shape, "shapes differ"
    return (y if y.mean() < 0 else -y), bool(y[0] > 0), int(x.numel()) in (4, 5), y.argmax().item()


# -- harder mixtures -----------------------------------------------------------------------------


@program(lambda: (r(4, grad=True),))
def finally_over_a_return_in_a_loop(x):
    trail = []
    for i in range(3):
        try:
            print("round", i)
            if i == 1:
                continue
            x = x * (i + 2)
            if x.abs().sum() > 1e6:
                return x
        finally:
            trail.append(i)
    return x, trail


class Scale:
    """A context manager of the user's that prints and swallows KeyError."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.log: list[str] = []

    def __enter__(self) -> Scale:
        print("enter", self.factor)
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        self.log.append(getattr(kind, "__name__", "none"))
        print("exit", self.log)
        return kind is KeyError


@program(lambda: (r(4), "a"), lambda: (r(4), "b"))
def own_context_manager(x, key):
    table = {"a": x * 2}
    with Scale(3.0) as outer, Scale(2.0) as inner:
        x = x * outer.factor
        x = table[key] + x * inner.factor
    return x, outer.log, inner.log


@program(lambda: (r(3, 4, grad=True), r(4, grad=True)))
def inner_no_grad_callee_with_break(x, w):
    @torch.no_grad()
    def norm(v):
        n = v.norm().item()
        print("grad", torch.is_grad_enabled())
        return n + 1

    y = x * w / norm(x)
    return y.sum(0) * norm(w), torch.is_grad_enabled()


@program(lambda: (r(4), {"k": [r(4)]}), exact=True)
def containers_of_inputs_change(x, tree):
    tree["k"][0].add_(1)
    tree["k"].append(x)
    print(len(tree["k"]))
    first, *rest = tree["k"]
    rest[-1].mul_(2)
    del tree["k"][0]
    tree.setdefault("new", []).extend([first, 1])
    return first is tree["new"][0], tree["k"][0] is x, x + first


@program(lambda: (r(6),), exact=True)
def written_while_viewed(x):
    a, b = x.split(3)
    a.copy_(b)
    c = x.clone()
    c[::2] = x[1::2]
    x[x > 0] = 0
    y = x.expand(2, 6)
    return a is b, c, y, x.unsqueeze(0)


@program(lambda: (r(2, 3, 8, 8),), train=True)
class NormAndBreak(nn.Module):
    """Batch norm on both sides of a break: its statistics advance twice a call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.norm(x)
        print(int(self.norm.num_batches_tracked))
        return self.norm(y * 2) + self.norm.running_mean.sum()


@program(lambda: (r(4),), lambda: (r(4) * 3,))
def exceptions_from_torch_are_caught(x):
    tried = []
    for shape in ((2, 2), (3, 3), (4,)):
        try:
            tried.append(x.view(shape) + 1)
        except RuntimeError as error:
            tried.append(type(error).__name__)
    try:
        torch.cat([x, "no"])
    except TypeError:
        tried.append("type")
    return tried


class Wrong(ValueError):
    """An exception of the user's."""


@program(lambda: (r(5, grad=True), 3), lambda: (r(5, grad=True), 0))
def assert_and_custom_error(x, n):
    y = x * n
    if n == 0:
        raise Wrong("no", n)
    assert n > 2, f"too small: {n}"
    return y


@program(lambda: (r(4, 4),))
def seeded_generator(x):
    generator = torch.Generator().manual_seed(3)
    a = torch.rand(4, generator=generator)
    b = torch.rand(4, generator=generator)
    torch.manual_seed(5)
    c = torch.randn(4)
    return x + a, b, c, torch.rand(2)


@program(lambda: (torch.arange(6), torch.tensor(True)), exact=True)
def integer_arithmetic(i, flag):
    j = -i + 2
    return (
        j // 4,
        j % 4,
        torch.div(j, 4, rounding_mode="trunc"),
        j.float() % 3,
        i**2,
        i >> 1,
        j.abs().bitwise_not(),
        (i * 2**40),
        i.to(torch.int16) * 20000,
        flag + i,
        flag.logical_xor(i > 2),
        i.cumsum(0),
        j.argsort(),
        i.float().to(torch.uint8),
    )


@program(lambda: (r(4), 2), lambda: (r(4), 2.5), lambda: (r(4), True), lambda: (r(4), -0.0))
def scalars_of_many_types(x, n):
    return x * n, x + n if n else x, type(n).__name__, torch.full_like(x, n), x / (n or 1)


@program(lambda: (r(3),))
def lambdas_map_and_sorted(x):
    parts = sorted(x.unbind(), key=lambda t: float(t))
    doubled = list(map(lambda t: t * 2, x))
    kept = list(filter(lambda t: t.item() > 0, x))
    print(len(kept))
    return torch.stack(parts), torch.stack(doubled), len(kept), max(x), any(t > 0 for t in x)


@program(lambda: (r(4, grad=True),))
def backward_inside(x):
    w = torch.ones(4, requires_grad=True)
    loss = (x.detach() * w).sum()
    loss.backward()
    (g,) = torch.autograd.grad((w**3).sum(), w)
    return x * w.grad, g


@program(lambda: (r(4),), lambda: (r(4),))
def walrus_match_and_ternary(x):
    match x.shape:
        case (n,) if (m := n * 2) > 4:
            y = x * m
        case _:
            y = x
    while (n := n - 1) > 1:
        y = y + n
    print(n, m)
    return y if n == 1 else -y, not y.requires_grad and n


class Tagged(Tensor):
    """A subclass that counts the torch functions it sees."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensor_subclasses_run_as_in_eager() -> None:
    def body(x):
        return torch.relu(x * 2) + 1

    compiled = jitmagic.jit(body)
    plain = compiled(r(4))
    assert type(plain) is Tensor
    counts = []
    for run in (body, compiled, compiled):
        Tagged.seen = 0
        made = run(r(4).as_subclass(Tagged))
        assert type(made) is Tagged
        counts.append(Tagged.seen)
        assert torch.equal(made.as_subclass(Tensor), plain)
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_behaves_as_eager(program: Program) -> None:
    check(program)


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")  # what grows is told
def test_module_attributes_after_the_calls() -> None:
    eager, ours = CountingModule(), jitmagic.jit(CountingModule())
    ours.load_state_dict(eager.state_dict())
    for _ in range(3):
        torch.testing.assert_close(ours(r(2, 4)), eager(r(2, 4)))
    assert (ours.calls, ours.history) == (3, eager.history)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))
