"""frame: tagging, handles, entries and the PEP 523 frame hook.

`tag` replaces the user's function with a call stub, which passes its arguments to a native
dispatcher. The dispatcher tries its entries in turn. An entry is one compiled variant: guards, and
the callable to run if they pass. On a miss the dispatcher calls its `Handle`, which compiles
another entry. This package does not know the tracer or the compiler: the compile function is
injected (`family.Compiler`).

    tag, binding          replace the user's object with a stub; bind arguments as the stub does
    forwarder             tags a callable without Python code
    code_updates          apply assignments to a function's `__code__` to its stub
    handle, family        compile on a miss; the state that all handles of a function share

    ledger                the variants of a frame, the recompile limit, eviction
    per_call_growth       sizes and ints that grow by one with every call
    retries               compiles after the limit was reached
    declared_dynamic      chooses the dimensions that become symbols

    native                lowers guards to the native guard program
    hook, library         give callees handles of their own; library functions that are compiled
    never_hooked          code that the hook leaves alone, with the reason
    original, eager       run the user's code as plain Python; entries that do only that
    locked_frames         frames that hold a lock of the program

    sandbox, stance       hide a compile from the user's modes; torch.compiler.set_stance
    torch_compile_boundary  keeps torch.compile and jitmagic from tracing each other
    patched_builtins      detects replaced builtins
    user_tracebacks       tracebacks without frames of jitmagic
    recompile_warnings    the texts of warnings about the recompile limit
    eager_reports         reports that a function runs as plain Python
    agreement/            what the ranks of a distributed program compile alike
    pickling/             tagged functions and modules in pickles, with or without their code
    timing/               whether a compile pays; compiled code against eager
"""

from __future__ import annotations

from . import native  # noqa: F401  # first: raises NativeMissing with the remedy
