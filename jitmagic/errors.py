"""Every error and warning jitmagic raises, as one tree.

    JitmagicError (RuntimeError)
    ├── TaggingError (TypeError)      what was handed to jit() cannot be compiled at all
    ├── OptionError (TypeError)       unknown option, mode, backend or magic argument
    ├── UsageError (TypeError, ValueError)  an argument that a question or a mark does not take
    ├── Unsupported                   fullgraph=True met code that does not fit into one graph
    ├── NativeMissing (ImportError)   the C++ extensions are absent or fit another torch
    ├── CompileFailed                 a stage failed; the call fell back to eager unless strict
    │   ├── OperationFailed           one operation is refused; the graph ends before it
    │   ├── SizesDiffer               a graph for all sizes is another one at those of a call
    │   └── ToolchainError            the C++ compiler, Triton or numba refused generated code
    ├── VerifyError                   a stage produced a malformed result: a bug in jitmagic
    │   └── BytecodeError             bytecode that cannot be analysed or assembled faithfully
    ├── ReportError (OSError)          a report or a script cannot be written there, or at all
    └── DoubleBackward                create_graph=True where the forward cannot be run again

    JitmagicWarning (UserWarning)
    ├── FallbackWarning               something runs as eager (or a lower tier) and why
    ├── RecompileWarning              the recompile limit of a function was reached
    └── EagerNotice                   never warned: to ignore it silences the notice line

Messages say what happened, where (the user's own line) and what to do about it. The templates live
in the classes, so that a sentence is written once.
"""

from __future__ import annotations

import difflib
import linecache
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar, NamedTuple

__all__ = [
    "ASSERTION",
    "RUN_NAME",
    "BytecodeError",
    "CompileFailed",
    "DoubleBackward",
    "EagerNotice",
    "FallbackWarning",
    "JitmagicError",
    "JitmagicWarning",
    "ModulePath",
    "NativeMissing",
    "OperationFailed",
    "OptionError",
    "OutdatedBackward",
    "RecompileWarning",
    "ReportError",
    "SizesDiffer",
    "TaggingError",
    "ToolchainError",
    "Unsupported",
    "UsageError",
    "UserLine",
    "VerifyError",
    "is_ours",
    "notebook_shell",
    "plain_title",
    "warn",
]


ASSERTION = "assert of jitmagic"  # what the error of a graph's own assertion names


class ModulePath(NamedTuple):
    """An nn.Module as the traced frame reaches it, `self.body.0`, and the name of its class."""

    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class UserLine:
    """A place in the user's source: what every message points at.

    module: the innermost module whose code runs there, on lines that a graph's nodes carry
    operation: the torch-level call of the node that carries the line, `layer_norm`
    """

    filename: str
    lineno: int
    function: str = ""
    module: ModulePath | None = field(default=None, compare=False, repr=False)
    operation: str = field(default="", compare=False, repr=False)

    @property
    def text(self) -> str:
        """The source line itself, or an empty string where the source is not known."""
        return linecache.getline(self.filename, self.lineno).strip()

    @property
    def is_in_cell(self) -> bool:
        """Return whether it is a line of a notebook's cell."""
        return bool(_cell(self.filename))

    @property
    def file(self) -> str:
        """The file's name in short: `model.py`; of a notebook's cell `Cell In[5]`."""
        return _cell(self.filename) or Path(self.filename).name

    def __str__(self) -> str:
        file = _cell(self.filename) or f'File "{self.filename}"'
        where = f"{file}, line {self.lineno}"
        if self.function:
            where += f", in {self.function}"
        return f"{where}\n    {self.text}" if self.text else where


RUN_NAME = "<cell>"  # what runs of a cell under %%compile, to records


def notebook_shell() -> Any:
    """IPython's shell, where one runs; None elsewhere."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _cell(filename: str) -> str:
    """The cell whose code has that file name, as IPython's tracebacks name it; "": it is none."""
    names = getattr(getattr(notebook_shell(), "compile", None), "_filename_map", {})
    return f"Cell In[{names[filename]}]" if filename in names else ""


def plain_title(text: str) -> str:
    """Without what the name of a file may have and a profiler writes to its JSON as it is."""
    return re.sub(r'["\\\x00-\x1f\x7f\ud800-\udfff]', "?", text)


def _hinted(hint: str) -> str:
    return f"\n  hint: {hint}" if hint else ""


class JitmagicError(RuntimeError):
    """Base of everything jitmagic raises on purpose."""

    is_bug: ClassVar[bool] = False  # of jitmagic: where in it matters

    def _render_traceback_(self) -> list[str]:
        """Asked by IPython: the traceback as far as the user's line."""
        traceback = self.__traceback__ if self.is_bug else _as_far_as_user(self.__traceback__)
        show = notebook_shell().InteractiveTB.structured_traceback
        shown: list[str] = show(type(self), self, traceback)
        return shown


class TaggingError(JitmagicError, TypeError):
    """The object cannot be tagged: a generator, a coroutine, no callable, a class of no module."""

    def __init__(self, what: str, reason: str, hint: str) -> None:
        super().__init__(f"cannot compile {what}: {reason}{_hinted(hint)}")


