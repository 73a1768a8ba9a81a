"""More of the corpus: enums and what the standard library does with Python's own objects.

Importing it adds to `python_programs.PROGRAMS`.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import enum
import functools
import heapq
import itertools
import operator
import re
import reprlib
import types

from .python_programs import PROGRAMS, program

__all__ = ["PROGRAMS"]


class Color(enum.Enum):
    RED = 1
    BLUE = 3

    def scale(self):
        return self.value * 2

    @property
    def nice(self):
        return self.name.lower()

    @classmethod
    def last(cls):
        return list(cls)[-1]


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Named(enum.StrEnum):
    LEFT = "left"

    def __str__(self):
        return "to the " + self.value


@program(3)
def enum_members(n):
    red = Color.RED
    found = red.scale() * n, red.nice, Color.last().name, Color(3) is Color.BLUE, Color["RED"].value
    return found, [c.value for c in Color], len(Color), red in Color, red == Color.RED, f"{red!r}"


@program(3)
def enum_numbers(n):
    both = Access.READ | Access.WRITE
    return (
        Level.HIGH + n, [5, 6, 7][Level.LOW], Level.LOW < Level.HIGH, max(Level).name,
        both.value, Access.READ in both, bool(both & Access.WRITE), (~Access.READ).value,
        Named.LEFT.upper(), Named.LEFT + "!", str(Named.LEFT),
    )  # fmt: skip


@program(4)
def endless_and_grouped(n):
    turns = [a * b for a, b in zip(itertools.cycle([1, 2, 3]), range(n))]
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2, n, n])]
    rows = list(itertools.zip_longest([1, 2], [n], fillvalue=0))
    some = list(itertools.takewhile(lambda v: v < n, itertools.count()))
    return turns, groups, rows, some, list(itertools.pairwise(some))


@program(3)
def in_batches(n):
    if not hasattr(itertools, "batched"):
        return None
    found = [list(itertools.batched(range(7), n)), list(itertools.batched("abcd", n=2))]
    rows = itertools.batched(iter([1, 2, n]), 2)
    found.append((next(rows), list(rows), list(rows)))
    tried = ([], {"n": 0}), ([1], {"n": 1, "what": 2}), ([1, 2, n], {"strict": True})
    for args, options in tried:
        try:
            found.append(list(itertools.batched(args, options.pop("n", 2), **options)))
        except (TypeError, ValueError) as error:
            found.append((type(error), str(error)))
    return found


@program(2)
def shared_and_filtered(n):
    one, two = itertools.tee([1, 2, n])
    first = next(one)
    rest = list(itertools.dropwhile(lambda v: v < n, [0, 1, 2, 0]))
    kept = list(itertools.filterfalse(None, [0, 1, n])), list(itertools.compress("abc", [1, 0, n]))
    return first, list(two), list(one), rest, kept, list(itertools.accumulate([1, n], initial=5))


@program([5, 2, 8], [1, 3, 5])
def heaps_and_rows(heap, rows):
    heapq.heapify(heap)
    heapq.heappush(heap, 1)
    least = heapq.heappop(heap)
    bisect.insort(rows, 4)
    place = bisect.bisect_left(rows, 3)
    ordered = sorted(heap, key=functools.cmp_to_key(lambda a, b: b - a))
    return least, heap, rows, place, heapq.nlargest(2, heap), ordered


@program(5)
def double_ended(n):
    queue = collections.deque([1, 2], maxlen=3)
    for i in range(n):
        queue.append(i)
    queue.appendleft(9)
    queue.rotate(1)
    ends = queue.pop(), queue.popleft()
    return ends, list(queue), len(queue), queue.maxlen, 9 in queue, list(reversed(queue))


@program(collections.deque([1]), collections.Counter("ab"))
def growing(queue, counts):
    queue.append(2)
    counts["a"] += 2
    counts.update("bc")
    return counts.most_common(1), counts["none"], sorted(counts.items())


@program("abca")
def counting(text):
    counts = collections.Counter(text)
    more = counts + collections.Counter("ad")
    less = more - counts
    return counts.total(), more, less, counts & more, counts | more, sorted(less.elements())


@program([("a", 2), ("b", 1)])
def accessors(rows):
    last = operator.itemgetter(1)
    both = operator.itemgetter(0, 1)
    return sorted(rows, key=last), both(rows[0]), operator.methodcaller("upper")("x")


@program("relu_6")
def regular(text):
    found = re.match(r"(\w+)_(\d)", text)
    if found is None:
        return None
    return found.group(2), found[1], found.span(), re.sub("_", "-", text), re.findall(r"\d", text)


@program(types.SimpleNamespace(scale=2, rate=0.5))
def attributes_of_namespaces(config):
    """`vars(args)`, as configurations are shown and changed."""
    told = dict(vars(config))
    config.__dict__["rate"] = 1.5
    vars(config).update(depth=3)
    made = types.SimpleNamespace(**vars(config))
    del made.__dict__["scale"]
    return told, config.rate, config.depth, sorted(vars(made)), "scale" in vars(config), made


class Positive:
    """A descriptor whose methods are Python's."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name, 1)

    def __set__(self, instance, value):
        if value <= 0:
            raise ValueError(f"{value} is not positive")
        setattr(instance, self.name, value)

    def __delete__(self, instance):
        delattr(instance, self.name)


class Schedule:
    rate = Positive()
    steps = Positive()

    def __init__(self, rate):
        self.rate = rate


@program(Schedule(4))
def descriptors_that_set(given):
    made = Schedule(2)
    made.steps = 3
    given.rate += 1
    errors = []
    for bad in (0, -1):
        try:
            given.steps = bad
        except ValueError as error:
            errors.append(str(error))
    del made.rate
    return made.rate, made.steps, given.rate, given.steps, errors, sorted(vars(made)), vars(given)


@dataclasses.dataclass
class Layer:
    size: int
    parts: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    name: str
    layer: Layer


class Told:
    @reprlib.recursive_repr("...")
    def __repr__(self):
        return "told"


@program(Plan("a", Layer(3)))
def texts_of_data_classes(given):
    made = Plan("b", Layer(4, [given.layer, 2]))
    held = {"a": (made,), Level.LOW: [given, ()]}, [], ({}, None)
    return repr(made), f"{given}", str(given.layer), f"{made!r:>80}", repr(Told()), f"{held}"


class Single(type):
    """Its classes have one instance each, as singletons are written."""

    instances = {}
    count = 0

    def __call__(cls, *args, **kwargs):
        if cls not in cls.instances:
            cls.instances[cls] = super().__call__(*args, **kwargs)
        cls.count += 1
        return cls.instances[cls]

    def told(cls, mark="!"):
        return cls.__name__ + mark


class Settings(metaclass=Single):
    def __init__(self, rate=1):
        self.rate = rate


class MoreSettings(Settings):
    pass


@program()
def one_instance_of_a_class():
    first, again = Settings(3), Settings(4)
    more = MoreSettings(rate=5)
    told = Settings.told(), MoreSettings.told("?"), hasattr(Settings, "other")
    return first is again, again.rate, more.rate, more is first, told, len(Single.instances)
