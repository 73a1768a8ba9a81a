"""Splits passes with scans along a row, so that what costs much beside them runs along lanes.

In: a Structure. Out: the same, in which a pass that scans is up to three: one computes costly
operands of scans, one scans, and one computes the rest. Scratch rows (loops.py) hold what the
next ones read. The points of the middle one wait for each other, the others are vectors: exp before
a cumsum of rows of 2048 took 6.7 ms of scalar calls in place of eager's 2.0, with a pass of its own
1.1.
"""

from __future__ import annotations

from ...lazy_dataclass import replace
from ...loops.ir import Axis, Cast, Scan, Value, walk
from ...schedule.score import EXPENSIVE, body_cost, points
from ..loop_structure import Pass, Structure, inside, scans_of
from .loops import ROW_BYTES

__all__ = ["with_scan_rows"]


def with_scan_rows(kernel: Structure) -> Structure:
    """Return the kernel with the passes that scan in parts."""
    saved: dict[tuple[Axis, ...], set[Value]] = {}
    used: dict[tuple[Axis, ...], set[Value]] = {}
    passes: list[Pass] = []
    for each in kernel.passes:
        known = saved.setdefault(each.axes, set())
        before = used.setdefault(each.axes, set())
        parts = _parts(each, kernel, known, before) if _fits(each) else (each,)
        known.update(value for part in parts for value in part.saved)
        before.update(inside(each, kernel.free))
        passes += parts
    same = len(passes) == len(kernel.passes)
    return kernel if same and (*passes,) == kernel.passes else replace(kernel, passes=(*passes,))


def _fits(pass_: Pass) -> bool:
    """Return whether the scans of a row fit into a scratch row."""
    sizes = [scan.dtype.itemsize for scan in scans_of(pass_)]
    return bool(sizes) and points(pass_.axes) <= ROW_BYTES // max(sizes)


def _parts(pass_: Pass, kernel: Structure, known: set[Value], used: set[Value]) -> tuple[Pass, ...]:
    """Return the parts of a pass. Earlier ones over its axes have saved the `known` values, and
    compute the `used` ones.
    """
    loaded = tuple(scan for scan in scans_of(pass_) if scan in known)
    pass_ = replace(pass_, loaded=loaded)
    scans = scans_of(pass_)
    if not scans or any(scan in used for scan in scans):
        return (pass_,)
    nodes = inside(pass_, kernel.free)
    of_scans = frozenset(walk(scans))
    operands = dict.fromkeys(_without_casts(scan.value) for scan in scans)
    costly = [value for value in operands if _is_costly(value, kernel, pass_)]
    before = [value for value in costly if value not in used]
    early = frozenset(walk(before))
    before += [value for value in pass_.saved if value in early and value not in before]
    first = (Pass(pass_.axes, saved=(*before,)),) if before else ()
    pass_ = replace(pass_, saved=tuple(v for v in pass_.saved if v not in before))
    if body_cost(node for node in nodes if node not in of_scans) < EXPENSIVE:
        return (*first, pass_)
    saved = tuple(value for value in pass_.saved if value not in scans)
    rest = replace(pass_, saved=saved, loaded=(*loaded, *scans))
    return (*first, Pass(pass_.axes, saved=tuple(scans)), rest)


def _without_casts(value: Value) -> Value:
    while isinstance(value, Cast):
        value = value.value
    return value


def _is_costly(value: Value, kernel: Structure, pass_: Pass) -> bool:
    """Return whether computing a value at each point costs much, and takes no scan."""
    nodes = [node for node in walk((value,)) if kernel.free[node] & frozenset(pass_.axes)]
    return body_cost(nodes) >= EXPENSIVE and not any(isinstance(node, Scan) for node in nodes)
