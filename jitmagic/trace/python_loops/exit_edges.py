"""Finds the control-flow edges out of the code that Python runs at a graph break.

Takes the root body and the breaking instruction. Python runs a region of the code: that
instruction, or the whole loop that it is the head of. Each edge out of the region leads to a resume
function.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...bytecode import Body, Instruction, stack_depths
from ...bytecode.flow import call_group, stack_effect
from ...bytecode.versions import RUNNING
from ...lazy_dataclass import dataclass, replace
from ..residual.resume import Root

__all__ = ["ExitEdge", "exit_edges", "run_by_python", "unsettled_names"]

Code = list[Instruction]


@dataclass(frozen=True, slots=True)
class ExitEdge:
    """An edge from `source`, which Python runs, to `target`, where a resume function begins."""

    source: Instruction
    target: Instruction
    jumps: bool
    effect: int  # growth of the stack from the break to the target
    landing: tuple[str, ...] = ()  # opcodes required at FOR_ITER's target, which CPython skips


def run_by_python(root: Root, breaking: Instruction, whole_loop: bool) -> frozenset[Instruction]:
    """Return the region: the instructions that the residual contains, run as plain Python.

    A loop can be left inside an exception handler (`except E: break`), where no resume function can
    begin, because it has no exception being handled. The rest of the handler then joins the region.
    """
    if not whole_loop:
        return frozenset({breaking})
    region = set(root.loops[breaking])
    work = list(region)
    while work:
        for way in _edges(root.body, work.pop()):
            if way.target not in region and way.target in root.handlers:
                region.add(way.target)
                work.append(way.target)
    return frozenset(region)


def exit_edges(
    root: Root, breaking: Instruction, region: frozenset[Instruction]
) -> Iterator[ExitEdge]:
    """Yield the edges out of a region that begins at `breaking`."""
    if len(region) == 1:
        yield from _edges(root.body, breaking)
        return
    depths = stack_depths(root.body)
    for instruction in root.body.instructions:
        if instruction not in region or instruction not in depths:
            continue
        for way in _edges(root.body, instruction):
            if way.target not in region:
                yield replace(way, effect=depths[way.target] - depths[breaking])


def unsettled_names(region: frozenset[Instruction], bound: frozenset[str]) -> frozenset[str]:
    """Return variables that may be unbound after a region; `bound`: those bound before it."""
    if len(region) == 1:
        return frozenset()
    # LOAD_FAST_AND_CLEAR (3.12, PEP 709) unbinds the variable of an inlined comprehension and
    # restores what it was, possibly unbound.
    stored = {i.arg for i in region if i.op in ("STORE_FAST", "LOAD_FAST_AND_CLEAR")}
    deleted = {i.arg for i in region if i.op == "DELETE_FAST"}
    return frozenset(map(str, stored - bound | deleted))


def _edges(body: Body, source: Instruction) -> Iterator[ExitEdge]:
    """Yield all edges out of one instruction."""
    after = body.instructions.index(source) + 1
    following = body.instructions[after] if after < len(body.instructions) else None
    before = sum(stack_effect(i, jump=False) for i in call_group(body, source)[:-1])
    if source.op == "FOR_ITER":
        assert source.target is not None
        # From 3.12 on an exhausted FOR_ITER jumps past the END_FOR at its target, and the resume
        # function begins after it.
        landing = tuple(RUNNING.loop_landing)
        place = body.instructions.index(source.target) + len(landing)
        yield ExitEdge(source, body.instructions[place], True, -1, landing)
    elif source.target is not None:
        yield ExitEdge(source, source.target, True, before + stack_effect(source, jump=True))
    if source.op not in RUNNING.no_fallthrough and following is not None:
        effect = before + stack_effect(source, jump=False)
        yield ExitEdge(source, following, False, effect)
