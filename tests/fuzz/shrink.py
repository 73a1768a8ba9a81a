"""shrink: the smallest program that still shows a difference of the same kind.

Tries, until nothing helps: fewer calls, fewer results, fewer statements, fewer lines inside blocks,
plainer inputs. A candidate that raises in eager too shows no difference and is thereby refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from .program import Program

__all__ = ["shrink"]


def shrink(program: Program, fails: Callable[[Program], bool], most: int = 150) -> Program:
    """`fails(candidate)` says whether the difference is still there; it is asked `most` times."""
    tried: set[Program] = {program}
    smaller = True
    while smaller and len(tried) < most:
        smaller = False
        for candidate in _candidates(program):
            if candidate in tried or len(tried) >= most:
                continue
            tried.add(candidate)
            if _compiles(candidate) and fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _compiles(program: Program) -> bool:
    try:
        compile(program.source(), "candidate", "exec")
    except SyntaxError:
        return False
    return True


def _candidates(program: Program) -> Iterator[Program]:
    body, results, calls = program.statements, program.results, program.calls
    for size in (len(body) // 2, len(body) // 4, 1):
        for start in range(0, len(body), max(size, 1)):
            if 0 < size < len(body):
                yield replace(program, statements=body[:start] + body[start + size :])
    for n in range(len(calls) if len(calls) > 1 else 0):
        yield replace(program, calls=calls[:n] + calls[n + 1 :])
    for n in range(len(results) if len(results) > 1 else 0):
        yield replace(program, results=results[:n] + results[n + 1 :])
    if program.kind != "function":
        yield replace(program, kind="function")
    if program.shape not in ("single", "tuple"):
        yield replace(program, shape="tuple")
    if program.backward != "sum":
        yield replace(program, backward="sum")
    if len(results) == 1 and program.shape != "single":
        yield replace(program, shape="single")
    yield from _fewer_lines(program)
    yield from _fewer_arguments(program)
    yield from _plainer_inputs(program)


def _fewer_lines(program: Program) -> Iterator[Program]:
    for n, block in enumerate(program.statements):
        lines = block.split("\n")
        for k in range(len(lines) if len(lines) > 1 else 0):
            fewer = "\n".join(lines[:k] + lines[k + 1 :])
            yield replace(program, statements=(*_but(program, n, fewer),))


def _but(program: Program, n: int, block: str) -> tuple[str, ...]:
    return (*program.statements[:n], block, *program.statements[n + 1 :])


def _fewer_arguments(program: Program) -> Iterator[Program]:
    for n, name in enumerate(program.arguments):
        used = re.search(rf"\b{name}\b", program.body())
        if used is None and "base" not in str(program.calls):
            yield replace(
                program,
                arguments=program.arguments[:n] + program.arguments[n + 1 :],
                calls=tuple(call[:n] + call[n + 1 :] for call in program.calls),
            )


def _plainer_inputs(program: Program) -> Iterator[Program]:
    for pattern, plainer in (
        (r', layout="\w+"', ""),
        (r', values="\w+"', ""),
        (r", grad=True", ""),
        (r"torch\.(float16|bfloat16|float64)", "torch.float32"),
        (r"\b(17|33|64|130|200|150|8)\b(?=[,)])", "4"),
        (r"\b[45]\b(?=[,)])", "3"),
        (r"\b3\b(?=[,)])", "2"),
    ):
        changed = tuple(
            tuple(re.sub(pattern, plainer, argument) for argument in call) for call in program.calls
        )
        if changed != program.calls:
            yield replace(program, calls=changed)
