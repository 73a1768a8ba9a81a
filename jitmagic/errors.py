"""Defines every error and warning that jitmagic raises, as one tree.

    JitmagicError (RuntimeError)
    ├── TaggingError (TypeError)      the object given to jit() cannot be compiled at all
    ├── OptionError (TypeError)       unknown option, mode, backend or magic argument
    ├── UsageError (TypeError, ValueError)  an invalid argument of why, mark_dynamic, ...
    ├── Unsupported                   fullgraph=True, and the code has a graph break
    ├── NativeMissing (ImportError)   the C++ extensions are absent or built for another torch
    ├── UnsupportedTorch              this torch lacks a private name that jitmagic relies on
    ├── CannotKeep                    compiled code holds something that no file can hold
    ├── CompileFailed                 a stage failed; the call fell back to eager unless strict
    │   ├── CompilerUnavailable       its modules cannot be imported; reported once per process
    │   ├── CannotRender              a renderer has no line for a scalar operation
    │   ├── PassFailed                a registered pass raised, or made a graph that is not valid
    │   ├── ExtensionFailed           a rule of an operator raised, or returned a wrong result
    │   ├── OperationFailed           one operation is refused; the graph ends before it
    │   ├── SizesDiffer               a graph with dynamic sizes is not valid for a call
    │   └── ToolchainError            the C++ compiler, Triton or numba refused generated code
    ├── VerifyError                   a stage produced a malformed result: a bug in jitmagic
    │   └── BytecodeError             bytecode that cannot be analysed or assembled faithfully
    ├── ReportError (OSError)          a report or a script cannot be written there, or at all
    ├── BundleError (ValueError)       a bundle of cached files is refused, or cannot be written
    ├── DoubleBackward                create_graph=True, but the graph cannot be rerun
    └── OutdatedBackward              a backward needs its forward again; inputs were overwritten

    JitmagicWarning (UserWarning)
    ├── FallbackWarning               something runs as eager (or a lower tier) and why
    ├── RecompileWarning              the recompile limit of a function was reached
    ├── CompatibilityWarning          torch is newer than any tested one, or lacks a private name
    └── EagerNotice                   never raised: a warning filter for it silences notices

Messages say what happened, where (the user's own line) and what to do about it. The templates live
in the classes, so that each sentence is written once.
"""

from __future__ import annotations

import difflib
import linecache
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar, NamedTuple

from .lazy_dataclass import dataclass, field

__all__ = [
    "ASSERTION",
    "RUN_NAME",
    "ArtifactRefused",
    "BundleError",
    "BytecodeError",
    "CallNotSaved",
    "CannotKeep",
    "CannotRender",
    "CompatibilityWarning",
    "CompileFailed",
    "CompilerUnavailable",
    "DoubleBackward",
    "EagerNotice",
    "ExtensionFailed",
    "FallbackWarning",
    "JitmagicError",
    "JitmagicWarning",
    "ModulePath",
    "NativeMissing",
    "OperationFailed",
    "OptionError",
    "OutdatedBackward",
    "PassFailed",
    "RecompileWarning",
    "ReportError",
    "SizesDiffer",
    "TaggingError",
    "ToolchainError",
    "Unsupported",
    "UnsupportedTorch",
    "UsageError",
    "UserLine",
    "VerifyError",
    "is_ours",
    "notebook_shell",
    "plain_title",
    "this_rank",
    "warn",
    "warnings_deferred",
]


ASSERTION = "assert of jitmagic"  # what the error of a graph's own assertion names


