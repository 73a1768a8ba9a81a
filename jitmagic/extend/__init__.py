"""extend: adds backends and graph passes to jitmagic, from a notebook or from a package.

    register_backend(name, compile_fn)   for jit(fn, backend=name)
    register_pass(stage, fn)             edits the captured, joint, forward or backward graph
    register_call(fn, ...)               how the tracer follows calls of a function
    unregister(name)                     removes a backend, a pass or a function

`substitute_in_graph`, `allow_in_graph`, `nonstrict_trace` and `assume_constant_result` are
decorators for `register_call`, named as torch.compiler's.

Both register functions are decorators too, and without a decorator their result removes what was
registered: by `.remove()`, or at the end of a `with` block. A package registers its extensions
through the entry-point group `jitmagic`: modules to import, or functions to call, before the first
compile. docs/pages/extending.md has examples.
"""

from __future__ import annotations

from ..errors import PassFailed, UsageError
from .backends import BACKENDS, backend_names, register_backend
from .calls import (
    CALLS,
    allow_in_graph,
    assume_constant_result,
    nonstrict_trace,
    register_call,
    substitute_in_graph,
)
from .passes import PASSES, STAGES, GraphPass, PassContext, register_pass
from .registry import Registration

__all__ = [
    "STAGES",
    "GraphPass",
    "PassContext",
    "PassFailed",
    "Registration",
    "allow_in_graph",
    "assume_constant_result",
    "nonstrict_trace",
    "register_backend",
    "register_call",
    "register_pass",
    "substitute_in_graph",
    "unregister",
]


def unregister(name: str) -> None:
    """Remove the extension of that name. Raises UsageError if there is none."""
    removed = [registry.remove(name) for registry in (BACKENDS, PASSES, CALLS)]
    if not any(removed):
        known = (*backend_names(), *PASSES.rows, *CALLS.rows)
        raise UsageError.unknown("extension", name, known)
