"""passport: whether the numbers of compiled code agree with eager's and with float64.

    jitmagic.passport(fn)(*args)   ->  Passport, readable as text; .save(path) writes JSON

Comes in: a function and a call of it, which is made once, with all its effects. Its graphs are
taken out with the tensors they are called with; each runs as eager, as compiled code and as eager
in float64, on copies. Goes out: a line per result, mutated input and gradient, and a verdict
(agreement.py has the rule). Where they differ, the first operation is named up to which they do.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..api import handle_of, tagged_copy
from ..graph.node_meta import lines_of
from .agreement import Line, compare, in_double
from .cases import (
    AFTERWARDS,
    Answers,
    Case,
    Values,
    answers,
    cases_of,
    changed_options,
    with_outputs,
)
from .words import HINT, WRONG, Question, Readable, here, refuse_arguments

__all__ = ["Line", "Passport", "passport"]


@dataclass(frozen=True, slots=True, repr=False)
class Passport(Readable):
    """The verdict of one call, and what it rests on.

    first: per graph that differs, the operation up to which the results first do, and its line
    notes: what could not be compared, and why
    """

    name: str
    lines: tuple[Line, ...]
    first: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every number is as good as eager's."""
        return all(line.agrees for line in self.lines)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        wrong = [line for line in self.lines if not line.agrees]
        if wrong:
            return f"{len(wrong)} of {len(self.lines)} tensors differ from eager beyond rounding"
        if not self.lines:
            return "nothing was compiled, so there is nothing to compare"
        if all(line.bitwise for line in self.lines):
            return f"all {len(self.lines)} tensors are bitwise equal to eager's"
        return f"all {len(self.lines)} tensors agree with eager up to rounding"

    def save(self, path: str | Path) -> Path:
        """Write it as JSON; nan and inf are their names in quotes."""
        plain = {"verdict": self.verdict, "agrees": self.agrees, **asdict(self)}
        where = Path(path)
        where.write_text(json.dumps(_finite(plain), indent=1, allow_nan=False) + "\n")
        return where

    def told(self) -> list[tuple[str, str]]:
        untouched = [line for line in self.lines if line.bitwise and line.name.endswith(AFTERWARDS)]
        folded = untouched if len(untouched) > 1 else []  # a model's parameters, say
        rows = [(f"{self.name}: {self.verdict}", "" if self.agrees else WRONG)]
        shown = [line for line in self.lines if line not in folded]
        rows += [(f"  {line}", "" if line.agrees else WRONG) for line in shown]
        if folded:
            rows.append((f"  {len(folded)} inputs{AFTERWARDS}: bitwise equal", ""))
        rows += [(f"  first differs at {place}", WRONG) for place in self.first]
        if not all(line.bitwise for line in shown):
            rows.append((_LEGEND, HINT))
        return [*rows, *((f"  note: {note}", HINT) for note in self.notes)]


_LEGEND = (
    "  abs, rel, ulp: the largest difference to eager, as it is, over eager's value, in units of "
    "the last place; off float64: the largest one to float64, over the largest value there"
)


def passport(fn: Callable[..., Any], /, *arguments: Any, **options: Any) -> Question[Passport]:
    """`passport(fn)(*args)`: call `fn` once and judge the numbers of its compiled code.

    `fn` may be plain or tagged; its options are kept unless others are given.
    """
    refuse_arguments("passport", arguments)
    known = handle_of(fn)
    chosen = options or (changed_options(known.options) if known is not None else {})

    def run(*args: Any, **kwargs: Any) -> Passport:
        cases = cases_of(fn, args, kwargs)
        name = known.label if known is not None else getattr(fn, "__name__", type(fn).__name__)
        return _judged(name, cases, chosen)

    return Question("passport", fn, run)


def _judged(name: str, cases: Sequence[Case], options: Mapping[str, Any]) -> Passport:
    lines: list[Line] = []
    first: list[str] = []
    notes: list[str] = []
    for number, case in enumerate(cases, 1):
        found, why = _lines(number, case, options)
        lines += found
        notes += [f"graph {number}: {why}"] if why else []
        if not all(line.agrees for line in found):
            first.append(f"graph {number}: {_first_difference(case, options)}")
    return Passport(name, tuple(lines), tuple(first), tuple(notes))


def _lines(number: int, case: Case, options: Mapping[str, Any]) -> tuple[list[Line], str]:
    """Each tensor of a graph, and why there is no float64 to judge by, if there is none."""
    eager = answers(case.function(), case.inputs, case.names)
    compiled = _compiled(case, options)
    truth, why = _in_double(case)
    return compare(compiled, eager, truth, number), why


def _in_double(case: Case) -> tuple[Answers, str]:
    if any(node.meta.get("random") for node in case.graph.nodes):
        return {}, "it draws random numbers, which are others in float64: compared with eager only"
    return in_double(case.function(), case.inputs, case.names)


def _compiled(case: Case, options: Mapping[str, Any]) -> Answers:
    function = case.function()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return answers(tagged_copy(function, options), case.inputs, case.names)


# -- where it begins ------------------------------------------------------------------------------


def _first_difference(case: Case, options: Mapping[str, Any]) -> str:
    """The first operation whose value differs when the graph ends there: found by halving."""
    values = Values(case).values
    nodes = [
        node
        for node in case.graph.nodes
        if node.op not in ("placeholder", "output") and isinstance(values[node.name], Tensor)
    ]
    low, high = 0, len(nodes) - 1  # the first is in [low, high]; a gradient's may be none of them
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if _differs_at(case, nodes[middle], options) else (middle + 1, high)
        )
    node = nodes[low]
    if not _differs_at(case, node, options):
        return "a gradient: all operations of the forward agree"
    lines = lines_of(node)
    return f"{node.name}" + (f", {here(lines[-1])}" if lines else "")


def _differs_at(case: Case, node: torch.fx.Node, options: Mapping[str, Any]) -> bool:
    part = with_outputs(case, [node.name])
    plain = Case(part.graph, tuple(x.detach() for x in part.inputs))
    found, _ = _lines(1, plain, options)
    return not all(line.agrees for line in found if line.name.startswith("result"))


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value
