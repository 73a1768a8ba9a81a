"""Index arithmetic against brute force, and the simplifications that views rely on."""

from __future__ import annotations

import itertools
import random

import pytest

from jitmagic.loops.expr import (
    Add,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Mul,
    add,
    axes_of,
    bounds,
    floordiv,
    leaves,
    linear,
    mod,
    mul,
    position,
    substitute,
)
from jitmagic.loops.tensor_view import formal_point, reshape_point
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.predicates import Predicates
from jitmagic.symbols.size import size_of
from jitmagic.symbols.symbolic_numbers import Symbol


def value(expr: Expr, point: dict[Axis, int]) -> int:
    match expr:
        case Integer(v):
            return v
        case AxisVar(axis):
            return point[axis]
        case Add(a, b):
            return value(a, point) + value(b, point)
        case Mul(a, b):
            return value(a, point) * value(b, point)
        case FloorDiv(a, b):
            return value(a, point) // b
        case Mod(a, b):
            return value(a, point) % b
    raise TypeError(expr)


def points(axes):
    for place in itertools.product(*(range(axis.extent) for axis in axes)):
        yield dict(zip(axes, place))


def grow(rng: random.Random, axes: list[Axis], depth: int):
    """Return a random expression and the same arithmetic on plain integers."""
    if depth == 0 or rng.random() < 0.1:
        axis = rng.choice(axes)
        return AxisVar(axis), lambda p: p[axis]
    inner, plain = grow(rng, axes, depth - 1)
    k = rng.choice([2, 3, 4, 6, 8, 12, 24])
    match rng.randrange(5):
        case 0:
            other, also = grow(rng, axes, depth - 1)
            return add(inner, other), lambda p: plain(p) + also(p)
        case 1:
            k = rng.choice([k, -k, 1, 0])
            return mul(inner, k), lambda p: plain(p) * k
        case 2:
            return floordiv(inner, k), lambda p: plain(p) // k
        case 3:
            return mod(inner, k), lambda p: plain(p) % k
    whole = add(mul(floordiv(inner, k), k), mod(inner, k))
    return whole, plain


@pytest.mark.parametrize("seed", range(6))
def test_random_expressions(seed):
    rng = random.Random(seed)
    for _ in range(250):
        axes = [Axis(f"i{n}", rng.choice([1, 2, 3, 4, 6, 8])) for n in range(3)]
        expr, plain = grow(rng, axes, 6)
        low, high = bounds(expr)
        for point in points(axes):
            assert value(expr, point) == plain(point)
            assert low <= plain(point) <= high
        constant, terms = linear(expr)
        assert axes_of(expr) <= set(axes)
        for point in points(axes):
            assert constant + sum(n * value(t, point) for t, n in terms.items()) == plain(point)


@pytest.mark.parametrize("seed", range(4))
def test_random_substitutions(seed):
    rng = random.Random(seed)
    for _ in range(150):
        axes = [Axis(f"i{n}", rng.choice([2, 3, 4, 8])) for n in range(2)]
        outer = [Axis(f"o{n}", 6) for n in range(2)]
        expr, _ = grow(rng, axes, 5)
        bindings, plains = {}, {}
        for axis in axes:
            inside, plain = grow(rng, outer, 3)
            bindings[axis] = mod(inside, axis.extent)
            plains[axis] = lambda p, plain=plain, n=axis.extent: plain(p) % n
        made = substitute(expr, bindings)
        for point in points(outer):
            inner = {axis: plains[axis](point) for axis in axes}
            assert value(made, point) == value(expr, inner)


I, J, K = (AxisVar(Axis(name, size)) for name, size in (("i", 4), ("j", 8), ("k", 6)))
FLAT = add(add(mul(I, 48), mul(J, 6)), K)


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        (floordiv(FLAT, 48), I),
        (mod(floordiv(FLAT, 6), 8), J),
        (mod(FLAT, 6), K),
        (floordiv(mod(FLAT, 48), 6), J),
        (floordiv(mod(FLAT, 48), 12), FloorDiv(J, 2)),
        (mod(mod(FLAT, 48), 6), K),
        (mod(floordiv(FLAT, 48), 4), I),
        (add(mul(floordiv(J, 2), 2), mod(J, 2)), J),
        (add(add(mul(floordiv(J, 4), 4), mul(mod(floordiv(J, 2), 2), 2)), mod(J, 2)), J),
        (add(add(J, K), mul(J, -1)), K),
        (mul(add(I, Integer(2)), 0), Integer(0)),
    ],
)
def test_simplifications(expr, simple):
    assert expr == simple


@pytest.mark.parametrize(
    "chain",
    [
        [(4, 5, 6), (20, 6), (4, 5, 2, 3), (4, 30), (120,), (2, 60), (4, 5, 6)],
        [(8, 12), (8, 3, 4), (24, 4), (96,), (12, 8), (8, 12)],
        [(1, 6, 1), (6,), (2, 3), (2, 1, 3, 1), (1, 6, 1)],
        [(7,), (7, 1), (1, 7), (7,)],
    ],
)
def test_views_of_views_come_back_to_the_identity(chain):
    point = formal_point(chain[-1])
    for new, old in zip(reversed(chain), reversed(chain[:-1])):
        point = reshape_point(old, new, point)
    assert point == formal_point(chain[-1])


def test_reshape_is_row_major():
    rng = random.Random(0)
    for _ in range(60):
        sizes = [rng.choice([1, 2, 3, 4]) for _ in range(4)]
        old, new = list(sizes), rng.sample(sizes, 4)
        while len(old) > 2 and rng.random() < 0.6:
            old[:2] = [old[0] * old[1]]
        axes = [Axis(f"i{d}", size) for d, size in enumerate(new)]
        made = reshape_point(old, new, [AxisVar(axis) for axis in axes])
        for flat, point in enumerate(points(axes)):
            found = 0
            for part, size in zip(made, old):
                found = found * size + value(part, point)
            assert found == flat


def test_leaves_are_in_order():
    assert list(leaves(FLAT)) == [I, J, K]


def test_digits_of_a_size_are_joined_where_steps_are_sizes():
    """A (b, 4, s, s) viewed as (b*4, s, s) is one index in memory, so one buffer."""
    symbols = [Symbol(f"s{n}", int, Interval(2, 1000), ("digits", n)) for n in range(2)]
    found = Predicates(dict.fromkeys(symbols, 6))
    b, s = (size_of(symbol, found.context) for symbol in symbols)
    heads, row, column = Axis("h", b * 4), Axis("i", s), Axis("j", s)
    i0, i1, i2 = map(AxisVar, (heads, row, column))
    inside = (floordiv(i0, 4), mod(i0, 4), i1, i2), (s * s * 4, s * s, s, 1)
    whole = position((i0, i1, i2), (s * s, s, 1))
    assert linear(position(*inside)) == linear(whole)
    other = (floordiv(i0, 4), mod(i0, 4), i1, i2), (s * s * 3, s * s, s, 1)
    assert linear(position(*other)) != linear(whole)