class ModulePath(NamedTuple):
    """Names an nn.Module by the path from the traced frame, `self.body.0`, and by its class."""

    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class UserLine:
    """Describes a line of the user's source, to which messages refer.

    module: the innermost module whose code runs there, on the lines of graph nodes
    operation: the torch-level call of the node that carries the line, `layer_norm`
    """

    filename: str
    lineno: int
    function: str = ""
    module: ModulePath | None = field(default=None, compare=False, repr=False)
    operation: str = field(default="", compare=False, repr=False)

    @property
    def text(self) -> str:
        """Return the text of the line, or an empty string where the source is not known."""
        return linecache.getline(self.filename, self.lineno).strip()

    @property
    def is_in_cell(self) -> bool:
        """Return whether it is a line of a notebook's cell."""
        return bool(_cell(self.filename))

    @property
    def file(self) -> str:
        """Return the file's name without its folder, `model.py`, or a cell's, `Cell In[5]`."""
        return _cell(self.filename) or Path(self.filename).name

    def __str__(self) -> str:
        file = _cell(self.filename) or f'File "{self.filename}"'
        where = f"{file}, line {self.lineno}"
        if self.function:
            where += f", in {self.function}"
        return f"{where}\n    {self.text}" if self.text else where


RUN_NAME = "<cell>"  # the name that records give the top level of a cell under %%compile


def notebook_shell() -> Any:
    """Return IPython's shell, or None where none runs."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _cell(filename: str) -> str:
    """Return the cell with that file name as IPython's tracebacks name it; "" for other files."""
    names = getattr(getattr(notebook_shell(), "compile", None), "_filename_map", {})
    return f"Cell In[{names[filename]}]" if filename in names else ""


def plain_title(text: str) -> str:
    """Replace the characters that a file name may have and a profiler does not escape in JSON."""
    return re.sub(r'["\\\x00-\x1f\x7f\ud800-\udfff]', "?", text)


def _hinted(hint: str) -> str:
    return f"\n  hint: {hint}" if hint else ""


class JitmagicError(RuntimeError):
    """Base class of the errors that jitmagic raises on purpose."""

    is_bug: ClassVar[bool] = False  # a bug of jitmagic: the traceback shows its own frames

    def _render_traceback_(self) -> list[str]:
        """Return the traceback down to the user's line; IPython calls this."""
        traceback = self.__traceback__ if self.is_bug else _as_far_as_user(self.__traceback__)
        show = notebook_shell().InteractiveTB.structured_traceback
        shown: list[str] = show(type(self), self, traceback)
        return shown


class TaggingError(JitmagicError, TypeError):
    """Says that an object cannot be tagged: a class that is no module, one without a forward."""

    def __init__(self, what: str, reason: str, hint: str) -> None:
        super().__init__(f"cannot compile {what}: {reason}{_hinted(hint)}")


class OptionError(JitmagicError, TypeError):
    """Says that an option, mode, backend or flag is unknown, and lists the known ones."""

    def __init__(
        self, kind: str, given: object, known: tuple[str, ...], others: tuple[object, ...] = ()
    ) -> None:
        wrong = ", ".join(_with_nearest(name, known) for name in (given, *others))
        super().__init__(f"unknown {kind} {wrong}; known: {', '.join(known)}")


class UsageError(JitmagicError, TypeError, ValueError):
    """Says that an argument does not fit; a TypeError and ValueError, as Python would raise."""

    @classmethod
    def unknown(cls, kind: str, given: object, known: Iterable[str]) -> UsageError:
        """Return the error for an unknown name, which lists the known ones."""
        names = tuple(known)
        return cls(f"no {kind} {_with_nearest(given, names)}; known: {', '.join(names)}")


def _with_nearest(name: object, known: tuple[str, ...]) -> str:
    nearest = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.6)
    return f"{name!r}" + (f" (did you mean {nearest[0]!r}?)" if nearest else "")


class Unsupported(JitmagicError):
    """Says that code under `fullgraph=True` breaks the graph: reason, hint and the user's line."""

    def __init__(self, reason: str, hint: str, where: UserLine | None) -> None:
        self.reason, self.hint, self.where = reason, hint, where
        place = f"\n  {where}" if where else ""
        super().__init__(f"{reason}{place}{_hinted(hint)}")


