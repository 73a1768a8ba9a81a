"""The public object `jitmagic.lazy`: a context manager, and what is recorded at the moment.

State is per thread. The native module is loaded by the first block; until then nothing of torch is
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import UserLine, warn
from ..extension import lazy_module
from ..late import load
from ..torch_types import AnyFunction

__all__ = ["Counts", "Lazy", "PendingCall", "PendingCalls", "lazy"]


class PendingCall(NamedTuple):
    """A recorded operation: its name, its results' shapes and dtypes, and the user's line."""

    name: str
    results: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    line: UserLine | None

    def __str__(self) -> str:
        results = ", ".join(
            f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, dtype in self.results
        )
        where = f"  {self.line.file}:{self.line.lineno}  {self.line.text}" if self.line else ""
        return f"{self.name} -> {results or 'in place'}{where}"


class PendingCalls(tuple[PendingCall, ...]):
    """The operations that wait to be run, oldest first; prints as one line for each."""

    __slots__ = ()

    def __repr__(self) -> str:
        head = f"{len(self)} pending operation{'' if len(self) == 1 else 's'}"
        return "\n".join([head, *(f"  {call}" for call in self)])


class Counts(NamedTuple):
    """Counts what all blocks of this process have done so far."""

    recorded: int  # operations
    batches: int  # times that recorded operations were run
    compiled: int  # graphs, of which a batch that repeats others compiles none
    cached: int  # batches that ran without a compile
    replayed: int  # batches that ran operation by operation: single ones, and after an error


class Lazy:
    """Makes blocks in which operations are recorded, and shows what they have recorded."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Record the operations of this thread, and run them when a value is needed.

        Blocks nest; whatever is pending is computed at the end of each.
        """
        native = _native()
        native.enter()
        try:
            yield
        finally:
            native.leave()

    def pending(self) -> PendingCalls:
        """Return the operations of this thread that are recorded and not run yet."""
        found = _native().pending()
        return PendingCalls(
            PendingCall(name.removeprefix("aten::"), results, UserLine(*line) if line else None)
            for name, results, line in found
        )

    def flush(self) -> None:
        """Run what this thread has recorded; the block goes on."""
        _native().flush()

    def counts(self) -> Counts:
        """Return what all blocks of this process have done so far."""
        return Counts(*_native().counts())

    def __repr__(self) -> str:
        return "jitmagic.lazy"


@cache
def _native() -> Any:
    native = lazy_module()
    roots = Path(torch.__file__).parent, Path(__file__).parents[1]
    folders = tuple(f"{root}/" for root in roots)
    native.set_callbacks(_infer, _compile, _report_fault, folders)
    return native


def _infer(*call: object) -> object:
    """Infer the results of a call; the modules for that are imported by the first one."""
    return load("lazy_mode.inference").infer(*call)


def _compile(batch: object) -> AnyFunction:
    """Return the function of a batch; the modules for that are imported by the first one."""
    compile_batch: Callable[[object], AnyFunction] = load("lazy_mode.compiling").compile_batch
    return compile_batch(batch)


def _report_fault(error: str) -> None:
    warn(
        f"a graph that jitmagic.lazy() compiled raised {error}\n  Its operations raise nothing; "
        "they run one by one from now on. jitmagic.report() collects what to report about it"
    )


lazy = Lazy()
