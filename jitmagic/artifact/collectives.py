"""Writes process groups, the functions by which guards ask about them, and jitmagic's operators
that call collectives.

In: a group, or a partial of a function of torch.distributed over one. Out: the group's name, its
ranks and the one that this process is in it. Programs make their groups in the same order each
time, which names them. Another rank finds another fact, and the entry is not for it. Of an operator
the data say how jitmagic defines it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ..compat.distributed import group_named
from ..errors import CannotKeep
from ..graph.operators.operator_library import DEFINED, DEFINERS
from ..torch_types import OpOverload
from .codec import Json, Reader, Writer
from .guards import Mismatch
from .references import find

__all__ = ["COLLECTIVE_READERS", "COLLECTIVE_WRITERS"]

_KIND, _QUERY, _OPERATOR = "process group", "query", "collective"
_DEFINED_IN = f"{__package__.partition('.')[0]}.graph.distributed."


def _facts(group: Any) -> Json:
    ranks = torch.distributed.get_process_group_ranks(group)
    return {"name": group.group_name, "rank": group.rank(), "ranks": ranks}


def _write_group(writer: Writer, group: Any) -> Json:
    return {"$": _KIND, **_facts(group)}


def _read_group(reader: Reader, data: Json) -> Any:
    """Return the group of that name; raises Mismatch if it is another one."""
    try:
        group = group_named(data["name"])
        found = _facts(group)
    except (LookupError, RuntimeError, ValueError) as error:
        raise Mismatch(f"there is no process group {data['name']}: {error}") from None
    if {"$": _KIND, **found} != data:
        raise Mismatch(f"the process group {data['name']} is {found}")
    return group


def _write_query(writer: Writer, query: partial[Any]) -> Json:
    if query.keywords or query.func.__module__ != torch.distributed.get_rank.__module__:
        raise CannotKeep("a partial of a function that asks about no process group")
    return {"$": _QUERY, "of": writer.write(query.func), "args": writer.write(query.args)}


def _read_query(reader: Reader, data: Json) -> partial[Any]:
    return partial(reader.read(data["of"]), *reader.read(data["args"]))


def _write_operator(writer: Writer, op: OpOverload) -> Json:
    define, args = DEFINED.get(op, (None, ()))
    if define is None or not define.__module__.startswith(_DEFINED_IN):
        return writer.operator(op)
    return {"$": _OPERATOR, "by": [define.__module__, define.__name__], "of": writer.write(args)}


def _read_operator(reader: Reader, data: Json) -> OpOverload:
    """Define the operator. Raises Mismatch if no such ones are known."""
    module, name = data["by"]
    define: Any = find((module, name)) if module.startswith(_DEFINED_IN) else None
    if not any(define is one for one in DEFINERS):
        raise Mismatch(f"{module}.{name} defines no operator")
    made: OpOverload = define(*reader.read(data["of"]))
    return made


_is_available = torch.distributed.is_available()
COLLECTIVE_WRITERS: Mapping[type, Any] = (
    {
        torch.distributed.ProcessGroup: _write_group,
        partial: _write_query,
        OpOverload: _write_operator,
    }
    if _is_available
    else {}
)
COLLECTIVE_READERS: Mapping[str, Any] = {
    _KIND: _read_group,
    _QUERY: _read_query,
    _OPERATOR: _read_operator,
}