class NativeMissing(JitmagicError, ImportError):
    """Says that a native extension cannot be loaded, and which command rebuilds it."""

    def __init__(self, module: str, cause: str, command: str) -> None:
        super().__init__(
            f"jitmagic's native part {module} cannot be used: {cause}\n  mend it with: {command}"
        )


class UnsupportedTorch(JitmagicError):
    """Says that torch lacks a private name on which jitmagic relies, and the remedy."""

    def __init__(self, version: str, name: str, remedy: str) -> None:
        super().__init__(f"torch {version} has no {name}{_hinted(remedy)}")


class CannotKeep(JitmagicError):
    """Says that compiled code cannot be written to a file, because a part of it is no data."""


class CompileFailed(JitmagicError):
    """Says that a stage of a compile failed; `__cause__` is the original exception."""


class SizesDiffer(CompileFailed):
    """Says that a graph with dynamic sizes is not valid for the sizes of a call, which must not run
    it.
    """


class CompilerUnavailable(CompileFailed):
    """Says that the modules of the compiler cannot be imported: nothing is compiled."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(
            f"the compiler cannot be loaded, so every function runs as eager: "
            f"{type(cause).__name__}: {cause}"
        )


class CannotRender(CompileFailed):
    """Says that a renderer has no line for an operation."""

    def __init__(self, language: str, name: str, kind: str = "scalar operation") -> None:
        super().__init__(f"no {language} for the {kind} {name!r}")


class PassFailed(CompileFailed):
    """Says that a pass of `jitmagic.extend` raised, or made a graph that is not valid."""

    def __init__(self, name: str, stage: str, why: str) -> None:
        self.name, self.stage = name, stage
        where = stage if stage == "loops" else f"{stage} graph"
        super().__init__(f"the pass {name!r} on the {where} {why}")


class ExtensionFailed(CompileFailed):
    """Says that a rule of `jitmagic.extend` for an operator raised, or returned a wrong result."""

    def __init__(self, kind: str, name: str, function: Any, why: object) -> None:
        self.kind, self.name = kind, name
        error = why if isinstance(why, Exception) else None
        text = str(why) if error is None else f"raised {type(error).__name__}: {error}"
        place = _line_within(function, error)
        super().__init__(f"the {kind} of {name} {text}" + (f"\n  {place}" if place else ""))


def _line_within(function: Any, error: Exception | None) -> UserLine | None:
    """Return the innermost user's line of an error, else the first line of the function."""
    code, line = getattr(function, "__code__", None), 0
    traceback = None if error is None else error.__traceback__
    while traceback is not None:
        if not is_ours(traceback.tb_frame):
            code, line = traceback.tb_frame.f_code, traceback.tb_lineno
        traceback = traceback.tb_next
    return code and UserLine(code.co_filename, line or code.co_firstlineno, code.co_name)


class OperationFailed(CompileFailed):
    """Says that a stage refuses one operation, the `node` of the torch-level graph."""

    def __init__(self, name: str, why: str, node: Any, where: UserLine | None = None) -> None:
        self.name, self.why, self.node, self.where = name, why, node, where
        place = f"\n  {where}" if where else ""
        super().__init__(f"autograd: {name}: {why}{place}")


class ArtifactRefused(JitmagicError, ValueError):
    """Says that `jitmagic.load` does not take a file: it is damaged, or made for another machine or
    version.
    """

    def __init__(self, path: object, why: str, hint: str = "save it again") -> None:
        self.why = why
        super().__init__(f"{path} is not loaded: {why}{_hinted(hint)}")


class CallNotSaved(JitmagicError, TypeError):
    """Says that a loaded file has no compiled code for a call, and what differs."""

    def __init__(self, name: str, reasons: Iterable[str]) -> None:
        why = "; ".join(dict.fromkeys(reasons)) or "it has no entries"
        hint = _hinted("save it with an example of this call, or with dynamic=True")
        super().__init__(f"the file has no compiled code of {name} for this call: {why}{hint}")


