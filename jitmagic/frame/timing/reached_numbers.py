"""Notes the numbers that a function reaches, before it is compiled.

In: the snapshot of a call. Out: a guard for each number that the function's variables reach through
containers, attributes and modules: learning rates, loss scales, counters. A guard that fails in a
later call tells a number that changes, which the first trace then takes as an input. Without this a
trace is made only to find them: 0.43 s in a script of 3 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import nn

from ...bytecode import FrameSnapshot
from ...errors import UserLine
from ...guards.check import is_number
from ...guards.guard import ValueEquals
from ...guards.live_objects import instance_dict
from ...guards.source import Argument, CellContents, Global, InstanceDict, Item, Source

__all__ = ["reached_numbers", "variables"]

# Of objects, and of what one holds: 2,000 take 10 ms; a vocabulary is no setting.
_MOST, _LARGE = 2000, 64
_Reached = tuple[Source, object]


def reached_numbers(snapshot: FrameSnapshot) -> tuple[ValueEquals, ...]:
    """Return a guard for each number reached from arguments, enclosing and global variables."""
    code = snapshot.code
    where = UserLine(code.co_filename, code.co_firstlineno, code.co_name)
    found, seen = [], set[int]()
    queue = deque(variables(snapshot))
    while queue and len(seen) < _MOST:
        source, value = queue.popleft()
        if is_number(value):
            found.append(ValueEquals(source, value, where=where))
        elif id(value) not in seen:
            seen.add(id(value))
            queue.extend(_parts(source, value))
    return tuple(found)


def variables(snapshot: FrameSnapshot) -> Iterator[_Reached]:
    """Yield the arguments, enclosing and global variables of a function, each with its source."""
    names = chain(snapshot.code.co_varnames[: len(snapshot.args)], snapshot.code.co_freevars)
    arguments = [Argument(index, name) for index, name in enumerate(names)]
    yield from zip(arguments, snapshot.args, strict=False)
    for source, cell in zip(arguments[len(snapshot.args) :], snapshot.cells, strict=True):
        try:
            yield CellContents(source), cell.cell_contents
        except ValueError:  # the variable is not bound yet
            continue
    for name in snapshot.code.co_names:
        if name in snapshot.globals:
            yield Global(name), snapshot.globals[name]


def _parts(source: Source, value: object) -> Iterable[_Reached]:
    """Return what a container or an object with attributes holds; reading runs no code of users."""
    if type(value) in (list, tuple):
        return _small(source, enumerate(value), len(value))  # type: ignore[arg-type]
    entries, is_module = value, isinstance(value, nn.Module)
    if type(value) is not dict:
        if isinstance(value, torch.Tensor | type):
            return ()
        source = InstanceDict(source)
        try:
            entries = instance_dict(value)
        except AttributeError:
            return ()
    if type(entries) is not dict:
        return ()
    kept = ((key, part) for key, part in entries.items() if not is_module or _is_users(key))
    return _small(source, kept, len(entries))


def _is_users(key: object) -> bool:
    """Return whether an attribute of a module is not of torch's own, or leads to other modules."""
    return type(key) is str and (key == "_modules" or not key.startswith("_"))


def _small(source: Source, parts: Iterable[tuple[object, object]], size: int) -> Iterable[_Reached]:
    if size > _LARGE:
        return ()
    return [(Item(source, key), part) for key, part in parts if type(key) in (str, int)]
