"""More of the corpus: ways to enter and to leave a `with` block, for each kind of `__exit__`.

From 3.14 on the interpreter keeps `__exit__` on its stack as a pair with its `self` or a NULL (for
a static method). Importing the module adds to `python_programs.PROGRAMS`.
"""

from __future__ import annotations

from .python_programs import program

__all__: list[str] = []


class Logs:
    def __init__(self, log, swallows=False):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(kind and kind.__name__)
        return self.swallows


class Static:
    @staticmethod
    def __enter__():
        return 5

    @staticmethod
    def __exit__(kind, error, traceback):
        return kind is KeyError


class OfClass:
    left = 0

    @classmethod
    def __enter__(cls):
        return cls

    @classmethod
    def __exit__(cls, *error):
        return False


@program(3)
def with_blocks_of_each_kind_of_exit(n):
    log = []
    with Logs(log) as first, Static() as number, OfClass() as cls:
        n = n + number
        log.append((first.swallows, cls.left))
    with Logs(log, swallows=True):
        n += 1
    return n, log


@program(4)
def with_block_around_an_error(n):
    log = []
    with Logs(log, swallows=True), Static():
        n += 1
        log[n]
    with Static():
        n += 1
        {}[n]
    try:
        with Logs(log), Static():
            [].pop()
    except IndexError:
        log.append(n)
    return n, log


@program(7)
def loop_left_from_within_with_blocks(n):
    log, total = [], 0
    for i in range(n):
        with Static() as five, Logs(log):
            total += i * five
            if i == 2:
                continue
            if total > 40:
                break
        log.append(i)
    return total, log, i


@program(7)
def returns_from_within_with_blocks(n):
    log = []

    def find(limit):
        with Logs(log), Static():
            for i in range(n):
                with Static() as five:
                    if i * five > limit:
                        return i
        return None

    return find(12), find(99), log


@program(3)
def with_block_in_a_generator(n):
    log = []

    def items():
        with Static() as five, Logs(log):
            for i in range(n):
                yield i + five

    return list(items()), sum(items()), log


@program(5)
def with_block_in_a_handler_and_in_finally(n):
    log = []
    try:
        with Static():
            n += [][0]
    except IndexError:
        with Logs(log), Static() as five:
            n += five
    finally:
        with Static():
            log.append(n)
    return n, log
