"""Records functional collectives, each with the wait for its results.

A collective returns before its results are there, and its kernel reads the arguments until
`wait_tensor` returns: a memory plan, which writes over arguments after their last reader, may not
hold such a call. `wait_tensor` also returns its argument, which its schema does not say. So the
graph has an operator of jitmagic that calls the collective and waits. torch's tracing has the wait
next to the collective too (`_maybe_wrap_tensor`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch.fx import Node

from ...errors import CompileFailed
from ...graph.operators.operator_library import DEFINED, LIBRARY, defines_operators, is_registered
from ...graph.operators.shapes import infer
from ...torch_types import OpOverload
from .aten_call import AtenCall
from .sym import Sym

__all__ = ["is_collective", "record_collective"]

_SPACE = "_c10d_functional"
_WAITS = ("wait_tensor", "_wrap_tensor_autograd")  # the latter makes a tensor that waits when used
_FORMS: set[OpOverload] = set()


def is_collective(op: OpOverload) -> bool:
    return op.namespace in (_SPACE, f"{_SPACE}_autograd")


class Tracing(Protocol):
    """The interface of the recording mode that is needed here."""

    def value(self, tensor: torch.Tensor) -> Sym: ...
    def fresh(self, sym: Sym) -> torch.Tensor: ...
    def wrap(self, value: object) -> Any: ...
    def emit(self, call: AtenCall) -> Any: ...


def record_collective(mode: Tracing, call: AtenCall) -> object:
    """Record a collective and the wait for it, or the wait for a tensor from outside."""
    if call.op._opname not in _WAITS:
        return mode.wrap(mode.emit(replace(call, op=_waited(call.op))))
    sym = mode.value(call.args[0])
    if _is_waited(sym.node):
        return mode.fresh(sym)
    return mode.wrap(mode.emit(AtenCall(_waiting_copy(), call.args, {})))


def _is_waited(node: Node) -> bool:
    """Return whether the node's results are those of a collective that the graph waits for."""
    parent = node.args[0] if node.args and node.target not in _FORMS else node
    return isinstance(parent, Node) and parent.target in _FORMS


@defines_operators
def _operator_of(op: OpOverload | None) -> OpOverload:
    """Return the operator for a collective, or the one that copies (None)."""
    return _waiting_copy() if op is None else _waited(op)


@lru_cache(maxsize=64)
def _waited(op: OpOverload) -> OpOverload:
    """Define the operator that calls a collective and waits. Raises CompileFailed for others."""
    if op._schema.is_mutable or op._opname.startswith(("isend", "irecv", "batch_p2p")):
        raise CompileFailed(f"{op} communicates asynchronously")
    schema = str(op._schema)
    made = _define(f"waited_{op._opname}", schema[schema.index("(") :], op)
    DEFINED[made] = _operator_of, (op,)
    return made


@lru_cache(maxsize=1)
def _waiting_copy() -> OpOverload:
    """Define the operator that waits for a tensor from outside of the graph, and copies it."""
    made = _define("waited_copy", "(Tensor tensor) -> Tensor", torch.clone)
    DEFINED[made] = _operator_of, (None,)
    return made


def _define(name: str, signature: str, function: Callable[..., Any]) -> OpOverload:
    wait = torch.ops._c10d_functional.wait_tensor

    def run(*args: Any, **kwargs: Any) -> Any:
        if function is torch.clone:
            return wait(args[0]).clone()
        made = function(*args, **kwargs)
        return [wait(one) for one in made] if isinstance(made, list) else wait(made)

    def without_data(*args: Any, **kwargs: Any) -> Any:
        made = infer(function, args, kwargs) if isinstance(function, OpOverload) else None
        return function(*args, **kwargs) if made is None else made

    if not is_registered(name):
        LIBRARY.define(f"{name}{signature}")
        LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        LIBRARY.impl(name, without_data, "Meta")
    made: OpOverload = getattr(torch.ops.jitmagic, name).default
    _FORMS.add(made)
    return made
