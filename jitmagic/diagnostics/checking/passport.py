"""passport: compares the numbers of compiled code with eager's and with float64.

    jitmagic.passport(fn)(*args)   ->  Passport, shown as text; .save(path) writes JSON

Input: a function and its arguments; it is called once, with all its side effects. The graphs of
that call are captured with their input tensors, and each runs as eager, as compiled code and as
eager in float64, on copies. If that is safe, the function also runs as plain Python
(plain_call.py), which finds errors of the capture. Output: a line per result, mutated input and
gradient, a verdict by the rule of agreement.py, and the first operation at which the graphs differ.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from ...api import tagged_copy
from ...graph.node_meta import lines_of
from ...lazy_dataclass import dataclass, replace
from ...torch_types import AnyFunction
from ..words import HINT, WRONG, Question, Readable, here, refuse_arguments
from .agreement import Line, compare, in_double
from .cases import (
    AFTERWARDS,
    CapturedCall,
    Case,
    Results,
    Values,
    capture_call,
    chosen_options,
    collect_results,
    name_of,
    with_outputs,
)
from .plain_call import Arguments, Refusal, compare_with_plain

__all__ = ["Line", "Passport", "passport"]


@dataclass(frozen=True, slots=True, repr=False)
class Passport(Readable):
    """The comparison of one call.

    first: for each graph that differs, the first differing operation and its source line
    notes: reasons why something could not be compared
    """

    name: str
    lines: tuple[Line, ...]
    first: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """True if every tensor agrees with eager by the rule of agreement.py."""
        return all(line.agrees for line in self.lines)

    @property
    def verdict(self) -> str:
        """The result as a sentence."""
        wrong = [line for line in self.lines if not line.agrees]
        if wrong:
            return f"{len(wrong)} of {len(self.lines)} tensors differ from eager beyond rounding"
        if not self.lines:
            return "nothing was compiled, so there is nothing to compare"
        if all(line.bitwise for line in self.lines):
            return f"all {len(self.lines)} tensors are bitwise equal to eager's"
        return f"all {len(self.lines)} tensors agree with eager up to rounding"

    def save(self, path: str | Path) -> Path:
        """Write the passport as JSON, nan and inf as strings, and return the path."""
        plain = {"verdict": self.verdict, "agrees": self.agrees, **asdict(self)}
        where = Path(path)
        where.write_text(json.dumps(_finite(plain), indent=1, allow_nan=False) + "\n")
        return where

    def styled_lines(self) -> list[tuple[str, str]]:
        untouched = [line for line in self.lines if line.bitwise and line.name.endswith(AFTERWARDS)]
        folded = untouched if len(untouched) > 1 else []  # a model has many unchanged parameters
        shown = [line for line in self.lines if line not in folded]
        rows = [(f"{self.name}: {self.verdict}", "" if self.agrees else WRONG), *_table(shown)]
        if folded:
            rows.append((f"  {len(folded)} inputs{AFTERWARDS}: bitwise equal", ""))
        rows += [(f"  first differs at {place}", WRONG) for place in self.first]
        return [*rows, *((f"  note: {note}", HINT) for note in self.notes)]


_HEADINGS = (
    "tensor",
    "dtype",
    "compiled beside eager",
    "largest difference",
    "in last places",
    "error to float64",
    "eager's error",
)


def _table(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return a table with a row per line; columns without a figure are left out."""
    several = len({line.graph for line in lines}) > 1
    cells = [_cells(line, several) for line in lines]
    used = [n for n in range(len(_HEADINGS)) if n < 3 or any(row[n] for row in cells)]
    table = [_HEADINGS, *cells]
    widths = [max(len(row[n]) for row in table) for n in used]
    texts = [
        "  " + "  ".join(row[n].ljust(w) for n, w in zip(used, widths, strict=True)).rstrip()
        for row in table
    ]
    styles = [HINT, *("" if line.agrees else WRONG for line in lines)]
    return list(zip(texts, styles, strict=True)) if lines else []


def _cells(line: Line, several: bool) -> tuple[str, ...]:
    name = f"{line.name} of graph {line.graph}" if several and line.graph else line.name
    verdict = "bitwise equal" if line.bitwise else "agrees" if line.agrees else "DIFFERS"
    figures: tuple[str, ...] = ("", "", "", "")
    if not line.bitwise:
        errors = (line.error, line.eager_error)
        ulp = "" if line.ulp is None else f"{line.ulp:,}"
        figures = (f"{line.abs:.2g}", ulp, *("" if e is None else f"{e:.1e}" for e in errors))
    return name, line.dtype, verdict, *figures


