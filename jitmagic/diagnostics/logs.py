"""logs: live messages about compiles, through `logging`.

Input: names of logs, jitmagic's own or those of TORCH_LOGS. Output: records of the loggers
`jitmagic.<name>` at level INFO. Their file and line are the user's, so a formatter with
`%(pathname)s:%(lineno)d` points at the user's source. A handler on standard error is added only if
logging has none. Messages are logged when a stage of a compile ends, so they do not slow down
calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..codegen.plan import Plan
from ..compat.torch_compile import LOGS
from ..devices import row_of
from ..errors import OptionError, UserLine
from ..graph.triton.launches import kernel_name
from ..guards.check import show_guard
from ..loops.ir import Extern
from ..records import Recording, RunningStage, watchers
from ..runtime.cuda_graphs.partitions import partitions_of, reasons
from ..trace.result import Break, Trace
from .structured import trace_to

__all__ = ["NAMES", "logs", "logs_of_environment"]

Messages = Iterator[tuple[str, UserLine | None]]
_ROOT = logging.getLogger("jitmagic")
# Names of TORCH_LOGS, with the logs here that have the same content.
_ALIASES: dict[str, tuple[str, ...]] = {
    "dynamo": ("graph_breaks", "recompiles", "guards", "graph_code"),
    "aot": ("aot_graphs",),
    "inductor": ("fusions", "perf_hints", "kernels"),
    "graph": ("graph_code",),
    "recompiles_verbose": ("recompiles",),
    "verbose_guards": ("guards",),
    "dynamic": ("guards",),
    "aot_joint_graph": ("aot_graphs",),
    "fusion": ("fusions",),
    "schedule": ("fusions",),
    "output_code": ("kernels",),
    "kernel_code": ("kernels",),
    "graph_code_verbose": ("graph_code",),
    "graph_sizes": ("graph_code",),
    "pre_grad_graphs": ("graph_code",),
    "post_grad_graphs": ("aot_graphs",),
    "ir_pre_fusion": ("fusions",),
    "ir_post_fusion": ("kernels",),
    "loop_ordering": ("fusions",),
    "cudagraph_static_inputs": ("cudagraphs",),
}
_on: set[str] = set()


def logs(names: str | None = "", *, trace: str | Path | None = None) -> frozenset[str]:
    """Switch on exactly these logs: "graph_breaks, recompiles", or "all"; None or "" for none.

    trace: a folder that gets a structured trace of all further compiles, one file per process, for
        tlparse and similar tools; None ends the trace.
    Returns the names that are on. Raises OptionError for an unknown name, with the nearest one.
    """
    wanted = _named(names or "")
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise OptionError("log", unknown[0], tuple(NAMES), tuple(unknown[1:]))
    trace_to(trace)
    _on.clear()
    _on.update(wanted)
    if _on and _watch not in watchers:
        watchers.append(_watch)
    elif not _on and _watch in watchers:
        watchers.remove(_watch)
    if _on:
        _enable_logger()
    return frozenset(_on)


def logs_of_environment(value: str, trace: str) -> None:
    """Switch on the logs named by JITMAGIC_LOGS and the trace of JITMAGIC_TRACE.

    An unknown name is a warning, not an error.
    """
    wanted = _named(value)
    logs(",".join(name for name in wanted if name in NAMES), trace=trace or None)
    for name in wanted:
        if name not in NAMES:
            _ROOT.warning("JITMAGIC_LOGS: unknown log %r; known: %s", name, ", ".join(NAMES))


def _named(names: str) -> list[str]:
    """Return the names in a list, those of TORCH_LOGS translated; `-name` is ignored."""
    words = [name.strip().lstrip("+") for name in names.split(",") if name.strip()]
    wanted = [name for name in words if not name.startswith("-")]
    names_here = [own for name in wanted for own in _ALIASES.get(name, (name,))]
    if names_here == ["all"]:
        return list(NAMES)
    empty = dict.fromkeys(name for name in names_here if name not in NAMES and _is_torchs(name))
    if empty:
        few = ", ".join(empty)
        _ROOT.warning("jitmagic has no logs for these names of TORCH_LOGS: %s", few)
    return [name for name in dict.fromkeys(names_here) if name not in empty]


def _is_torchs(name: str) -> bool:
    """Return whether TORCH_LOGS accepts the name: a component, an artifact, a module of torch."""
    known: Any = LOGS
    return bool(name.startswith("torch") or known.is_log(name) or known.is_artifact(name))


def _enable_logger() -> None:
    _ROOT.setLevel(min(_ROOT.level or logging.INFO, logging.INFO))
    if not _ROOT.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(place)s:%(lineno)d: %(message)s"))
        _ROOT.addHandler(handler)


def _watch(recording: Recording, stage: RunningStage, begins: bool) -> None:
    kind = stage.stage.rpartition(": ")[2]
    for name, (at, tell) in NAMES.items():
        if name not in _on or (kind, begins) != at:
            continue
        for text, where in tell(recording, stage):
            _say(name, text, where or recording.occasion.called_from)


def _say(name: str, text: str, where: UserLine | None) -> None:
    logger = _ROOT.getChild(name)
    if not logger.isEnabledFor(logging.INFO):
        return
    place = where or UserLine("(unknown)", 0)
    logger.handle(
        logger.makeRecord(
            logger.name,
            logging.INFO,
            place.filename,
            place.lineno,
            text,
            (),
            None,
            func=place.function,
            extra={"place": place.file},  # `Cell In[5]` for a notebook cell
        )
    )


# -- messages by log ------------------------------------------------------------------------------


def _graph_breaks(recording: Recording, stage: RunningStage) -> Messages:
    if isinstance(stage.result, Trace) and isinstance(end := stage.result.exit, Break):
        hint = f" (hint: {end.reason.hint})" if end.reason.hint else ""
        yield f"{recording.name}: {end.reason.message}{hint}", end.where


def _recompiles(recording: Recording, stage: RunningStage) -> Messages:
    for number, difference in recording.occasion.missed[:1]:
        edit = f" (to stop it: {difference.edit})" if difference.edit else ""
        text = f"{recording.name}: variant {recording.number}, not {number}: {difference}{edit}"
        yield text, difference.where


def _guards(recording: Recording, stage: RunningStage) -> Messages:
    if isinstance(stage.result, Trace):
        for guard in stage.result.guards:
            yield f"{recording.name}: {show_guard(guard)}", guard.where


def _graph_code(recording: Recording, stage: RunningStage) -> Messages:
    if isinstance(stage.result, Trace):
        yield f"{recording.name}:\n{stage.result.graph.code.strip()}", None


def _aot_graphs(recording: Recording, stage: RunningStage) -> Messages:
    for part in ("forward", "backward"):
        if (graph := getattr(stage.result, part, None)) is not None:
            yield f"{recording.name}, {part}:\n{graph.code.strip()}", None


def _fusions(recording: Recording, stage: RunningStage) -> Messages:
    for decision in getattr(stage.result, "decisions", ()):
        yield f"{recording.name}: {decision}", None


def _hints(recording: Recording, stage: RunningStage) -> Messages:
    program = getattr(stage.result, "program", None)
    for step in program.steps if program is not None else ():
        if isinstance(step, Extern):
            kernel = kernel_name(step.op)
            what = (
                f"{step.op} stays torch's own kernel" if kernel is None else f"{kernel} is called"
            )
            yield f"{recording.name}: {what}: {step.reason}", None


def _kernels(recording: Recording, stage: RunningStage) -> Messages:
    source = stage.result[1] if isinstance(stage.result, tuple) else None
    if source is not None:
        yield f"{recording.name}: {', '.join(source.symbols)}:\n{source.text}", None


def _cudagraphs(recording: Recording, stage: RunningStage) -> Messages:
    if not isinstance(stage.result, tuple):
        return
    plan: Plan = stage.result[0]
    on_cuda = row_of(plan.device).runs_cuda
    may = _recordable(plan) if on_cuda else f"no CUDA graph: it runs on {plan.device}"
    yield f"{recording.name}, {plan.name}: {may}", None


def _recordable(plan: Plan) -> str:
    """Return what of a plan may be recorded, and why the rest is not."""
    parts = partitions_of(plan, ())
    why = "; ".join(reasons(why for part in parts for why in part.refused))
    if not why:
        return "may be recorded as a CUDA graph"
    if len(parts) == 1:
        return f"no CUDA graph: {why}"
    count = sum(not part.refused for part in parts)
    return f"{count} of {len(parts)} parts may be recorded as CUDA graphs: {why}"


NAMES: dict[str, tuple[tuple[str, bool], Callable[[Recording, RunningStage], Messages]]] = {
    "graph_breaks": (("trace", False), _graph_breaks),
    "recompiles": (("trace", True), _recompiles),
    "guards": (("trace", False), _guards),
    "graph_code": (("trace", False), _graph_code),
    "aot_graphs": (("partition", False), _aot_graphs),
    "fusions": (("schedule", False), _fusions),
    "perf_hints": (("schedule", False), _hints),
    "kernels": (("render", False), _kernels),
    "cudagraphs": (("render", False), _cudagraphs),
}
"""By name: the stage, whether at its begin, and the function that produces the messages."""
