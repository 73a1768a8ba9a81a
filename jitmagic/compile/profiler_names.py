"""Names compiled graphs and kernels for profilers, and finds the source lines of their calls.

Input: the scheduled program, the ATen graph it was made of, the title of the user's function.
Output: `Plan.titles`: the graph's, then one for each kernel launched, in order: "forward of step
(model.py:12)", "kernel 0 of step: add, relu, sum (model.py:13, 14)".
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule

from ..codegen.plan import Call, Launch, Plan
from ..errors import UserLine, plain_title
from ..graph.node_meta import lines_of
from ..loops.ir import Extern, LoopProgram, Nest
from ..runtime.step_timing import timed_calls
from ..schedule import operations_in

__all__ = ["call_places", "titles_of"]

_MOST = 6  # operations, and places in the source, that a title names


def titles_of(program: LoopProgram, plan: Plan, gm: GraphModule, owner: str) -> tuple[str, ...]:
    """Return `Plan.titles`. `owner`: the function's own title, its name first."""
    lines = {node.name: lines_of(node)[:1] for node in gm.graph.nodes}
    launches = _steps_of(program, plan, Launch)
    part = "" if program.name == "forward" else f"{program.name} "
    name = owner.rpartition(" (")[0] or owner
    titles = [f"{program.name} of {owner}"]
    for number, step in enumerate(launches):
        origins = step.origins if isinstance(step, Nest) else (step.name,)
        computes = _listed(operations_in(origins) or [step.name])
        where = _places(line for origin in origins for line in lines.get(origin, ()))
        titles.append(f"{part}kernel {number} of {name}: {computes}{where}")
    return tuple(map(plain_title, titles))


def _steps_of(
    program: LoopProgram, plan: Plan, kind: type[Launch] | type[Call]
) -> list[Nest | Extern]:
    """Return the steps of the program that are launches, or calls, in its plan."""
    steps = [step for step in program.steps if isinstance(step, Nest | Extern)]
    pairs = zip(steps, timed_calls(plan), strict=True)
    return [step for step, made in pairs if isinstance(made, kind)]


def call_places(program: LoopProgram, plan: Plan, gm: GraphModule) -> tuple[tuple[str, int], ...]:
    """Return `Plan.call_lines`, the lines for warnings of ATen calls; none for a backward, whose
    warnings name the line of backward().
    """
    if program.name == "backward":
        return ()
    lines = {node.name: lines_of(node)[:1] for node in gm.graph.nodes}
    calls = [lines.get(step.name, ()) for step in _steps_of(program, plan, Call)]
    return tuple((line[0].filename, line[0].lineno) if line else ("", 0) for line in calls)


def _places(lines: Iterable[UserLine]) -> str:
    """Return text like ` (model.py:13, 14, layers.py:3)`."""
    texts, file = [], ""
    for line in sorted(set(lines), key=lambda line: (line.filename, line.lineno)):
        short = line.file
        texts.append(str(line.lineno) if short == file else f"{short}:{line.lineno}")
        file = short
    return f" ({_listed(texts)})" if texts else ""


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:_MOST]) + (", ..." if len(parts) > _MOST else "")
