"""frame: tagging, handles, entries and the frame hook.

`tag` puts a call stub in place of what the user tagged; the stub hands its arguments to a native
dispatcher; a `Handle` belongs to each dispatcher and compiles what no entry fits. `hook` gives
callees reached from tagged code handles of their own, `skip` says which code is never touched,
and `native` lowers guards to native programs. Knows nothing of tracing and compiling: the compile
function is injected.
"""

from __future__ import annotations

from . import native  # noqa: F401  # first of all: says NativeMissing, with the remedy
