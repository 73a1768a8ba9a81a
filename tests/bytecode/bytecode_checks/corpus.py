"""Own functions through disassemble -> assemble: every construct of the language at least once.

`CASES` maps a name to a function and the argument tuples it is called with. Functions return plain
data or raise; they depend on nothing that differs between two calls. `ASYNC` functions are driven by hand.
"""

# Odd code is the point of this file.
# ruff: noqa: E501, E742, F541, F821, I001, UP008, UP028, UP033, UP037

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator

CASES = {}
ASYNC = {}
COUNTER = 0


def case(*argument_tuples):
    def register(function):
        assert function.__name__ not in CASES, function.__name__
        CASES[function.__name__] = (function, argument_tuples or ((),))
        return function

    return register


# ------------------------------------------------------------------ expressions


@case((3, 4), (-1, 2.5))
def arithmetic(a, b):
    return a + b, a - b, a * b, a / b, a // b, a % b, a**2, -a, +a


@case((12, 10))
def bits(a, b):
    return a & b, a | b, a ^ b, a << 2, a >> 1, ~a


@case((5, 3))
def in_place(a, b):
    a += b
    a -= 1
    a *= b
    a **= 2
    a //= 7
    a %= 1000
    a <<= 3
    a >>= 1
    a |= 1
    a &= 0xFFFF
    a ^= b
    a /= 2
    return a


@case()
def matrix_multiply():
    class M:
        def __matmul__(self, other):
            return ("matmul", other)

        def __imatmul__(self, other):
            return ("imatmul", other)

    m = M()
    first = m @ 1
    m @= 2
    return first, m


@case((1, 2), (2, 1), (1, 1))
def comparisons(a, b):
    return a < b, a <= b, a == b, a != b, a > b, a >= b, a is b, a is not b


@case((1, 5, 9), (5, 1, 9), (1, 9, 5))
def chained_comparison(a, b, c):
    return a < b < c, a <= b <= c != a


@case((2,), (9,))
def membership(x):
    return x in (1, 2, 3), x not in [1, 2], x in {2, 4}


@case((0, 1), (1, 0), (1, 1), (0, 0))
def boolean_operators(a, b):
    return a and b, a or b, not a, (a and b) or (b and "x"), a or (b and not a)


@case((0,), (1,), (None,))
def conditional_expression(x):
    return "none" if x is None else "yes" if x else "no"


@case(([1, 2, 3, 4, 5],))
def slices(x):
    return x[1:3], x[:2], x[::2], x[::-1], x[1:4:2], x[-1], x[:]


@case(([1, 2, 3, 4, 5],))
def slice_assignment(x):
    x[1:3] = [9]
    x[0] = 7
    del x[-1:]
    x[0] += 1
    return x


@case(("abc", 3.14159, 7))
def f_strings(s, f, n):
    return f"{s}", f"{s!r}", f"{f:.2f}", f"{s:>{n}}", f"a{s}b{n!s:>3}c", f"{n=}", f"{{}}"


@case()
def literals():
    return 1, 1.0, 1j, "s", b"b", True, None, ..., (1, (2, 3)), [1], {1}, {"a": 1}, -0.0, 0.0


@case(([1, 2], [3]), ((), ()))
def displays_with_stars(a, b):
    return [*a, 0, *b], (*a, *b), sorted({*a, *b}), {**dict.fromkeys(a), "z": 1}


