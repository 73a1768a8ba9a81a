"""extend: adds operators, graph passes and backends to jitmagic, from a notebook or a package.

    register_backend(name, compile_fn)   for jit(fn, backend=name)
    register_pass(stage, fn)             edits the captured, joint, forward or backward graph, or
                                         the loops that a graph becomes
    rewrite_values(program, change)      edits what loops compute, for such a pass
    register_operator(op, shape=...)     facts of an operator of torch.library: shapes, writes, cost
    register_decomposition(op, fn)       computes an operator by other torch operations
    register_lowering(op, fn)            computes an element of a result: part of fused kernels
    register_scalar(name, fn, cpp=...)   a function for lowerings, with its text in each language
    register_call(fn, ...)               how the tracer follows calls of a function
    register_renderer(name, renderer)    a code generator: kernels of another language
    register_device(type, ...)           facts of a PrivateUse1 device, and its renderer
    unregister(name)                     removes what is registered under a name

`substitute_in_graph`, `allow_in_graph`, `nonstrict_trace` and `assume_constant_result` are
decorators for `register_call`, named as torch.compiler's.

Functions that take `fn` are decorators too. Without a decorator their result removes what was
registered: by `.remove()`, or at the end of a `with` block. A package registers its extensions
through the entry-point group `jitmagic`: modules to import, or functions to call, before the first
compile. docs/pages/extending.md has examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import CannotRender, ExtensionFailed, PassFailed, UsageError
from ..late import load
from .backends import backend_names, register_backend
from .devices import register_device, register_renderer
from .registry import REGISTRIES, Registration

if TYPE_CHECKING:
    from .calls import (
        allow_in_graph,
        assume_constant_result,
        nonstrict_trace,
        register_call,
        substitute_in_graph,
    )
    from .operators import register_decomposition, register_lowering, register_operator
    from .passes import STAGES, GraphPass, LoopPass, PassContext, register_pass
    from .scalars import Scalar, register_scalar, scalar

    def rewrite_values(program: Any, change: Callable[[Any], Any]) -> Any: ...


__all__ = [
    "STAGES",
    "CannotRender",
    "ExtensionFailed",
    "GraphPass",
    "KernelSource",
    "LoopPass",
    "LoopRenderer",
    "LoopText",
    "PassContext",
    "PassFailed",
    "Registration",
    "Scalar",
    "allow_in_graph",
    "assume_constant_result",
    "line_of",
    "nonstrict_trace",
    "register_backend",
    "register_call",
    "register_decomposition",
    "register_device",
    "register_lowering",
    "register_operator",
    "register_pass",
    "register_renderer",
    "register_scalar",
    "rewrite_values",
    "scalar",
    "substitute_in_graph",
    "unregister",
]


_LATE = {
    "KernelSource": "codegen.plan",
    "LoopRenderer": "codegen.scalar_loops",
    "LoopText": "codegen.scalar_loops",
    "line_of": "operators.scalar",
    **dict.fromkeys(("STAGES", "GraphPass", "LoopPass", "PassContext"), "extend.passes"),
    "Scalar": "extend.scalars",
    "allow_in_graph": "extend.calls",
    "assume_constant_result": "extend.calls",
    "nonstrict_trace": "extend.calls",
    "register_call": "extend.calls",
    "register_decomposition": "extend.operators",
    "register_lowering": "extend.operators",
    "register_operator": "extend.operators",
    "register_pass": "extend.passes",
    "register_scalar": "extend.scalars",
    "rewrite_values": "schedule.substitution",
    "scalar": "extend.scalars",
    "substitute_in_graph": "extend.calls",
}


def __getattr__(name: str) -> Any:
    """Import what few programs need at its first use."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load(_LATE[name]), name)


def __dir__() -> list[str]:
    """Return the public names, which <TAB> shows."""
    return [*__all__]


def unregister(name: str) -> None:
    """Remove what is registered under a name; that of an operator is its overload's, such as
    "library.name.default". Raises UsageError if there is nothing.
    """
    removed = [registry.remove(name) for registry in REGISTRIES]
    if not any(removed):
        known = dict.fromkeys(name for registry in REGISTRIES for name in registry.rows)
        raise UsageError.unknown("extension", name, (*known, *backend_names()))
