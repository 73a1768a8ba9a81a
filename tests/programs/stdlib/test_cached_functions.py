"""functools.lru_cache: programs get what the live cache returns, and it counts as in eager."""

from __future__ import annotations

import functools
import importlib.util
import random

import pytest
import torch

import jitmagic

from ..counts import counts_of

LOG: list[str] = []
SCALE = 3


class Recipe:
    def __init__(self, n: int) -> None:
        self.n, self.pair = n, (n, n + 1)


@functools.lru_cache(None)
def double(n, *, more=0):
    return n * 2 + more


@functools.cache
def scaled(n):
    return n * SCALE


@functools.lru_cache
def recipe(n):
    return Recipe(n)


@functools.cache
def noted(text):
    LOG.append(text)


@functools.cache
def table(n):
    return torch.arange(n)


@functools.lru_cache(maxsize=4)
def turned(n, base):
    angles = base ** torch.arange(n)
    return angles.cos(), angles.sin()


@functools.cache
def noise(n):
    return torch.randn(n)


@functools.cache
def items(n):
    return [n]


class Config:
    factor = 2

    @functools.lru_cache(None)  # noqa: B019
    def times(self, n):
        return self.factor * n

    @staticmethod
    @functools.cache
    def plus(n):
        return n + 1


CONFIG = Config()


def constant(x):
    return x * double(3, more=1) + double(4)


def reads_a_global(x):
    return x * scaled(2)


def object_looked_at(x):
    made = recipe(2)
    return x * made.n + made.pair[1]


def static(x):
    return x * Config.plus(2)


class Plan:
    def __init__(self, n: int) -> None:
        self.sizes, self.names, self.odd = [n, n + 1], {"a": n}, {n}


@functools.cache
def plan(n):
    return Plan(n)


@functools.lru_cache(8)
def cooked(plan, size):
    return plan.sizes[size], [plan.names["a"]], len(plan.odd)


def containers_looked_at(x):
    made = plan(3)
    return x * sum(made.sizes) + made.names["a"]


def one_cache_for_another(x):
    first, rest, count = cooked(plan(4), 1)
    return x * first + rest[0] * count


def method(x):
    return x * CONFIG.times(3)


def same_object_twice(x):
    return x + (plan(2) is plan(2)) + (items(3) is items(3)) + (items(3) is items(4))


WHOLE = [
    constant, reads_a_global, object_looked_at, static, containers_looked_at, same_object_twice,
    method,
]  # fmt: skip


def object_handed_out(x):
    return x, recipe(7)


def object_changed(x):
    made = recipe(5)
    made.n += 1
    return x * made.n


def object_within_another(x):
    return x, [recipe(8)]


def side_effect(x):
    noted("once")
    return x + 1


def tensor_kept(x):
    return x + table(3)


def tensors_kept(x):
    """Of one call the same object twice, of a tuple, and behind another's."""
    x.grad = None
    cosine, sine = turned(3, base=2.0)
    return x * cosine + (sine @ sine) * turned(3, base=2.0)[0] + table(3)


def tensor_handed_out(x):
    return x, table(3)


def view_handed_out(x):
    return x * 2, table(3)[:2]


def tensor_written(x):
    made = table(3)
    made.add_(1)
    return x + made


def tensor_drawn(x):
    return x + noise(3)


def list_kept(x):
    held = items(1)
    held.append(2)
    return x * len(held)


def list_handed_out(x):
    return x, plan(9).sizes


def dictionary_changed(x):
    made = plan(6)
    made.names["a"] += 1
    return x * made.names["a"]


def changed_before_another(x):
    made = plan(7)
    made.sizes.append(5)
    return x * cooked(made, -1)[0]


def list_as_argument(x):
    try:
        return x * double([1])
    except TypeError:
        return x


BROKEN = [
    object_handed_out, list_handed_out, object_changed, dictionary_changed, changed_before_another,
    object_within_another, side_effect, list_kept, one_cache_for_another,
    tensor_handed_out, view_handed_out, tensor_written, tensor_drawn,
]  # fmt: skip
WHOLE += [tensor_kept, tensors_kept]


@pytest.fixture(autouse=True)
def fresh_caches():
    LOG.clear()
    torch.manual_seed(0)
    for cached in (double, scaled, recipe, noted, table, items, Config.times, plan, cooked):
        cached.cache_clear()
    turned.cache_clear(), noise.cache_clear()


def portrait(result):
    parts = result if isinstance(result, tuple) else (result,)
    return [part.tolist() if isinstance(part, torch.Tensor) else type(part) for part in parts]


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")  # what grows is told
@pytest.mark.parametrize("program", WHOLE + BROKEN + [list_as_argument], ids=lambda p: p.__name__)
def test_as_eager(program):
    x = torch.ones(3)
    want = [portrait(program(x)) for _ in range(3)], list(LOG)
    fresh_caches.__wrapped__()
    tagged = jitmagic.jit(program, backend="eager")
    got = [portrait(tagged(x)) for _ in range(3)], list(LOG)
    assert got == want
    if program is not list_as_argument:
        assert (counts_of(tagged).breaks == 0) == (program in WHOLE)


def test_the_same_object_every_time():
    tagged = jitmagic.jit(object_handed_out, backend="eager")
    x = torch.ones(3)
    assert tagged(x)[1] is tagged(x)[1] is recipe(7)


