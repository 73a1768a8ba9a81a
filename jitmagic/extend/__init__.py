"""extend: adds backends and graph passes to jitmagic, from a notebook or from a package.

    register_backend(name, compile_fn)   for jit(fn, backend=name)
    register_pass(stage, fn)             edits the captured, joint, forward or backward graph
    unregister(name)                     removes a backend or a pass

Both register functions are decorators too, and without a decorator their result removes what was
registered: by `.remove()`, or at the end of a `with` block. A package registers its extensions
through the entry-point group `jitmagic`: modules to import, or functions to call, before the first
compile. docs/pages/extending.md has examples.
"""

from __future__ import annotations

from ..errors import PassFailed, UsageError
from .backends import BACKENDS, backend_names, register_backend
from .passes import PASSES, STAGES, GraphPass, PassContext, register_pass
from .registry import Registration

__all__ = [
    "STAGES",
    "GraphPass",
    "PassContext",
    "PassFailed",
    "Registration",
    "register_backend",
    "register_pass",
    "unregister",
]


def unregister(name: str) -> None:
    """Remove the backend or pass of that name. Raises UsageError if there is none."""
    removed = [registry.remove(name) for registry in (BACKENDS, PASSES)]
    if not any(removed):
        known = (*backend_names(), *PASSES.rows)
        raise UsageError.unknown("backend or pass", name, known)
