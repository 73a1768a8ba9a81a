"""Defines operators that call a functional collective and wait for its results.

A collective returns before its results are there, and its kernel reads the arguments until
`wait_tensor` returns: a memory plan, which writes over arguments after their last reader, may not
hold such a call. `wait_tensor` also returns its argument, which its schema does not say. So graphs
have an operator of jitmagic for both calls. The scheduler takes it apart again, into the collective
and `wait_for`, with the other work between them; that also takes what the collective reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from ...errors import CompileFailed
from ...torch_types import OpOverload
from ..operators.operator_library import DEFINED, LIBRARY, defines_operators, is_registered
from ..operators.shapes import infer

__all__ = ["is_collective", "is_waited", "started_by", "wait_for", "waited", "waiting_copy"]

_STARTED: dict[OpOverload, OpOverload | None] = {}  # operators defined here -> the collective


def is_collective(op: OpOverload) -> bool:
    """Return whether the operator is one of torch's functional collectives, or their wait."""
    return op.namespace in ("_c10d_functional", "_c10d_functional_autograd")


def is_waited(op: object) -> bool:
    """Return whether the operator is one that waits for its results."""
    return op in _STARTED


def started_by(op: OpOverload) -> OpOverload | None:
    """Return the collective that the operator calls and waits for; None for any other."""
    return _STARTED.get(op)


@defines_operators
def operator_of(op: OpOverload | None) -> OpOverload:
    """Return the operator for a collective, or the one that copies (None)."""
    return waiting_copy() if op is None else waited(op)


@lru_cache(maxsize=64)
def waited(op: OpOverload) -> OpOverload:
    """Define the operator that calls a collective and waits. Raises CompileFailed for others."""
    if op._schema.is_mutable or op._opname.startswith(("isend", "irecv", "batch_p2p")):
        raise CompileFailed(f"{op} communicates asynchronously")
    wait = torch.ops._c10d_functional.wait_tensor

    def run(*args: Any, **kwargs: Any) -> Any:
        made = op(*args, **kwargs)
        return [wait(one) for one in made] if isinstance(made, list) else wait(made)

    def without_data(*args: Any, **kwargs: Any) -> Any:
        made = infer(op, args, kwargs)
        return op(*args, **kwargs) if made is None else made

    schema = str(op._schema)
    made = _define(f"waited_{op._opname}", schema[schema.index("(") :], run, without_data)
    DEFINED[made] = operator_of, (op,)
    _STARTED[made] = op
    return made


@lru_cache(maxsize=1)
def waiting_copy() -> OpOverload:
    """Define the operator that waits for a tensor from outside of the graph, and copies it."""
    wait = torch.ops._c10d_functional.wait_tensor
    signature = "(Tensor tensor) -> Tensor"
    made = _define("waited_copy", signature, lambda x: wait(x).clone(), torch.clone)
    DEFINED[made] = operator_of, (None,)
    _STARTED[made] = None
    return made


@defines_operators
@lru_cache(maxsize=1)
def wait_for() -> OpOverload:
    """Define the operator that waits for a result of a collective and returns it. `read`: what the
    collective reads, which is kept until then.
    """
    wait = torch.ops._c10d_functional.wait_tensor
    signature = "(Tensor started, Tensor[] read) -> Tensor"
    made = _define("wait_for", signature, lambda x, _: wait(x), lambda x, _: torch.empty_like(x))
    DEFINED[made] = wait_for, ()
    return made


def _define(
    name: str, signature: str, run: Callable[..., Any], without_data: Callable[..., Any]
) -> OpOverload:
    if not is_registered(name):
        LIBRARY.define(f"{name}{signature}")
        LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        LIBRARY.impl(name, without_data, "Meta")
    made: OpOverload = getattr(torch.ops.jitmagic, name).default
    return made