def passport(fn: AnyFunction, /, *arguments: object, **options: object) -> Question[Passport]:
    """`passport(fn)(*args)`: call `fn` once and compare its compiled code with eager and float64.

    `fn` may be plain or tagged; `options` replace those it is tagged with. If it changes nothing
    but its arguments, it runs a second time as plain Python, on copies of them.
    """
    refuse_arguments("passport", arguments)
    chosen = chosen_options(fn, options)

    def run(*args: object, **kwargs: object) -> Passport:
        given = Arguments(fn, args, kwargs)
        try:
            before: Arguments | Refusal = given.copied()
        except Refusal as refusal:
            before = refusal
        call = capture_call(fn, args, kwargs)
        lines, first, notes = _judged_capture(before, given, call)
        return _judged(name_of(fn), call.cases, chosen, lines, first, notes)

    return Question("passport", fn, run)


def _judged_capture(
    before: Arguments | Refusal, given: Arguments, call: CapturedCall
) -> tuple[list[Line], list[str], list[str]]:
    """Return the lines that differ from the plain function, and entries for `first` and `notes`."""
    if not call.cases:
        return [], [], []
    try:
        if isinstance(before, Refusal):
            raise before
        wrong = compare_with_plain(before, given.results(call.result), call.traces)
    except Refusal as refusal:
        return [], [], [f"only the captured graphs were compared, not the function: {refusal}"]
    return wrong, [_CAPTURE] if wrong else [], []


_CAPTURE = "the capture: the captured graphs and the function differ already in eager"


def _judged(
    name: str,
    cases: Sequence[Case],
    options: Mapping[str, object],
    lines: list[Line],
    first: list[str],
    notes: list[str],
) -> Passport:
    for number, case in enumerate(cases, 1):
        found, why = _lines(number, case, options)
        lines += found
        notes += [f"graph {number}: {why}"] if why else []
        if not all(line.agrees for line in found):
            first.append(f"graph {number}: {_first_difference(case, options)}")
    return Passport(name, tuple(lines), tuple(first), tuple(notes))


def _lines(number: int, case: Case, options: Mapping[str, object]) -> tuple[list[Line], str]:
    """Return a line per tensor of a graph, and why there is no float64 run ("" if there is one)."""
    eager = collect_results(case.function(), case.inputs, case.names, case.freed)
    compiled = _compiled(case, options)
    truth, why = _in_double(case)
    return [_labelled(line, case) for line in compare(compiled, eager, truth, number)], why


def _labelled(line: Line, case: Case) -> Line:
    """Return the line with the result's name in the user's program."""
    word, _, number = line.name.partition(" ")
    known = case.labels.get(int(number)) if word == "result" and number.isdigit() else None
    return line if known is None else replace(line, name=known)


def _in_double(case: Case) -> tuple[Results, str]:
    if any(node.meta.get("random") for node in case.graph.nodes):
        return {}, "it draws random numbers, which differ in float64: compared with eager only"
    return in_double(case.function(), case.inputs, case.names, case.freed)


def _compiled(case: Case, options: Mapping[str, object]) -> Results:
    function = case.function()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return collect_results(tagged_copy(function, options), case.inputs, case.names, case.freed)


# -- the first difference -------------------------------------------------------------------------


def _first_difference(case: Case, options: Mapping[str, object]) -> str:
    """Bisect for the first operation whose value differs if the graph ends there."""
    nodes = Values(case).tensor_operations()
    low, high = 0, len(nodes) - 1  # it is in [low, high], unless only a gradient differs
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if _differs_at(case, nodes[middle], options) else (middle + 1, high)
        )
    node = nodes[low]
    if not _differs_at(case, node, options):
        return "a gradient: all operations of the forward pass agree"
    lines = lines_of(node)
    return f"{node.name}" + (f", {here(lines[-1])}" if lines else "")


def _differs_at(case: Case, node: torch.fx.Node, options: Mapping[str, object]) -> bool:
    part = with_outputs(case, [node.name])
    plain = Case(part.graph, tuple(x.detach() for x in part.inputs))
    found, _ = _lines(1, plain, options)
    return not all(line.agrees for line in found if line.name.startswith("result"))


def _finite(value: object) -> object:
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value