@case((10,))
def walrus(n):
    if (half := n // 2) > 3:
        return half, [y := 1, y**2], [last := i for i in range(3)], last
    return None


@case((3,))
def lambdas(n):
    return (lambda x: x + n)(1), (lambda *a, k=n, **kw: (a, k, kw))(1, 2, z=3), (lambda: n)()


@case(({"a": {"b": [1, 2]}},))
def nested_subscripts(d):
    d["a"]["b"][0] += 10
    d["c"] = d["a"]["b"][1]
    del d["a"]["b"][1]
    return d


@case((1,), ("x",))
def is_instance_chain(x):
    return isinstance(x, int) and not isinstance(x, bool) or isinstance(x, str)


@case((2, 3))
def swaps(a, b):
    a, b = b, a
    a, b, c = b, a, 5
    a, b, c, d = c, a, b, 1
    return a, b, c, d


@case(([1, 2, 3, 4],))
def unpacking(x):
    a, *b = x
    *c, d = x
    e, *f, g = x
    (h, (i, j)), k = (1, (2, 3)), 4
    return a, b, c, d, e, f, g, h, i, j, k


@case(([1],), ([1, 2, 3],))
def unpacking_errors(x):
    a, b = x
    return a, b


# -------------------------------------------------------------------- branches


@case((1,), (5,), (50,), (-1,))
def if_elif_else(x):
    if x < 0:
        r = "neg"
    elif x < 3:
        r = "small"
    elif x < 10:
        r = "mid"
    else:
        r = "big"
    return r


@case((None,), (0,), (3,))
def none_tests(x):
    out = []
    if x is None:
        out.append("none")
    if x is not None:
        out.append("some")
    while x is not None and x > 0:
        x -= 1
        if x == 0:
            x = None
    return out, x


@case((True, False, True), (False, False, False), (True, True, True))
def nested_ifs(a, b, c):
    if a:
        if b:
            if c:
                return "abc"
            return "ab"
        if not c:
            return "a"
    elif b or c:
        return "bc"
    return "rest"


@case((3,), (-3,))
def assertion(x):
    assert x > 0, f"bad {x}"
    return x


@case((5,), ("a",), ([1, 2],), ({"k": 1, "z": 2},), (None,), ((1, 2, 3),), (7.5,))
def match_statement(x):
    match x:
        case None:
            return "none"
        case 5 | 6:
            return "five or six"
        case str(s):
            return "str " + s
        case [a, b]:
            return a + b
        case [a, *rest]:
            return a, rest
        case {"k": v, **others}:
            return v, others
        case float() as f if f > 7:
            return f
        case _:
            return "other"


@case((0, 1), (2, 2), (3, -3))
def match_classes(a, b):
    @dataclasses.dataclass
    class Point:
        x: int
        y: int

    match Point(a, b):
        case Point(0, y):
            return "axis", y
        case Point(x=x, y=y) if x == y:
            return "diagonal", x
        case Point(x, y):
            return x, y


# ----------------------------------------------------------------------- loops


@case((10,), (0,))
def for_loop(n):
    total = 0
    for i in range(n):
        total += i
    return total


@case((10,))
def for_else_break(n):
    found = []
    for i in range(n):
        for j in range(2, i):
            if i % j == 0:
                break
        else:
            found.append(i)
            continue
        if i > 8:
            break
    else:
        return "never"
    return found


@case((30,), (1,))
def while_loop(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    else:
        steps += 100
    return steps


@case((5,))
def while_true(n):
    while True:
        n -= 1
        if n == 3:
            continue
        if n < 0:
            return n
        if n == 2:
            break
    return "broke", n


@case(([(1, "a"), (2, "b")],))
def loop_targets(pairs):
    d = {}
    for d["k"], (first, *rest) in pairs:
        d[first] = rest
    for i, (n, s) in enumerate(pairs):
        d[i] = (n, s)
    return d


@case((4,))
def nested_loops(n):
    return_value = []
    for i in range(n):
        for j in range(i):
            while j < 2:
                j += 1
                if i == 3:
                    break
            return_value.append((i, j))
    return return_value


@case((3,))
def loop_return_inside(n):
    for i in range(n):
        for j in range(n):
            if i * j == 2:
                return i, j
    return None


@case((5,))
def loop_delete(n):
    for i in range(n):
        x = i
        del x
    try:
        return x
    except UnboundLocalError as error:
        return type(error).__name__, i


# -------------------------------------------------------------- comprehensions


@case((5,))
def comprehensions(n):
    return (
        [i * i for i in range(n)],
        {i % 2 for i in range(n)},
        {i: str(i) for i in range(n)},
        list(i for i in range(n) if i % 2),
    )


@case((4,))
def nested_comprehensions(n):
    return [[i * j for j in range(i)] for i in range(n) if i], [
        (i, j) for i in range(n) for j in range(i) if j
    ]


@case((3,))
def comprehension_with_closure(n):
    return [f() for f in [lambda: i + n for i in range(n)]], [(lambda k=k: k)() for k in range(n)]


@case((3,))
def comprehension_shadows_local(x):
    before = x
    squares = [x * x for x in range(4)]
    return before, x, squares


@case((3,))
def comprehension_shadows_cell(x):
    def inner():
        return x

    made = [(lambda: x) for x in range(3)]
    return [f() for f in made], inner(), x


@case((5,))
def comprehension_shadows_free(x):
    def inner():
        y = [x for x in range(3)]
        z = [(lambda: w) for w in range(3)]
        w = 7
        q = [(lambda: x) for x in range(4)]
        return y, [f() for f in z], w, [f() for f in q], x

    return inner()


@case((2,), (0,))
def comprehension_raises(n):
    x = "outer"
    try:
        [1 // x for x in range(n, -1, -1)]
    except ZeroDivisionError:
        return x


@case()
def comprehension_in_class():
    class C:
        n = 3
        squares = [i * i for i in range(3)]
        pairs = {k: v for k, v in zip("ab", range(2))}

    return C.squares, C.pairs, C.n


# -------------------------------------------------------------------- closures


@case((3,))
def closures(n):
    total = 0

    def add(k):
        nonlocal total
        total += k * n
        return total

    return add(1), add(2), total


@case((2,))
def closure_over_arguments(a, b=5, *args, c=7, **kw):
    def inner():
        return a, b, args, c, kw

    a += 1
    return inner()


@case()
def closure_chain():
    def a(x):
        def b(y):
            def c(z):
                nonlocal x
                x += y + z
                return x

            return c

        return b

    f = a(1)(2)
    return f(3), f(4)


@case((3,))
def closure_deleted(x):
    def inner():
        return x

    del x
    try:
        inner()
    except NameError as error:
        return str(error)


@case()
def closure_late_binding():
    fs = []
    for i in range(3):
        fs.append(lambda: i)
    return [f() for f in fs]


@case((5,))
def recursion(n):
    def fact(k):
        return 1 if k < 2 else k * fact(k - 1)

    return fact(n)


@case((2,))
def decorated_inner(n):
    @functools.lru_cache(maxsize=None)
    @functools.wraps(operator.add)
    def f(x):
        return x * n

    return f(3), f.__name__


# ----------------------------------------------------------------------- calls


def _receiver(*args, k=None, **kw):
    return args, k, sorted(kw.items())


@case((1, 2))
def calls(a, b):
    return (
        _receiver(),
        _receiver(a),
        _receiver(a, b, k=3),
        _receiver(*[a, b], z=1, **{"y": 2}),
        _receiver(a, *(b,), **{}),
        _receiver(**{"k": a}),
    )


@case((1,), (1, 2), (1, 2, 3, 4))
def signature_everything(a, /, b=2, *args, c=3, d: int = 4, **kw):
    return a, b, args, c, d, kw


@case(("hello",))
def methods(s):
    return s.upper().replace("L", "_").split("_"), s.join(["a", "b"]), "x".join(c for c in s)


@case()
def method_keywords():
    return "a b  c".split(sep=" ", maxsplit=1), sorted([3, 1], key=lambda x: -x, reverse=True)


@case()
def wrong_call():
    return _receiver.__get__(1)(k=1)(2)


@case((1,))
def defaults_and_annotations(x):
    def f(a: int, b: "str" = "q", *, c: float = 2.5) -> tuple:
        return a, b, c

    return f(x), sorted(f.__annotations__), f.__kwdefaults__


@case()
def super_calls():
    class A:
        def f(self, x):
            return ["A", x]

        @property
        def p(self):
            return 1

    class B(A):
        def f(self, x):
            return ["B", *super().f(x)], super().p, super(B, self).f(2), super(B, self).p

        @classmethod
        def make(cls):
            return cls.__name__, __class__.__name__

    return B().f(1), B.make()


@case()
def class_definition():
    class Meta(type):
        def __new__(mcls, name, bases, ns, flag=False):
            cls = super().__new__(mcls, name, bases, ns)
            cls.flag = flag
            return cls

    class C(metaclass=Meta, flag=True):
        """doc"""

        x: int = 1
        y = x + 1

        def get(self):
            return self.x

    return C.flag, C.y, C().get(), C.__doc__, C.__qualname__


@case((4,))
def class_closure(n):
    class C:
        n = n if False else 3

        def f(self):
            return n

    return C.n, C().f()


# --------------------------------------------------------------- names, scopes


@case()
def global_names():
    global COUNTER
    COUNTER = 5
    COUNTER += 1
    value = COUNTER
    del COUNTER
    try:
        return COUNTER
    except NameError as error:
        COUNTER = 0
        return value, str(error)


@case()
def builtin_names():
    return len([1]), max(1, 2), sorted({"b", "a"}), __name__ is not None


@case((False,), (True,))
def unbound_local(flag):
    if flag:
        x = 1
    return x


@case()
def imports():
    import os.path as p
    from math import floor, ceil as c
    import collections.abc

    return p.join("a", "b"), floor(1.5), c(1.5), collections.abc.Sized.__name__


@case()
def import_error():
    from math import no_such_name

    return no_such_name


@case()
def attributes():
    class O:
        pass

    o = O()
    o.x = 1
    o.x += 5
    o.y = o
    o.y.y.x *= 2
    del o.y
    return o.x, hasattr(o, "y")


@case((1, 2))
def local_namespace(a, b):
    c = a + b
    return sorted(locals().items()), eval("a + 1"), sorted(vars())


# ------------------------------------------------------------------ exceptions


@case((0,), (1,), ("x",), (None,))
def try_except(x):
    try:
        return 1 / x
    except ZeroDivisionError:
        return "zero"
    except (TypeError, ValueError) as e:
        return type(e).__name__


@case((0,), (1,))
def try_else_finally(x):
    log = []
    try:
        log.append(1 // x)
    except ZeroDivisionError:
        log.append("except")
    else:
        log.append("else")
    finally:
        log.append("finally")
    return log


@case((0,), (1,), (2,))
def nested_try(x):
    log = []
    try:
        try:
            if x == 0:
                raise KeyError("k")
            if x == 1:
                raise ValueError("v")
        except KeyError as e:
            log.append(("inner", e.args))
            raise IndexError("i") from e
        finally:
            log.append("inner finally")
    except IndexError as e:
        log.append(("outer", type(e.__cause__).__name__))
    except ValueError as e:
        log.append(("value", e.__context__))
    return log


@case((5,))
def finally_in_loop(n):
    log = []
    for i in range(n):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            log.append(i)
        finally:
            log.append(f"f{i}")
    return log


@case()
def finally_return():
    log = []

    def f():
        try:
            return log.append("try")
        finally:
            log.append("finally")

    f()
    return log


@case((1,))
def raises_with_traceback(x):
    y = x + 1
    if y:
        z = [
            y,
            y / (x - 1),
        ]
        return z
    return None


@case()
def raise_bare():
    try:
        raise ValueError("a")
    except ValueError:
        raise


@case()
def raise_from():
    try:
        {}["k"]
    except KeyError as e:
        raise RuntimeError("r") from e


@case()
def raise_from_none():
    try:
        {}["k"]
    except KeyError:
        raise RuntimeError("r") from None


@case()
def exception_in_handler():
    try:
        1 / 0
    except ZeroDivisionError as e:
        [][3]


@case((0,), (1,), (2,), (3,))
def except_star(n):
    log = []
    try:
        if n == 1:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        if n == 2:
            raise ValueError(3)
        if n == 3:
            raise ExceptionGroup("g", [KeyError("q")])
    except* ValueError as g:
        log.append([str(e) for e in g.exceptions])
    except* TypeError as g:
        log.append(len(g.exceptions))
    else:
        log.append("else")
    finally:
        log.append("finally")
    return log


@case((0,), (1,))
def try_in_while(n):
    tries = 0
    while True:
        try:
            tries += 1
            if tries < 3:
                raise OSError(tries)
            return tries, n
        except OSError:
            if n and tries == 2:
                break
    return "out"


@case()
def handler_variable_deleted():
    try:
        raise ValueError
    except ValueError as e:
        pass
    return "e" in locals()


@case((3,))
def deep_try(n):
    try:
        try:
            try:
                try:
                    return [][n]
                finally:
                    n += 1
            except KeyError:
                n += 10
        finally:
            n += 100
    except IndexError:
        return n


@case((None,), (ValueError,), (KeyError,))
def try_with_loops(error):
    out = []
    for i in range(3):
        try:
            for j in range(3):
                if error and i == j == 1:
                    raise error(i)
                out.append((i, j))
        except ValueError:
            out.append("v")
            continue
        finally:
            out.append(i)
    return out


# ------------------------------------------------------------------------ with


@contextlib.contextmanager
def _manager(log, name, swallow=False):
    log.append(f"enter {name}")
    try:
        yield name
    except ValueError:
        log.append(f"error {name}")
        if not swallow:
            raise
    finally:
        log.append(f"exit {name}")


@case()
def with_statement():
    log = []
    with _manager(log, "a") as a, _manager(log, "b") as (b):
        log.append(a + b)
    return log


@case((True,), (False,))
def with_exception(swallow):
    log = []
    try:
        with _manager(log, "a", swallow):
            with _manager(log, "b"):
                raise ValueError
            log.append("unreached")
        log.append("after")
    except ValueError:
        log.append("out")
    return log


@case((0,), (1,), (2,))
def with_return(n):
    log = []

    def f():
        for i in range(3):
            with _manager(log, str(i)):
                if i == n == 0:
                    continue
                if i == n == 1:
                    break
                if i == n:
                    return "returned"
        return "end"

    return f(), log


@case()
def with_in_try():
    log = []
    try:
        with _manager(log, "a"), contextlib.suppress(KeyError):
            {}["x"]
        with _manager(log, "b"):
            int("no")
    except ValueError as e:
        log.append(str(e))
    return log


@case()
def with_targets():
    d = {}
    with contextlib.nullcontext((1, 2)) as (d["a"], d["b"]):
        pass
    return d


# ------------------------------------------------------------------ generators


@case((4,))
def generators(n):
    def g():
        for i in range(n):
            yield i
        return "done"

    def outer():
        r = yield from g()
        yield r

    return list(g()), list(outer())


@case()
def generator_send():
    def g():
        total = 0
        while True:
            x = yield total
            if x is None:
                return
            total += x

    i = g()
    return next(i), i.send(3), i.send(4)


@case()
def generator_throw_and_close():
    log = []

    def g():
        try:
            while True:
                try:
                    yield len(log)
                except ValueError as e:
                    log.append(str(e))
        finally:
            log.append("closed")

    i = g()
    next(i)
    out = i.throw(ValueError("v"))
    i.close()
    return out, log


@case((3,))
def generator_closure(n):
    def g():
        nonlocal n
        while n:
            n -= 1
            yield lambda: n

    return [f() for f in g()]


@case((6,))
def generator_expressions(n):
    return sum(i for i in range(n)), list((i, j) for i in range(n) for j in range(i) if i * j == 4)


@case()
def generator_with_return_in_finally():
    def g():
        try:
            yield 1
            yield 2
        finally:
            yield 3

    return list(g())


@case((7,))
def is_itself_a_generator(n):
    a, b = 0, 1
    for _ in range(n):
        yield a
        a, b = b, a + b


@case((3,))
def delegating_generator(n):
    if n:
        yield n
        yield from delegating_generator(n - 1)


def _async(function):
    ASYNC[function.__name__] = function
    return function


class _Pause:
    def __await__(self):
        return (yield "pause")


@_async
async def awaits():
    await _Pause()
    return 1 + (await _inner_coroutine(2))


@_async
async def _inner_coroutine(n):
    try:
        await _Pause()
    finally:
        n += 1
    return n


@_async
async def async_for_and_with():
    out = []
    async with _AsyncManager(out) as m:
        async for x in _async_generator(3):
            if x == 1:
                continue
            out.append((m, x))
        else:
            out.append("else")
    out += [x async for x in _async_generator(2)]
    out += [y for y in [await _inner_coroutine(k) for k in range(2)] if y]
    return out, {k: v async for k, v in _async_pairs()}


@_async
async def async_with_exception():
    out = []
    async with _AsyncManager(out):
        raise ValueError("swallowed")
    return out


@_async
async def async_try():
    try:
        async for x in _async_generator(2):
            await _Pause()
            if x:
                raise KeyError(x)
    except KeyError as e:
        return e.args
    finally:
        await _Pause()


async def _async_generator(n):
    for i in range(n):
        await _Pause()
        yield i


async def _async_pairs():
    yield "a", 1
    yield "b", 2


class _AsyncManager:
    def __init__(self, log):
        self.log = log

    async def __aenter__(self):
        await _Pause()
        self.log.append("enter")
        return "m"

    async def __aexit__(self, kind, error, traceback):
        await _Pause()
        self.log.append(kind and kind.__name__)
        return True


# ------------------------------------------------------------------ big things


def _made(name, source, *argument_tuples):
    namespace = {}
    exec(compile(source, f"<{name}>", "exec"), namespace)
    case(*argument_tuples)(namespace[name])


def _indented(lines, depth):
    return "\n".join("    " * depth + line for line in lines)


_made(
    "many_constants",
    "def many_constants():\n    return [\n"
    + _indented([f"{i + 0.5}, 'c{i}'," for i in range(300)], 2)
    + "\n    ]\n",
)
_made(
    "many_names",
    "def many_names(o):\n    try:\n"
    + _indented([f"o.a{i} = o.a0 if {i} else {i}" for i in range(300)], 2)
    + "\n        return o.nothing\n    except AttributeError as e:\n        return str(e)[:5]\n",
    (lambda: 0,),
)
_made(
    "many_locals",
    "def many_locals(x):\n"
    + _indented([f"v{i} = x + {i}" for i in range(300)], 1)
    + "\n    def inner(): return v1, v299\n    return v0 + v150 + v298, inner()\n",
    (1,),
)
_made(
    "long_loop",
    "def long_loop(n):\n    t = 0\n    while n > 0:\n        n -= 1\n        if n == 5: continue\n"
    + _indented([f"t = (t * 31 + {i}) % 1000003" for i in range(400)], 2)
    + "\n        if t % 2: break\n    else:\n        t = -t\n    return t\n",
    (3,),
    (7,),
    (0,),
)
_made(
    "long_for_with_try",
    "def long_for_with_try(n):\n    t = 0\n    for i in range(n):\n        try:\n"
    + _indented([f"t += i * {k} if i else {k} // (n - 4)" for k in range(200)], 3)
    + "\n        except ZeroDivisionError:\n            t = -1\n            continue\n    return t\n",
    (3,),
    (4,),
)
_made(
    "very_long_jump",
    "def very_long_jump(x):\n    if x:\n"
    # Of few instructions: an attribute takes five code units or more.
    + _indented([f"x = x{'.real' * 20} + {i % 7}" for i in range(650)], 2)
    + "\n    else:\n        x = 'skipped'\n    return x\n",
    (0,),
    (1,),
)
_made(
    "wide_columns",
    "def wide_columns(x):\n    return (" + " " * 200 + "x +\n\n\n\n\n" + " " * 90 + "1 /\n x)\n",
    (1,),
    (0,),
)
_made(
    "many_keywords",
    "def many_keywords(**kw):\n    return dict("
    + ", ".join(f"k{i}={i}" for i in range(300))
    + ")\n",
)
_made(
    "many_arguments",
    "def many_arguments("
    + ", ".join(f"a{i}={i}" for i in range(280))
    + "):\n    return a0 + a279, (lambda: a279)()\n",
)
_made(
    "deep_expression",
    "def deep_expression(x):\n    return " + "(x + " * 60 + "1" + ")" * 60 + "\n",
    (2,),
)
