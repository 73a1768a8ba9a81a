"""More of the corpus: kinds of loops, in the positions that a function can have one in, and the
ways to leave one. Importing it adds to `python_programs.PROGRAMS`.
"""

from __future__ import annotations

import contextlib

from . import new_syntax_programs, with_programs  # noqa: F401
from .library_programs import PROGRAMS
from .python_programs import program

__all__ = ["LOOPS", "PROGRAMS"]

LOOPS = ["loop"]  # a global that a loop reads


@program(6)
def loop_over_range_with_values_around_it(n):
    before, total = n * 2, 0
    for i in range(n):
        total += i % 4
    return before, total, i


@program(0)
def loop_without_rounds_leaves_names_unbound(n):
    for i in range(n):
        last = i
    try:
        return last
    except UnboundLocalError as error:
        return str(error), n


@program(9, 14)
def loop_left_by_break_or_to_its_else(n, limit):
    found = []
    for bound in (limit, 10 * limit):
        total = 0
        for i in range(n):
            total += i
            if total > bound:
                break
        else:
            total = -total
        found.append((total, i))
    return found


@program(9)
def loop_left_by_return_at_two_places(n):
    total = 0
    for i in range(n):
        total += i
        if total > 100:
            return "never"
        if i == n - 2:
            return total, i
    return "end"


@program(7)
def loop_left_inside_a_block_and_a_handler(n):
    closed = []
    for i in range(n):
        with contextlib.suppress(KeyError):
            closed.append(i)
            if i == 2:
                raise KeyError(i)
            if i == 4:
                break
        try:
            if i == 3:
                raise ValueError(i)
        except ValueError as error:
            closed.append(str(error))
            if n < 5:
                break
            continue
        finally:
            closed.append("end of round")
    return closed


@program(7)
def loop_whose_exception_leaves_it(n):
    total = 0
    try:
        for i in range(n):
            total += i
            if i == 4:
                raise ValueError(i)
    except ValueError as error:
        total += error.args[0] * 100
    return total


@program(5)
def loop_in_which_names_are_deleted(n):
    kept, gone = 1, 2
    for i in range(n):
        if i == 3:
            del gone
        kept += i
    try:
        return kept, gone
    except UnboundLocalError as error:
        return kept, str(error)


@program(30)
def while_loops_with_continue_and_else(n):
    total = rounds = 0
    while n > 0:
        n -= 3
        if n % 2:
            continue
        total += n
    else:
        total += 1000
    while True:
        rounds += 1
        if rounds * rounds > total:
            break
    return total, rounds, n


@program(4)
def loop_within_a_loop(n):
    total = 0
    for i in range(n):
        if i == 1:
            continue
        for j in range(i, n):
            if j == 3:
                break
            total += i * 10 + j
        else:
            total += 1000
        k = 0
        while k < i:
            k += 1
            if k == 3:
                return total, "returned"
    return total, i, j


@program(["a", "b", "a", "c"])
def loop_that_counts_words(words):
    counts, order = {}, []
    for place, word in enumerate(words):
        try:
            counts[word] += 1
        except KeyError:
            counts[word] = 1
            order.append((place, word, LOOPS[0]))
    for key, count in counts.items():
        order.append(key * count)
    return counts, order


@program(5)
def loops_over_closures_strings_and_zips(n):
    total = 0

    def add(number):
        nonlocal total
        total += number

    for i in range(n):
        add(i)
    for a, (b, c) in zip("abcde", enumerate(reversed(range(n))), strict=False):
        add(len(a) * b * c)
    return total, [x + y for x in range(n) for y in range(x)], {x: total for x in "ab"}


@program(5)
def loop_over_a_generator(n):
    def numbers():
        for i in range(n):
            yield i * 2

    total = 0
    for number in numbers():
        total += number
    return total, sum(x * x for x in range(n))


@program([3, 1, 2])
def loop_that_changes_what_it_walks(items):
    for i, item in enumerate(items):
        if len(items) < 8:
            items.append(item + i)
    while items and items[-1] > 3:
        items.pop()
    return items