class ToolchainError(CompileFailed):
    """Says that an external compiler refused generated code, and quotes its output."""

    def __init__(self, tool: str, command: str, output: str) -> None:
        self.tool, self.command, self.output = tool, command, output
        super().__init__(f"{tool} failed\n  command: {command}\n{output.rstrip()}")


class VerifyError(JitmagicError):
    """Says that a stage's result is malformed: a bug in jitmagic, never in user code."""

    is_bug = True


class BytecodeError(VerifyError):
    """Says that bytecode cannot be represented, analysed or assembled without a guess."""


class DoubleBackward(JitmagicError):
    """Says that a double or batched backward would have to rerun a graph that cannot be rerun."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "a backward with create_graph=True (double backward) or is_grads_batched=True runs the "
            f"graph once more, which cannot be done here: {why}\n"
            "  hint: call the original with jitmagic.disable(fn) where second-order gradients "
            "are needed"
        )


class OutdatedBackward(JitmagicError):
    """Says that a backward needs to rerun its forward, but inputs were overwritten since."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"{count} inputs of the graph were written to since the forward, which has to run "
            "again: the backward of an autograd function reads them, or Python's state, as they "
            "are now\n  hint: save them by ctx.save_for_backward"
        )


class ReportError(JitmagicError, OSError):
    """Says that a report or script cannot be written, and the remedy. No file was changed."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}{_hinted(remedy)}")


class BundleError(JitmagicError, ValueError):
    """Says why a bundle of cached files is refused, or cannot be written. No file was changed."""

    def __init__(self, path: Path, why: str, remedy: str) -> None:
        super().__init__(f"{path}: {why}{_hinted(remedy)}")


class JitmagicWarning(UserWarning):
    """Base class of all warnings of jitmagic."""


class FallbackWarning(JitmagicWarning):
    """Warns that code runs slower than asked for, with correct results."""


class RecompileWarning(JitmagicWarning):
    """Warns that a function reached its recompile limit: calls that match no variant run as
    eager.
    """


class CompatibilityWarning(JitmagicWarning):
    """Warns that torch is newer than jitmagic knows, or lacks names that jitmagic relies on."""


class EagerNotice(JitmagicWarning):
    """Is a category for warning filters, which silence notices about plain Python. Never raised."""


_OURS = frozenset({"jitmagic", "torch"})  # packages whose lines the user did not write


def is_ours(frame: FrameType) -> bool:
    """Return whether the frame runs code of jitmagic or torch."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS


def _as_far_as_user(traceback: TracebackType | None) -> TracebackType | None:
    """Drop the innermost frames of jitmagic and torch, unless the traceback has no others."""
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


class _Deferred(threading.local):
    warnings: list[Any] | None = None


_deferred = _Deferred()


def this_rank() -> int | None:
    """Return this process's rank in a program of several processes, else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank() if distributed.get_world_size() > 1 else None


@contextmanager
def warnings_deferred() -> Iterator[list[Any]]:
    """Collect the arguments of the block's calls of `warn`, on a thread that runs no user code."""
    before, _deferred.warnings = _deferred.warnings, []
    try:
        yield _deferred.warnings
    finally:
        _deferred.warnings = before


def warn(
    text: str, category: type[JitmagicWarning] = FallbackWarning, where: UserLine | None = None
) -> None:
    """Warn at `where`, else at the innermost line of user code.

    If that is a call stub, the line is the first one of its function.
    """
    if _deferred.warnings is not None:
        _deferred.warnings.append((text, category, where))
        return
    if (rank := this_rank()) is not None:
        text = f"rank {rank}: {text}"
    if where is not None:
        warnings.warn_explicit(text, category, where.filename, where.lineno)
        return
    level, frame = 2, sys._getframe(1)
    while is_ours(frame):
        if frame.f_back is None:  # a thread of the autograd engine runs no user code
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
