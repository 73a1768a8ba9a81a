"""structured: writes a trace of all compiles in the format of TORCH_TRACE, which tlparse reads.

Input: stages as they end. Output: one file per process with one record per stage. A record is a
line in the format of torch's logging (level, time, thread, the user's file and line), a JSON object
with names that tlparse knows, and a payload indented by a tab. Results that torch has no name for
are recorded as "artifact".
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserLine, warn
from ..guards.check import show_guard
from ..lazy_dataclass import dataclass, field
from ..records import Recording, RunningStage, watchers
from ..trace.result import Break, Trace

__all__ = ["trace_to"]

Entries = Iterator[tuple[dict[str, object], str]]  # (JSON object, payload)


@dataclass(eq=False, slots=True)
class _Writer:
    path: Path
    names: dict[str, int] = field(default_factory=dict)  # number of each file name
    lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self, recording: Recording, stage: RunningStage, begins: bool) -> None:
        """Write the records of a stage; every compile calls this at its begin and end."""
        kind = stage.stage.rpartition(": ")[2]
        if begins and kind == "trace":
            self._begin(recording)
        elif not begins and kind in _WRITERS:
            for what, text in _WRITERS[kind](recording, stage):
                self._write(recording, what, text)

    def _begin(self, recording: Recording) -> None:
        where = recording.occasion.called_from
        stack = [] if where is None else [self._frame(where)]
        self._write(recording, {"dynamo_start": {"stack": stack}}, "")

    def _frame(self, where: UserLine) -> dict[str, object]:
        if where.filename not in self.names:
            self.names[where.filename] = len(self.names)
            self._append(None, {"str": [where.filename, self.names[where.filename]]}, "")
        return {
            "line": where.lineno,
            "name": where.function,
            "filename": self.names[where.filename],
            "loc": where.text,
        }

    def _write(self, recording: Recording, what: dict[str, object], text: str) -> None:
        # torch numbers the compiles of a frame from 0, jitmagic its variants from 1.
        of = {"frame_id": recording.frame, "frame_compile_id": max(0, recording.number - 1)}
        where = recording.occasion.called_from
        self._append(where, {**what, **of, "attempt": 0}, text)

    def _append(self, where: UserLine | None, record: dict[str, object], text: str) -> None:
        text = text.rstrip("\n")
        if text:
            record["has_payload"] = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        now = time.time()
        stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
        place = (where.filename if where is not None else "jitmagic").replace(":", "_")
        head = f"V{stamp}.{int(now % 1 * 1e6):06d} {threading.get_native_id()} {place}"
        lines = [f"{head}:{where.lineno if where is not None else 0}] {json.dumps(record)}"]
        lines += [f"\t{line}" for line in text.split("\n") if text]
        try:
            with self.lock, self.path.open("a", encoding="utf-8", errors="replace") as file:
                file.write("\n".join(lines) + "\n")
        except OSError as error:  # a full disk stops the trace, not the user's program
            trace_to(None)
            warn(f"the trace ends here: {error}")


def _traced(recording: Recording, stage: RunningStage) -> Entries:
    if not isinstance(trace := stage.result, Trace):
        return
    yield {"dynamo_output_graph": {"sizes": {}}}, trace.graph.code.strip()
    guards = "\n".join(show_guard(guard) for guard in trace.guards)
    yield _artifact("guards", recording), guards
    if isinstance(end := trace.exit, Break):
        hint = f"\nhint: {end.reason.hint}" if end.reason.hint else ""
        yield _artifact("graph_break", recording), f"{end.reason.message}\n{end.where}{hint}"


def _recompiled(recording: Recording) -> str:
    missed = recording.occasion.missed
    return "\n".join(f"variant {number}: {difference}" for number, difference in missed)


def _partitioned(recording: Recording, stage: RunningStage) -> Entries:
    for part in ("forward", "backward"):
        if (graph := getattr(stage.result, part, None)) is not None:
            yield {f"aot_{part}_graph": {}}, graph.code.strip()


def _scheduled(recording: Recording, stage: RunningStage) -> Entries:
    decisions = "\n".join(map(str, getattr(stage.result, "decisions", ())))
    yield _artifact("fusions", recording), decisions


def _rendered(recording: Recording, stage: RunningStage) -> Entries:
    source = stage.result[1] if isinstance(stage.result, tuple) else None
    if source is not None:
        name = f"{stage.stage.partition(':')[0]}.{source.language}"
        yield {"inductor_output_code": {"filename": name}}, source.text


def _emitted(recording: Recording, stage: RunningStage) -> Entries:
    if missed := _recompiled(recording):
        yield _artifact("recompile_reasons", recording), missed
    if recording.asked:
        yield _artifact("probes", recording), "\n".join(map(str, recording.asked))
    times = "\n".join(f"{s.stage}: {s.seconds * 1e3:.3f} ms" for s in recording.stages)
    yield _artifact("stage_times", recording), times


def _artifact(name: str, recording: Recording) -> dict[str, object]:
    return {"artifact": {"name": f"{name} of {recording.name}", "encoding": "string"}}


_WRITERS = {
    "trace": _traced,
    "partition": _partitioned,
    "schedule": _scheduled,
    "render": _rendered,
    "emit": _emitted,
}
_writer: _Writer | None = None


def trace_to(folder: str | Path | None) -> Path | None:
    """Start a trace in a new file of that folder and return its path; None stops the trace."""
    global _writer  # noqa: PLW0603 - one trace at a time, as with TORCH_TRACE
    if _writer is not None and _writer.watch in watchers:
        watchers.remove(_writer.watch)
    _writer = None
    if folder is None:
        return None
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    _writer = _Writer(target / f"jitmagic_trace_{os.getpid()}_{time.time_ns()}.log")
    watchers.append(_writer.watch)
    return _writer.path
