"""What notebooks use of the standard library around tensors: one graph, eager's results.

Each program runs plainly and compiled, twice over; arguments are compared as well, for what was
written to them.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import dataclasses
import functools
import heapq
import itertools
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import jitmagic

from ..counts import counts_of
from ..harness import Program, check

PROGRAMS: list[Program] = []


def program(*calls: Callable[[], tuple[Any, ...]], **stated: Any) -> Callable[[Any], Any]:
    """Register a function with the arguments of its calls; it becomes one graph."""

    def register(target: Any) -> Any:
        made = [*calls] or [lambda: (torch.arange(4.0),), lambda: (torch.ones(4),)]
        stated.setdefault("graphs", 1)
        options = {"backend": "eager"}
        PROGRAMS.append(
            Program(
                target.__name__,
                lambda: target,
                lambda: [one() for one in made],
                options=options,
                **stated,
            )
        )
        return target

    return register


# -- itertools -------------------------------------------------------------------------------------


@program()
def cycles(x):
    return [x * a for a, _ in zip(itertools.cycle([1, 2, 3]), range(5))], list(
        itertools.islice(itertools.cycle(iter("ab")), 1, 6, 2)
    )


@program()
def groups(x):
    rows = [(1, 2.0), (1, 3.0), (2, 4.0), (1, 5.0)]
    by_key = [(k, [x * v for _, v in g]) for k, g in itertools.groupby(rows, lambda r: r[0])]
    kept = [(k, g) for k, g in itertools.groupby("aabc")]  # the groups of the past are empty
    first = next(iter(kept[0][1]), None)
    skipped = [next(g) for _, g in itertools.groupby([3, 3, 3, 4, 4])]
    return by_key, first, [list(g) for _, g in kept], skipped


@program()
def sums(x):
    return (
        list(itertools.accumulate([x, x, x])),
        list(itertools.accumulate([1, 2, 3], operator.mul, initial=10)),
        list(itertools.accumulate([], initial=x)),
        list(itertools.accumulate([2, 1], func=None)),
    )


@program()
def neighbours(x):
    return [b - a for a, b in itertools.pairwise([x, x * 2, x * 4])], list(itertools.pairwise([1]))


@program()
def longest(x):
    rows = itertools.zip_longest([1, 2, 3], iter([4]), fillvalue=0)
    return (
        [x * a + b for a, b in rows],
        list(itertools.zip_longest()),
        list(itertools.zip_longest("ab", "c", "def")),
    )


@program()
def chosen(x):
    source = iter([1, 2, 5, 1])
    small = list(itertools.takewhile(lambda v: v < 3, source))
    return (
        [x * v for v in small],
        list(source),  # what stopped it is gone
        list(itertools.dropwhile(lambda v: v < 3, [1, 2, 5, 1])),
        list(itertools.filterfalse(None, [0, 1, 2])),
        list(itertools.compress("abcd", [1, 0, True])),
    )


@program()
def tees(x):
    a, b, c = itertools.tee(iter([1, 2, 3]), 3)
    return [x * next(a), next(a)], list(b), list(a), list(c)


@program(graphs=None)
def negative_bounds(x):
    try:
        return list(itertools.islice([1, 2], -1))
    except ValueError:
        return x * 2


@program()
def negative_length(x):
    try:
        return list(itertools.combinations([1], -1))
    except ValueError as error:
        return x * 2, str(error)


@program()
def steps(x):
    iterator = iter([1, 2])
    found = [iterator.__next__(), next(iterator.__iter__())]
    try:
        iterator.__next__()
    except StopIteration:
        found.append(3)
    return x * 2, found


# -- order -----------------------------------------------------------------------------------------


@program(lambda: (torch.ones(2), [3, 1]), lambda: (torch.ones(2), []))
def heaps(x, waiting):
    heapq.heapify(waiting)
    heapq.heappush(waiting, 2)
    least = heapq.heappop(waiting)
    own = [5, 2, 8]
    heapq.heapify(own)
    others = heapq.heappushpop(own, 0), heapq.heapreplace(own, 9)
    ranked = heapq.nlargest(2, own), heapq.nsmallest(2, own, key=lambda v: -v)
    merged = list(heapq.merge([1, 4], [2, 3])), list(heapq.merge([4, 1], [3], reverse=True))
    try:
        heapq.heappop([])
    except IndexError as error:
        return x * least, own, others, ranked, merged, str(error)


class Job(NamedTuple):
    rank: int
    name: str


@program()
def heap_of_rows(x):
    jobs: list[Any] = []
    for rank, name in ((3, "c"), (1, "b"), (1, "a")):
        heapq.heappush(jobs, Job(rank, name))
    return [heapq.heappop(jobs).name for _ in range(3)], x * 2


class Incomparable:
    def __init__(self, rank):
        self.rank = rank

    def __lt__(self, other):
        if self.rank == other.rank:
            raise ValueError(f"both {self.rank}")
        return self.rank < other.rank


@program()
def heap_whose_comparison_raises(x):
    """The heap is as C code leaves it."""
    heap = [Incomparable(rank) for rank in (1, 2, 3)]
    try:
        heapq.heappush(heap, Incomparable(1))
    except ValueError as error:
        return x * 2, str(error), [one.rank for one in heap]


@program(lambda: (torch.ones(2), [1, 3, 5]), lambda: (torch.ones(2), [2]))
def bisections(x, rows):
    bisect.insort(rows, 3)
    bisect.insort_left(rows, 4, lo=1)
    places = bisect.bisect(rows, 3), bisect.bisect_left((1, 3, 3), 3, 1, hi=2)
    keyed = bisect.bisect_right([(1, "b"), (2, "a")], 1, key=lambda row: row[0])
    return x * places[0], places, keyed


@program()
def compared(x):
    key = functools.cmp_to_key(lambda a, b: b - a)
    return sorted([3, 1, 2], key=key), x * 2, key(1) < key(2), min([1, 2], key=key)


# -- operator, copy, re ----------------------------------------------------------------------------

_BY_COUNT = operator.itemgetter(1)
_SHAPE = operator.attrgetter("shape", "dtype.itemsize")
_SUM = operator.methodcaller("sum", dim=0)


@program()
def getters(x):
    made = operator.itemgetter("a", "b")({"a": x, "b": 1}), operator.methodcaller("mul", 2)(x)
    return made, sorted([("a", 2), ("b", 1)], key=_BY_COUNT), _SHAPE(x), _SUM(x)


@dataclasses.dataclass
class Settings:
    rate: float = 0.5
    sizes: list[int] = dataclasses.field(default_factory=lambda: [1, 2])

    def as_tuple(self):
        return self.rate, tuple(self.sizes)


@program(lambda: (torch.ones(2), Settings()), lambda: (torch.ones(2), Settings(2.0, [3])))
def dataclass_tools(x, settings):
    table = dataclasses.asdict(settings)
    table["sizes"].append(9)
    other = dataclasses.replace(settings, rate=settings.rate * 2)
    return x * other.rate, table, settings.as_tuple(), dataclasses.astuple(other)


@program(lambda: (torch.ones(2), {"a": [1, {"b": 2}]}), lambda: (torch.ones(2), {"a": [3]}))
def copies(x, table):
    deep, flat = copy.deepcopy(table), copy.copy(table)
    deep["a"].append(5)
    shared = [x]
    pair = copy.deepcopy([shared, shared])
    pair[0][0].add_(1)
    ring: list[Any] = []
    ring.append(ring)
    around = copy.deepcopy(ring)
    return deep, flat["a"] is table["a"], pair[1][0], x, pair[0] is pair[1], around[0] is around


@program(lambda: (torch.ones(2), Settings()))
def copied_instances(x, settings):
    settings.extra = 1
    flat, deep = copy.copy(settings), copy.deepcopy(settings)
    deep.sizes.append(4)
    flat.rate = 3.0
    return (
        x * 2,
        settings.as_tuple(),
        flat.as_tuple(),
        deep.as_tuple(),
        flat.sizes is settings.sizes,
    )


class Replaced(Settings):
    def __replace__(self, /, **changes):  # each dataclass has one since 3.13; no copy calls it
        raise AssertionError("not asked for")


@program(lambda: (torch.ones(2), Replaced()))
def copied_past_replace(x, settings):
    flat, deep = copy.copy(settings), copy.deepcopy(settings)
    deep.sizes.append(4)
    return x * 2, flat.as_tuple(), deep.as_tuple(), flat.sizes is settings.sizes


class CopiesItself:
    def __deepcopy__(self, memo):
        return "copied"


@program(graphs=None)
def copied_its_own_way(x):
    return copy.deepcopy([CopiesItself()]), x * 2


_PATTERN = re.compile(r"(?P<kind>[a-z]+)_(\d+)")


@program(lambda: (torch.ones(2), "relu_6"), lambda: (torch.ones(2), "none"))
def patterns(x, text):
    found = _PATTERN.match(text)
    if found is None:
        return x, re.sub("n", "m", text, flags=re.IGNORECASE), re.split("o", text)
    parts = found.group("kind"), found[2], found.groups(), found.span(), found.groupdict()
    return x * int(found[2]), parts, re.findall(r"\d", text), bool(re.search("zz", text))


# -- collections -----------------------------------------------------------------------------------


@program()
def deques(x):
    last = collections.deque([x], maxlen=3)
    for i in range(5):
        last.append(x * i)
    last.appendleft(x)
    last.rotate(1)
    taken = last.pop(), last.popleft()
    queue = collections.deque([0])
    order = []
    while queue:
        node = queue.popleft()
        order.append(node)
        queue.extend(child for child in (2 * node + 1, 2 * node + 2) if child < 7)
    ends = collections.deque("abc")
    ends.extendleft("de")
    ends[1] = "f"
    del ends[0]
    return list(last), taken, order, list(ends), list(reversed(ends)), "b" in ends, len(ends), ends


@program()
def changed_deque(x):
    queue = collections.deque([1, 2])
    try:
        for one in queue:
            queue.append(one)
    except RuntimeError as error:
        return x * 2, str(error), list(queue)


@program(
    lambda: (torch.ones(2), collections.deque([1], maxlen=2)),
    lambda: (torch.ones(2), collections.deque()),
)
def growing_deque(x, kept):
    kept.append(2)
    kept.extend([3, 4])
    return x * 2


@program()
def counters(x):
    letters = collections.Counter("abracadabra")
    letters["z"] += 1
    letters.update("zz", a=2)
    letters.subtract({"b": 1})
    del letters["nope"]
    one, two = collections.Counter(a=3, b=1), collections.Counter(a=1, b=2, c=4)
    ranked = letters.most_common(2), letters.most_common(), letters.most_common(0)
    combined = one + two, one - two, one & two, one | two
    plain = [dict(each) for each in combined]
    same = one == collections.Counter(a=3, b=1, d=0)
    return x * letters["a"], ranked, letters["no"], letters.total(), plain, combined[0], same


@program(
    lambda: (torch.ones(2), collections.Counter()),
    lambda: (torch.ones(2), collections.Counter(a=3)),
)
def live_counter(x, seen):
    seen["a"] += 1
    seen["b"] += 2
    seen.update(["c"])
    return x * seen["a"], seen.most_common(1)


@program()
def operators_of_counters(x):
    counts = collections.Counter("aab")
    counts += collections.Counter("bc")
    counts |= {"z": 2, "c": -1}
    positive, negative = +counts, -counts
    counts -= collections.Counter("abbz")
    return x * 2, positive, negative, counts, counts <= positive, type(counts) is type(positive)


@program()
def ordered(x):
    table = collections.OrderedDict(a=x, b=2, c=3)
    first = table.popitem(last=False)
    return first[1] * 2, table.popitem()[0], list(reversed(table)), list(reversed({"a": 1, "b": 2}))


class Rows:
    """A mapping by its keys, which walking it does not give."""

    def keys(self):
        return ["k"]

    def __getitem__(self, key):
        return 5

    def __iter__(self):
        return iter(["ab", "cd"])


@program(graphs=None, breaks=1)
def mapping_of_the_users(x):
    return dict(Rows()), x * 2


# -- attributes as a dictionary, unions ------------------------------------------------------------


@program(lambda: (torch.ones(2), Settings()), lambda: (torch.ones(2), Settings(3.0)))
def attribute_tables(x, settings):
    table = vars(settings)
    settings.late = x
    found = table["rate"], "late" in table, "none" in settings.__dict__, list(table)
    table["set"] = 7
    same = vars(settings) is table
    return x * settings.set, found, same, {**vars(settings)}["rate"], table.get("no", 1)


# -- contexts entered one by one -------------------------------------------------------------------


class Logged:
    def __init__(self, log, name, handles=False):
        self.log, self.name, self.handles = log, name, handles

    def __enter__(self):
        self.log.append(f"in {self.name}")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append((self.name, kind))
        return self.handles


@program()
def exit_stacks(x):
    log = []
    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(Logged(log, name)).name for name in "ab"]
        stack.callback(log.append, "called")
        stack.push(lambda *details: log.append(details))
        stack.enter_context(torch.no_grad())
        later = stack.pop_all()
    log.append("between")
    later.close()
    return x * 2, names, log


@program()
def an_exit_stack_that_handles_an_error(x):
    log = []
    with contextlib.ExitStack() as stack:
        for name in "abc":
            stack.enter_context(Logged(log, name, handles=name == "b"))
        raise ValueError("no")
    return x * 2, log


@program(graphs=2, breaks=1)
def a_break_within_an_exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Logged(log, "a"))
        stack.enter_context(torch.no_grad())
        x = x * 2
        if x.sum() > 0:
            log.append("positive")
        x = x + 1
    return x, log, torch.is_grad_enabled()


@program()
def unions(x):
    return (
        isinstance(x, Tensor | None),
        isinstance(1, int | str),
        isinstance("a", int | None),
        x * 2,
    )


@pytest.mark.parametrize("one", PROGRAMS, ids=str)
def test_as_in_eager(one: Program) -> None:
    check(one)


def test_a_deque_that_grows_and_is_read() -> None:
    kept = collections.deque([torch.zeros(1)] * 2, maxlen=2)

    def program(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return sum(kept) / len(kept)

    run = jitmagic.jit(program, backend="eager")
    assert [run(torch.full((1,), float(n))).item() for n in (1, 2, 3, 4)] == [1, 3, 5, 7]
    assert counts_of(run).breaks == 0