def test_state_read_by_the_cached_function_is_guarded(monkeypatch):
    tagged = jitmagic.jit(reads_a_global, backend="eager")
    assert tagged(torch.ones(1)).item() == 6
    monkeypatch.setattr(f"{__name__}.SCALE", 5)
    scaled.cache_clear()
    assert tagged(torch.ones(1)).item() == reads_a_global(torch.ones(1)).item() == 10


def test_mutation_of_a_cached_tensor_is_seen():
    tagged = jitmagic.jit(tensors_kept, backend="eager")
    x = torch.ones(3)
    for _ in range(3):
        assert torch.equal(tagged(x), tensors_kept(x))
        turned(3, base=2.0)[0].add_(1)
    turned.cache_clear()
    assert torch.equal(tagged(x), tensors_kept(x))
    assert turned.cache_info().misses == 1


def in_float64(function):
    torch.set_default_dtype(torch.float64)
    function()
    torch.set_default_dtype(torch.float32)


def test_a_cache_filled_in_another_state():
    fill = lambda: turned(3, base=2.0)  # noqa: E731
    x = torch.ones(3)
    in_float64(fill)
    tagged = jitmagic.jit(tensors_kept, backend="eager")
    assert tagged(x).dtype is torch.float64
    assert not counts_of(tagged).breaks


def range_kept(x):
    return x[:2] * ranged(2, 4)


def draws_besides(x):
    """What was drawn before the cache was asked is drawn again."""
    first = random.random()
    return x * first + table(3) * random.random()


def writes_to_an_input(x):
    x.mul_(2)
    x.add_(turned(3, base=2.0)[1])
    return x + 1


def two_caches(x):
    return x * turned(3, base=2.0)[1] + table(3)


@functools.cache
def ranged(first, after):
    return torch.arange(first, after)


def another_table():
    table.cache_clear()
    code = table.__wrapped__.__code__
    table.__wrapped__.__code__ = (lambda n: torch.arange(n, dtype=torch.float64)).__code__
    table(3)
    table.__wrapped__.__code__ = code


def another_range():
    ranged.cache_clear()
    ranged(2, 4.0)


def another_turn():
    turned.cache_clear()
    in_float64(lambda: turned(3, base=2.0))


CHANGES = [
    (tensors_kept, another_turn), (two_caches, another_table), (two_caches, another_turn),
    (draws_besides, another_table), (writes_to_an_input, another_turn),
    (range_kept, another_range),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
@pytest.mark.parametrize(("program", "change"), CHANGES)
def test_a_cache_that_holds_another_kind_since(program, change):
    """The call that finds it starts over in eager; the next compiles for what is there."""

    def story(call):
        fresh_caches.__wrapped__(), ranged.cache_clear(), random.seed(3)
        results = [call(torch.ones(3)) for _ in range(2)]
        change()
        results += [call(torch.ones(3)) for _ in range(3)]
        return [(result.dtype, result.tolist()) for result in results]

    tagged = jitmagic.jit(program, backend="eager")
    assert story(tagged) == story(program)
    assert counts_of(tagged).graphs > 1


@pytest.mark.parametrize("given", [(2, 4.0), (2.0, 4), (True, 4)])
def test_equal_keys_share_a_cache_entry(given):
    ranged.cache_clear()
    in_float64(lambda: ranged(*given))
    tagged = jitmagic.jit(range_kept, backend="eager")
    assert tagged(torch.ones(3)).dtype is range_kept(torch.ones(3)).dtype
    assert not counts_of(tagged).breaks


PACKAGES = {"one"}


@functools.cache
def chosen():
    LOG.append("asked")
    return "fast" if "one" in PACKAGES else "slow"


@functools.lru_cache(maxsize=2)
def limit(more=1):
    return len(PACKAGES) + more


def asks(x):
    return x * limit() * (2 if chosen() == "fast" else 3)


def asked_again(fn):
    """What is kept stays, whatever it was made of, until the cache is cleared."""
    PACKAGES.add("one")
    results = []
    for _ in range(2):
        results.append(fn(torch.ones(2)).tolist())
        PACKAGES.discard("one")
    chosen.cache_clear()
    results.append(fn(torch.ones(2)).tolist())
    PACKAGES.add("two")
    limit(2), limit(3)  # push out what was kept without arguments
    return [*results, fn(torch.ones(2)).tolist(), list(LOG)]


def test_cached_result_is_read():
    answers = []
    for tag in (lambda fn: fn, jitmagic.jit):
        LOG.clear(), chosen.cache_clear(), limit.cache_clear(), PACKAGES.clear()
        PACKAGES.add("one")
        asks(torch.ones(2))
        answers.append(asked_again(tag(asks)))
    assert answers[0] == answers[1]


def test_cached_read_of_process_state_is_one_graph():
    @functools.lru_cache
    def available():
        return importlib.util.find_spec("torch") is not None

    def program(x):
        return x * (2 if available() else 3)

    assert program(torch.ones(1)).item() == 2
    tagged = jitmagic.jit(program, fullgraph=True)
    for hits in (1, 2):
        assert tagged(torch.ones(1)).item() == 2
        assert available.cache_info()[:2] == (hits, 1)


@pytest.mark.parametrize("made", [torch, torch.relu, Recipe, functools.reduce, double])
def test_a_first_call_that_returns_what_has_one_identity_is_one_graph(made):
    @functools.cache
    def chosen(n):
        return made

    def program(x):
        return x + 1, chosen(1)

    tagged = jitmagic.jit(program, fullgraph=True, backend="eager")
    for hits in (0, 1):
        assert tagged(torch.ones(1))[1] is made
        assert chosen.cache_info()[:2] == (hits, 1)