class OptionError(JitmagicError, TypeError):
    """An option, mode, backend or flag that does not exist, with the ones that do."""

    def __init__(
        self, kind: str, given: object, known: tuple[str, ...], others: tuple[object, ...] = ()
    ) -> None:
        wrong = ", ".join(_with_nearest(name, known) for name in (given, *others))
        super().__init__(f"unknown {kind} {wrong}; known: {', '.join(known)}")


class UsageError(JitmagicError, TypeError, ValueError):
    """An argument that does not fit, as Python's own functions raise for theirs."""

    @classmethod
    def unknown(cls, kind: str, given: object, known: Iterable[str]) -> UsageError:
        """Of a name that does not exist, with the ones that do."""
        names = tuple(known)
        return cls(f"no {kind} {_with_nearest(given, names)}; known: {', '.join(names)}")


def _with_nearest(name: object, known: tuple[str, ...]) -> str:
    nearest = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.6)
    return f"{name!r}" + (f" (did you mean {nearest[0]!r}?)" if nearest else "")


class Unsupported(JitmagicError):
    """`fullgraph=True` and the code breaks the graph. Carries reason, hint and the user's line."""

    def __init__(self, reason: str, hint: str, where: UserLine | None) -> None:
        self.reason, self.hint, self.where = reason, hint, where
        place = f"\n  {where}" if where else ""
        super().__init__(f"{reason}{place}{_hinted(hint)}")


class NativeMissing(JitmagicError, ImportError):
    """The native part cannot be loaded; the message says which command mends it."""

    def __init__(self, module: str, cause: str, command: str) -> None:
        super().__init__(
            f"jitmagic's native part {module} cannot be used: {cause}\n  mend it with: {command}"
        )


class CompileFailed(JitmagicError):
    """A compile stage failed. The original exception is the cause."""


class SizesDiffer(CompileFailed):
    """What a trace said of all sizes is not so at those of a call: nothing of it may run."""


class OperationFailed(CompileFailed):
    """A stage refuses one operation; `node` of the torch-level graph is that operation."""

    def __init__(self, name: str, why: str, node: Any, where: UserLine | None = None) -> None:
        self.name, self.why, self.node, self.where = name, why, node, where
        place = f"\n  {where}" if where else ""
        super().__init__(f"autograd: {name}: {why}{place}")


class ToolchainError(CompileFailed):
    """The external compiler refused generated code; its own words are in the message."""

    def __init__(self, tool: str, command: str, output: str) -> None:
        self.tool, self.command, self.output = tool, command, output
        super().__init__(f"{tool} failed\n  command: {command}\n{output.rstrip()}")


class VerifyError(JitmagicError):
    """A verifier found a malformed stage result; a bug in jitmagic, never in user code."""

    is_bug = True


class BytecodeError(VerifyError):
    """A body of bytecode that cannot be represented, analysed or assembled without a guess."""


class DoubleBackward(JitmagicError):
    """Gradients that can be differentiated, or many at once, of a graph that cannot run again."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "a backward with create_graph=True (double backward) or is_grads_batched=True runs the "
            f"graph once more, which cannot be done here: {why}\n"
            "  hint: call the original with jitmagic.disable(fn) where second-order gradients "
            "are needed"
        )


class OutdatedBackward(JitmagicError):
    """A backward that has to run as the program wrote it, of a graph that cannot run again."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"{count} inputs of the graph were written to since the forward, which has to run "
            "again: the backward of an autograd function reads them, or Python's state, as they "
            "are now\n  hint: save them by ctx.save_for_backward"
        )


class ReportError(JitmagicError, OSError):
    """A report or a script cannot be written; nothing was changed. Names the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}{_hinted(remedy)}")


class JitmagicWarning(UserWarning):
    """Base of all jitmagic warnings."""


class FallbackWarning(JitmagicWarning):
    """Something runs slower than asked for, correctly."""


class RecompileWarning(JitmagicWarning):
    """A function met its recompile limit; further new signatures run as eager."""


class EagerNotice(JitmagicWarning):
    """What a filter names to silence the line that says where a function runs as plain Python."""


_OURS = frozenset({"jitmagic", "torch"})  # packages whose lines the user did not write


def is_ours(frame: FrameType) -> bool:
    """Whether the frame runs a line that the user did not write."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS


def _as_far_as_user(traceback: TracebackType | None) -> TracebackType | None:
    """Without frames of ours at its end; the whole where nothing but these is in it."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    last = len(entries)
    while last and is_ours(entries[last - 1].tb_frame):
        last -= 1
    made = None
    for entry in reversed(entries[: last or None]):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def warn(
    text: str, category: type[JitmagicWarning] = FallbackWarning, where: UserLine | None = None
) -> None:
    """Warn at `where`, else at the innermost line of the user's (a call stub stands at the
    function's first)."""
    if where is not None:
        warnings.warn_explicit(text, category, where.filename, where.lineno)
        return
    level, frame = 2, sys._getframe(1)
    while is_ours(frame):
        if frame.f_back is None:  # a thread of autograd's has no line of the user's
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
