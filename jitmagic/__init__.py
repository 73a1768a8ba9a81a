"""jitmagic: a torch.compile stack for notebooks.

    @jitmagic.jit
    def f(x, y): ...

    jitmagic.explain(f)(x, y)

In a notebook: `%load_ext jitmagic`, then `%%compile`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .late import importing
from .late import load as _load

with importing():
    from . import dependencies as _dependencies  # first: it reports packages that are missing
    from . import extend
    from .compat import check_names as _check_names
    from .errors import (
        BundleError,
        CompatibilityWarning,
        CompileFailed,
        DoubleBackward,
        EagerNotice,
        FallbackWarning,
        JitmagicError,
        JitmagicWarning,
        NativeMissing,
        OptionError,
        RecompileWarning,
        ReportError,
        TaggingError,
        ToolchainError,
        Unsupported,
        UnsupportedTorch,
    )
    from .errors import warn as _warn
    from .lazy_mode import lazy
    from .options import Options
    from .options import logs_asked_for as _logs_asked_for
    from .options import trace_asked_for as _trace_asked_for
    from .platforms import builds_native as _builds_native
    from .progress import install as _show_progress
    from .quantised_linear import quantize_weights

    try:
        from .api import (
            disable,
            graph_break,
            is_compiling,
            jit,
            mark_dynamic,
            mark_static,
            mark_unbacked,
            reset,
            wait,
        )

        _MAGICS = "notebook.magics"
    except NativeMissing as error:
        if _builds_native():
            raise
        from .without_native import (  # type: ignore[assignment, no-redef]
            because,
            disable,
            graph_break,
            is_compiling,
            jit,
            mark_dynamic,
            mark_static,
            mark_unbacked,
            reset,
            wait,
        )

        because(error)
        _MAGICS = "without_native"

if TYPE_CHECKING:
    from .diagnostics.cache import cache
    from .diagnostics.checking.input_variation import test
    from .diagnostics.checking.minify import minify
    from .diagnostics.checking.passport import passport
    from .diagnostics.explanation.explain import Explanation, explain
    from .diagnostics.graphs import graphs
    from .diagnostics.issue_report import Report, report
    from .diagnostics.logs import logs
    from .diagnostics.lowered import lower
    from .diagnostics.status import status
    from .diagnostics.timeline import timeline
    from .diagnostics.why import why
    from .exporting.export import export
    from .packaging.ahead import aot
    from .packaging.loading import load
    from .packaging.saving import save

__all__ = [
    "BundleError",
    "CompatibilityWarning",
    "CompileFailed",
    "DoubleBackward",
    "EagerNotice",
    "Explanation",
    "FallbackWarning",
    "JitmagicError",
    "JitmagicWarning",
    "NativeMissing",
    "OptionError",
    "Options",
    "RecompileWarning",
    "Report",
    "ReportError",
    "TaggingError",
    "ToolchainError",
    "Unsupported",
    "UnsupportedTorch",
    "aot",
    "cache",
    "disable",
    "explain",
    "export",
    "extend",
    "graph_break",
    "graphs",
    "is_compiling",
    "jit",
    "lazy",
    "load",
    "logs",
    "lower",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "minify",
    "passport",
    "quantize_weights",
    "report",
    "reset",
    "save",
    "status",
    "test",
    "timeline",
    "wait",
    "why",
]

__version__ = "0.1.0"

_show_progress()
if _unfit := _check_names():
    _warn(_unfit, CompatibilityWarning)


_LATE = {
    "Explanation": "diagnostics.explanation.explain",
    "Report": "diagnostics.issue_report",
    "aot": "packaging.ahead",
    "cache": "diagnostics.cache",
    "explain": "diagnostics.explanation.explain",
    "export": "exporting.export",
    "graphs": "diagnostics.graphs",
    "load": "packaging.loading",
    "logs": "diagnostics.logs",
    "lower": "diagnostics.lowered",
    "minify": "diagnostics.checking.minify",
    "passport": "diagnostics.checking.passport",
    "report": "diagnostics.issue_report",
    "save": "packaging.saving",
    "status": "diagnostics.status",
    "test": "diagnostics.checking.input_variation",
    "timeline": "diagnostics.timeline",
    "why": "diagnostics.why",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use, because diagnostics import the result types of all stages."""
    if name not in _LATE:
        module = sys.modules[__name__]  # Python suggests the nearest of its names
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=module)
    return getattr(_load(_LATE[name]), name)


if _logs_asked_for() or _trace_asked_for():
    _load("diagnostics.logs").logs_of_environment(_logs_asked_for(), _trace_asked_for())


def __dir__() -> list[str]:
    """Return the public names, which <TAB> shows."""
    return [*__all__, "__version__"]


def load_ipython_extension(shell: Any) -> None:
    """%load_ext jitmagic"""
    _dependencies.require("%load_ext jitmagic", "IPython")
    _load(_MAGICS).load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """%unload_ext jitmagic"""
    _load(_MAGICS).unload(shell)
