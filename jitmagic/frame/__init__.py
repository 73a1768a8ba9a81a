"""frame: tagging, handles, entries and the PEP 523 frame hook.

`tag` replaces what the user tagged with a call stub, which passes its arguments to a native
dispatcher. The dispatcher's `Handle` compiles calls that no entry fits. `hook` gives callees
reached from tagged code handles of their own, `skip` lists code that is never hooked, and `native`
lowers guards to native programs. This package does not know the tracer or the compiler: the compile
function is injected.
"""

from __future__ import annotations

from . import native  # noqa: F401  # first: raises NativeMissing with the remedy
