"""A corpus of small Python programs that fit into one trace: no torch, no graph break."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import keyword
import math
import operator
import types
import typing
from collections.abc import Callable
from typing import Any

PROGRAMS: list[tuple[Callable[..., Any], Callable[[], tuple]]] = []


def program(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function with arguments; they are copied for each of the two runs."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append((fn, lambda: copy.deepcopy(args)))
        return fn

    return register


# -- arithmetic and constants --------------------------------------------------------------------


@program(3, 4.5)
def arithmetic(a, b):
    return a + b, a - b, a * b, a / b, a // b, a % b, a**2, -a, +a, ~a, a << 2, a | 8, a ^ 1, a & 1


@program(5, 7)
def comparisons(a, b):
    return a < b, a <= b, a == b, a != b, a > b, a >= b, a is b, a is not b, not a, a < 6 < b


@program("abc", b"xy")
def texts(s, raw):
    joined = "-".join([s, s.upper(), s[::-1]])
    old = "%s:%d" % (s, 3)  # noqa: UP031 - the operator is what is tested
    return joined, s * 2, s + "d", "b" in s, raw + b"z", s.split("b"), old, len(s)


@program(3, 2.5, "x")
def fstrings(a, b, c):
    return (
        f"{a}",
        f"{b:.3f}",
        f"{c!r:>8}",
        f"{a=}",
        f"{a:{a}d}",
        f"{a}-{c}",
        str(b),
        repr(c),
    )


@program(7)
def augmented(a):
    a += 1
    a -= 2
    a *= 3
    a //= 2
    a **= 2
    a %= 50
    a <<= 1
    a |= 1
    return a


@program([1, 2, 3])
def augmented_list(xs):
    ys = xs
    ys += [4]
    ys *= 2
    return xs is ys, ys


@program(-3, 2.7)
def numeric_builtins(a, b):
    return (
        abs(a),
        round(b),
        round(b, 1),
        int(b),
        float(a),
        divmod(7, a),
        pow(2, 5),
        bool(a),
        math.sqrt(4),
    )


@program([3, 1, 2])
def aggregates(xs):
    return (
        min(xs),
        max(xs),
        sum(xs),
        any(xs),
        all(xs),
        sorted(xs),
        sorted(xs, reverse=True),
        len(xs),
    )


@program([0.1] * 10)
def sums_of_floats(xs):
    return sum(xs), sum(xs, 0.5), sum([*xs, 1e16, -1e16]), sum(xs[-3:]), sum((1, *xs)), sum(xs[:2])


@program([3, 1.5, 2], [0.25])
def ends_of_lists(xs, ys):
    ys.append(xs[-1])
    parts = xs[-2:], xs[:-1], xs[1:], ys[-1], ys[0], ys[-2:], ys[:], list(xs), xs.copy()
    return parts, len(xs), len(ys), bool(ys), min(ys), max(xs), ys.pop(0), ys, xs[:] is xs


@program(["bb", "a", "ccc"])
def keyed(xs):
    return max(xs, key=len), sorted(xs, key=lambda s: -len(s)), min([], default=4), sum([1, 2], 10)


# -- control -------------------------------------------------------------------------------------


@program(10)
def loop_with_else(n):
    found = None
    for i in range(n):
        if i == 3:
            continue
        if i == 20:
            break
        found = i
    else:
        return "else", found
    return "broke", found


@program(10)
def loop_with_break(n):
    for i in range(n):
        if i * i > 20:
            break
    else:
        return None
    return i


@program(6)
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    else:
        steps += 1000
    return steps


@program(3, None)
def branches(a, b):
    if a and not b:
        x = 1
    elif b is None:
        x = 2
    else:
        x = 3
    return x if a > 2 else -x, a or b, b or a, a and b, b is None, a is not None


@program(5)
def nested_loops(n):
    out = []
    for i in range(n):
        for j in range(i):
            if (i + j) % 3 == 0:
                continue
            out.append((i, j))
    return out


@program([1, 2], {"a": 1}, (3,))
def matching(*subjects):
    out = []
    for subject in subjects:
        match subject:
            case [x, y]:
                out.append(("two", x, y))
            case {"a": value}:
                out.append(("mapping", value))
            case (x,):
                out.append(("one", x))
    return out


class Spot:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@program(Spot(0, 2), Spot(1, Spot(2, 3)), Spot(4, 5), True, 7, 2.5, "s", None, [1], (8, 9))
def class_patterns(*subjects):
    out = []
    for subject in subjects:
        match subject:
            case Spot(0, y):
                out.append(("origin", y))
            case Spot(x, y=Spot(y=inner)) if x < 3:
                out.append(("nested", x, inner))
            case Spot(x=x, nothing=_) | Spot(x):
                out.append(("spot", x))
            case bool():
                out.append("bool")
            case int(n) | float(n):
                out.append(("number", n))
            case str(s) | [str(s), *_]:
                out.append(("text", s))
            case list(items):
                out.append(("list", items))
            case _:
                out.append("other")
    return out


@program(4)
def asserting(n):
    assert n > 3, "small"
    return n


# -- containers ----------------------------------------------------------------------------------


@program([1, 2, 3, 4, 5])
def slicing(xs):
    return xs[1:3], xs[::-1], xs[-1], xs[:], (1, 2, 3)[1:], "abcdef"[1:4:2]


@program([1, 2, 3, 4, 5])
def list_changes(xs):
    xs.append(6)
    xs.insert(0, 0)
    xs[1] = 10
    xs[2:4] = ["a"]
    del xs[0]
    last = xs.pop()
    xs.extend((7, 8))
    xs.remove(7)
    xs.reverse()
    return last, xs.index(10), xs.count(8), xs.copy(), len(xs)


@program([3, 1, 2])
def list_sort(xs):
    xs.sort()
    ys = sorted(xs, reverse=True)
    ys.sort(key=lambda v: -v)
    return ys


@program({"a": 1, "b": 2})
def dict_changes(d):
    d["c"] = 3
    del d["a"]
    d["a"] = 4
    d.update(z=1, b=20)
    got = d.get("q", 5), d.setdefault("n", 7), d.pop("z"), "b" in d, len(d), d.popitem()
    return got, list(d), list(d.items()), list(d.values()), {**d, "x": 1}


@program({"a": 1, "b": 2}, {"b": 3})
def dict_merging(d, e):
    merged = d | e
    d |= e
    return merged, {k: v for k, v in sorted(merged.items())}, dict(e, k=1), dict([("u", 1)])


@program((1, [2, 3]))
def unpacking(t):
    a, (b, c) = t
    first, *rest = [a, b, c, 9]
    *init, last = rest
    return a, b, c, first, rest, init, last, [*rest, *init], (*rest, 0)


@program()
def sets():
    s = {1, 2, 3}
    s.add(4)
    s.discard(1)
    return (
        2 in s,
        1 in s,
        len(s | {7}),
        s == {2, 3, 4},
        sorted(s & {3, 4}),
        s - {2},
        s <= {1, 2, 3, 4},
    )


@program([1, 2], [1, 2], (1, 2))
def container_comparison(a, b, c):
    return a == b, a is b, a == list(c), c < (1, 3), [1] < [1, 0], {"a": a} == {"a": b}, a != b


@program([1, 2, 3], ["a", "b", "c"])
def iterators(xs, ys):
    pairs = list(zip(xs, ys, strict=True))
    numbered = [(i, y) for i, y in enumerate(ys, 1)]
    it = iter(xs)
    first = next(it)
    rest = list(it)
    done = next(it, "end")
    return pairs, numbered, first, rest, done, list(map(str, xs)), list(filter(lambda v: v > 1, xs))


@program([1, 2, 3])
def itertools_use(xs):
    counted = list(zip(itertools.count(5), xs))
    return (
        list(itertools.chain(xs, "ab")),
        list(itertools.product(xs, repeat=2))[:3],
        list(itertools.repeat(0, 3)),
        counted,
        list(itertools.islice(xs, 1, None)),
        list(itertools.chain.from_iterable([xs, xs])),
        list(itertools.accumulate(xs)),
        list(itertools.combinations(xs, 2)),
        list(reversed(xs)),
    )


@program([1, 2, 3, 4])
def comprehensions(xs):
    n = 10
    return (
        [x + n for x in xs if x % 2],
        {x: n for x in xs},
        {x % 2 for x in xs} == {0, 1},
        sum(x * y for x in xs for y in xs),
        [[x * y for y in xs] for x in xs],
        any(x > 3 for x in xs),
    )


@program({"b": 2, "a": 1})
def dict_order(d):
    out = {}
    for key, value in d.items():
        out[value] = key
    for key in d:
        out[key] = d[key]
    return out, list(d.keys())


@program(collections.OrderedDict(a=1, b=2), collections.defaultdict(list, k=[1]))
def other_dicts(o, d):
    d["new"].append(1)
    o["c"] = 3
    o.move_to_end("a")
    fresh = collections.defaultdict(int)
    fresh["x"] += 2
    return list(o), dict(d), fresh


# -- functions -----------------------------------------------------------------------------------


def helper(a, b=2, *rest, c=3, **named):
    return a, b, rest, c, named


@program()
def calls():
    args, named = (1, 2, 3), {"c": 9, "d": 4}
    return (
        helper(1),
        helper(*args),
        helper(1, **named),
        helper(*args, 5, e=6, **named),
        helper(b=1, a=0),
    )


@program(3)
def closures(n):
    total = 0

    def add(k):
        nonlocal total
        total += k * n
        return total

    add(1)
    add(2)
    return total, (lambda v, w=n: v * w)(4)


@program(5)
def recursion(n):
    def fact(k):
        return 1 if k <= 1 else k * fact(k - 1)

    return fact(n)


@program(2)
def partials(n):
    add = functools.partial(helper, n, c=7)
    return add(), add(1, c=8), functools.reduce(operator.add, [1, 2, 3], n), operator.mul(n, 4)


@program(3)
def returns_closure_result(n):
    fns = [lambda i=i: i * n for i in range(3)]
    return [fn() for fn in fns]


def counter(n):
    for i in range(n):
        got = yield i
        if got:
            yield got
    return "done"


def delegating(n):
    result = yield from counter(n)
    yield result


@program(3)
def generators(n):
    gen = counter(n)
    first = next(gen)
    sent = gen.send("hello")
    return first, sent, list(gen), list(delegating(2)), [*(x for x in range(2))], tuple(counter(1))


def deferred(first, /, *, second=None):
    return first, second


@program(1)
def keyword_only(a):
    return deferred(a), deferred(a, second=2)


# -- classes -------------------------------------------------------------------------------------


class Base:
    factor = 2

    def __init__(self, value):
        self.value = value

    def scaled(self, k=1):
        return self.value * self.factor * k

    @property
    def doubled(self):
        return self.value * 2

    @doubled.setter
    def doubled(self, new):
        self.value = new // 2

    @classmethod
    def make(cls, value):
        return cls(value + 1)

    @staticmethod
    def plus(a, b):
        return a + b

    def __eq__(self, other):
        return isinstance(other, Base) and self.value == other.value

    __hash__ = None


class Derived(Base):
    factor = 5

    def __init__(self, value, extra):
        super().__init__(value)
        self.extra = extra

    def scaled(self, k=1):
        return super().scaled(k) + self.extra

    def __getattr__(self, name):
        if name.startswith(("no", "__")):
            raise AttributeError(name)
        return f"dynamic {name}"


@program(Base(3))
def attributes(obj):
    obj.value += 1
    obj.fresh = [1]
    obj.doubled = 20
    return obj.scaled(), obj.doubled, obj.plus(1, 2), type(obj) is Base, hasattr(obj, "nothing")


@program(Derived(3, 4))
def inheritance(obj):
    del obj.extra
    obj.extra = 9
    return (
        obj.scaled(2),
        obj.anything,
        getattr(obj, "none", "default"),
        isinstance(obj, Base),
        obj.factor,
    )


@program()
def instantiation():
    d = Derived(1, 2)
    e = Derived.make if False else Base.make(4)
    d.link = e
    return d, e, d.scaled(), e == Base(5), e != Base(6), Base.plus(1, 1)


class Vector:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)

    def __mul__(self, k):
        return Vector(self.x * k, self.y * k) if isinstance(k, int) else NotImplemented

    __rmul__ = __mul__

    def __iadd__(self, other):
        self.x += other.x
        return self

    def __neg__(self):
        return Vector(-self.x, -self.y)

    def __getitem__(self, i):
        return (self.x, self.y)[i]

    def __len__(self):
        return 2

    def __iter__(self):
        yield self.x
        yield self.y

    def __contains__(self, item):
        return item == self.x

    def __bool__(self):
        return self.x != 0

    def __call__(self, k):
        return self.x + k

    def __lt__(self, other):
        return self.x < other.x

    def __repr__(self):
        return f"<{self.x}, {self.y}>"


@program(Vector(1, 2), Vector(3, 4))
def special_methods(a, b):
    c = a + b
    d = 2 * a
    keep = a
    a += b
    return (
        list(c), list(d), list(-a), keep is a, a[1], len(a), 3 in b, bool(b), b(4), a < b, b > a,
        str(c), f"{d}", sorted([b, a])[0].x, tuple(b), max(a, b).x,
    )  # fmt: skip


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


@program(Countdown(3))
def own_iterator(c):
    return [x for x in c], list(c)


@dataclasses.dataclass
class Point:
    x: int
    y: int = 5
    tags: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


class Pair(typing.NamedTuple):
    left: int
    right: int = 4

    def total(self):
        return self.left + self.right


Triple = collections.namedtuple("Triple", "a b c")


@program(Point(1), Frozen(2), Pair(1), Triple(1, 2, 3))
def records(p, f, pair, triple):
    p.tags.append(p.x)
    q = Point(p.y, tags=[f.x])
    left, right = pair
    made = Pair(left, right=9)
    return (
        q,
        Frozen(8),
        pair.total(),
        made,
        made.total(),
        triple._replace(b=7),
        triple.c,
        Triple(0, 0, 0),
    )


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


@program(Color.RED, Level.HIGH)
def enums(c, level):
    table = {Color.RED: "r", Color.BLUE: "b"}
    return c is Color.RED, c == Color.BLUE, table[c], c.value, c.name, level > 2, level + 1, level


class Lazy:
    @functools.cached_property
    def once(self):
        self.count = getattr(self, "count", 0) + 1
        return [self.count]


@program(Lazy())
def cached(obj):
    return obj.once is obj.once, obj.once


class Managed:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append("exit" if kind is None else kind.__name__)
        return kind is KeyError


@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield "value"
    finally:
        log.append("out")


@program([])
def with_statements(log):
    with Managed(log) as m, managed(log) as v:
        log.append(v)
    with Managed(log):
        {}["missing"]
    for i in range(3):
        with Managed(log):
            if i == 1:
                break
    return log, m.log is log


@program([])
def returns_from_with(log):
    with Managed(log):
        return "inside"


# -- exceptions ----------------------------------------------------------------------------------


class Custom(ValueError):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def thrower(kind):
    if kind == 0:
        raise Custom(7)
    if kind == 1:
        return [][3]
    if kind == 2:
        return 1 // 0
    if kind == 3:
        raise KeyError("k") from None
    return kind


@program()
def exceptions():
    out = []
    for kind in range(6):
        try:
            value = thrower(kind)
        except Custom as error:
            out.append(("custom", error.code, str(error), error.args))
        except (IndexError, ZeroDivisionError) as error:
            out.append(type(error).__name__)
        except KeyError:
            out.append("key")
        else:
            out.append(value)
        finally:
            out.append("finally")
    return out


@program([])
def finally_overrides(log):
    def inner():
        try:
            return "try"
        finally:
            log.append("finally")

    def swallow():
        for _ in range(2):
            try:
                raise ValueError
            except ValueError:
                continue
            finally:
                log.append("f")
        return "end"

    return inner(), swallow()


@program()
def reraising():
    def inner():
        try:
            raise TypeError("first")
        except TypeError as error:
            try:
                raise
            except TypeError as again:
                return again is error

    try:
        try:
            {}["a"]
        except KeyError:
            raise ValueError("second") from None
    except ValueError as error:
        return str(error), inner()


@program({})
def missing_keys(d):
    try:
        d["x"]
    except KeyError as error:
        d["x"] = error.args[0]
    try:
        del d["y"]
    except LookupError:
        d["y"] = 1
    return d


@program(3)
def unbound(n):
    try:
        if n > 5:
            y = 1
        return y
    except UnboundLocalError as error:
        return type(error).__name__


@program(1)
def names_without_a_value(n):
    if n > 5:
        bound = inner = n

    def reads():
        return inner

    def deletes(n):
        del n
        return n  # noqa: F821

    found = []
    for look in (lambda: no_such_name, reads, lambda: deletes(1)):  # noqa: F821
        try:
            found.append(look())
        except NameError as error:
            found.append((type(error), str(error), error.args))
    try:
        return {}[n]
    except KeyError as error:
        found.append(str(error))
    try:
        return bound, inner
    except UnboundLocalError as error:
        return found, str(error)


@program("ab1", 5)
def methods_of_builtin_types(text, n):
    table = {"a": 1}
    words = str.isalnum(text), str.upper(text), str.join(",", ["a", "b"]), bytes.hex(b"ab")
    numbers = int.bit_length(n), int.__add__(n, 3), float.is_integer(2.0), tuple.index((1, 2), 2)
    return words, numbers, dict.get(table, "a"), dict.setdefault(table, "b", 3), table


@program("for", "fox")
def bound_methods_of_sets(word, other):
    known = frozenset({"a", "b"}).__contains__
    return keyword.iskeyword(word), keyword.iskeyword(other), known("a"), {1, 2}.__contains__(3)


@program(1)
def imports_inside(n):
    import math as m
    from collections import OrderedDict

    return m.floor(n + 0.5), OrderedDict(a=n)


@program([1, 2])
def star_expressions(xs):
    a, b, *c = *xs, 3, 4
    return a, b, c, helper(*xs, *c), {**{"a": 1}, **{"a": 2}}


@program(True)
def isinstance_checks(flag):
    return (
        isinstance(flag, int), isinstance(flag, (str, bool)), issubclass(bool, int), callable(len),
        callable(flag), type(flag), type([]) is list, isinstance([], collections.abc.Sequence),
    )  # fmt: skip


@program(2)
def default_mutable(n, store=[]):  # noqa: B006
    store.append(n)
    return len(store)


@program({"a": 1, "b": 2}, {"b": 3, "c": 4})
def view_algebra(d, e):
    both = d.keys() & e.keys()
    return both == {"b"}, d.keys() == {"a", "b"}, len(d.keys() | e.keys()), 2 in d.values()


@program(3)
def generator_with_pending_finally(n):
    log = []

    def steps():
        try:
            for i in range(n):
                yield i + 1
        finally:
            log.append("closed")

    return [i for i in steps()], log


@program({"a": [1, 2]}, [3])
def nested_updates(config, extra):
    merged = {**config, "b": [*config["a"], *extra]}
    merged["a"].append(9)
    config.setdefault("c", []).extend(merged["b"])
    first, *others = merged["b"]
    return merged, first, others, [k for k in config if k != "a"]


@program("a,b;c")
def text_methods(s):
    parts = [p.split(",") for p in s.split(";")]
    flat = "".join(x for row in parts for x in row)
    return (
        parts,
        flat,
        s.replace(",", ""),
        s.startswith("a"),
        s.find("c"),
        flat.zfill(5),
        s.partition(";"),
    )


class Node:
    def __init__(self, value, children=()):
        self.value = value
        self.children = list(children)
        self.parent = None
        for child in self.children:
            child.parent = self

    def total(self):
        return self.value + sum(child.total() for child in self.children)


@program(2)
def object_graph(n):
    leaf = Node(n)
    root = Node(1, [leaf, Node(3)])
    root.children[1].value *= 2
    return root.total(), leaf.parent is root, [c.value for c in leaf.parent.children]


@program(types.SimpleNamespace(scale=2, deep=types.SimpleNamespace(rate=0.5)))
def simple_namespaces(config):
    config.scale += 1
    made = types.SimpleNamespace(a=config.scale, b=[1])
    del config.deep.rate
    return made.a * 2, made, hasattr(config.deep, "rate")


class Countdown:
    """Iterated and reversed by the sequence protocol alone."""

    def __init__(self, n):
        self.items = list(range(n, 0, -1))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Either(Countdown):
    def __reversed__(self):
        return iter("own")


@program(4)
def sequence_protocol(n):
    down = Countdown(n)
    back = reversed(down)
    first = next(back)
    pairs = [(i, x) for i, x in enumerate(reversed(down))]
    shortened = []
    for x in down:
        shortened.append(x)
        if len(down) > 2:
            down.items.pop()
    return first, list(back), pairs, list(down), 3 in down, shortened, list(reversed(Either(n)))


class Broken(Countdown):
    def __getitem__(self, i):
        if i == 2:
            raise KeyError(i)
        return i


@program(4)
def a_sequence_protocol_that_fails(n):
    seen = []
    try:
        for x in Broken(n):
            seen.append(x)
    except KeyError as error:
        seen.append(error.args)
    return seen


# -- class statements ----------------------------------------------------------------------------


@program(3)
def classes_never_used(n):
    seen = []
    label = "outer"

    class Plain:
        """Its body runs, whoever needs the class."""

        kind: str = label
        count = len(label) + n
        own = "inner"
        seen.append((kind, count, label, own))
        gone = 1
        del gone

        def method(self):
            return super().method(), label

        @staticmethod
        def fixed():
            return n

        @classmethod
        def of(cls):
            return cls()

        both = property(method)

    class Derived(dict):
        seen.append(n)

    return seen, label, bool(Plain) and Derived is not Plain


@program(2)
def class_of_a_branch(n):
    try:

        class Broken:
            size = [1][n]

    except IndexError:
        return "no class"
    return "class"


@program(3)
def a_wrapper_of_a_function_made_here(n):
    def doubled(function):
        @functools.wraps(function)
        def call(x):
            return function(x) * 2

        return call

    @doubled
    def plus(x: int) -> int:
        """Adds."""
        return x + n

    return plus(4), plus.__name__, plus.__doc__, plus.__wrapped__(1), plus.__annotations__ == {}


@program(1)
def calls_that_are_refused(n):
    def plain(a, b, c=3):
        return a, b, c

    def only(a, /, *, k, last=2):
        return a, k, last

    def refused(function, *args, **named):
        try:
            return function(*args, **named)
        except TypeError as error:
            return str(error)

    return [
        refused(plain),
        refused(plain, n),
        refused(plain, n, n, n, n),
        refused(plain, n, a=n),
        refused(plain, n, n, d=n),
        refused(only, n),
        refused(only, a=n, k=1),
        refused(only, n, n, k=1),
        refused(only, n, k=1),
    ]


class Left:
    def __matmul__(self, other):
        return NotImplemented

    def __rmatmul__(self, other):
        return "reflected"

    def __radd__(self, other):
        return "added"

    def __sub__(self, other):
        return NotImplemented

    def __lt__(self, other):
        return NotImplemented

    def __gt__(self, other):
        return "greater"


class Lower(Left):
    def __rsub__(self, other):
        return "subtracted"


@program(1)
def who_is_asked_for_an_operator(n):
    """Of two of one class only the left one is; comparisons ask both."""
    calls = [
        lambda a, b: a @ b,
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a < b,
        lambda a, b: a > b,
    ]
    kinds = (Left, Lower, lambda: n)
    answers = []
    for call in calls:
        for a in kinds:
            for b in kinds:
                try:
                    answers.append(call(a(), b()))
                except TypeError:
                    answers.append("refused")
    return answers


@program((3, 1, 3))
def calls_of_generic_aliases(xs):
    found = dict[str, int](a=xs[0])
    found["b"] = 2
    sorted_ones = sorted(set[int](xs) | frozenset[int]({7}))
    return found, list[int](xs), tuple[int, ...](xs), sorted_ones, list[list[int]]()
