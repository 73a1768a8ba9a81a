"""Computes fingerprints of code objects: equal in two processes if and only if the code is equal.

In: a code object. Out: a SHA-256 of all that its execution depends on, with its line numbers and
without the name of its file, which differs between runs of a notebook.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import CodeType
from weakref import WeakKeyDictionary

__all__ = ["fingerprint"]

_known: WeakKeyDictionary[CodeType, str] = WeakKeyDictionary()


def fingerprint(code: CodeType) -> str:
    """Return the fingerprint of a code object and of those among its constants."""
    found = _known.get(code)
    if found is None:
        digest = hashlib.sha256()
        for part in _parts(code):
            digest.update(len(part).to_bytes(8, "little") + part)
        found = _known[code] = digest.hexdigest()
    return found


def _parts(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield code.co_linetable
    yield code.co_exceptiontable
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield repr((counts, code.co_flags, code.co_firstlineno, names)).encode()
    yield repr((code.co_name, code.co_qualname)).encode()
    for constant in code.co_consts:
        yield _constant(constant)


def _constant(value: object) -> bytes:
    """Return bytes that differ for constants of other types or values (0.0 and -0.0 too)."""
    match value:
        case CodeType():
            return fingerprint(value).encode()
        case tuple():
            return b"(" + b",".join(map(_constant, value)) + b")"
        case frozenset():
            return b"{" + b",".join(sorted(map(_constant, value))) + b"}"
    kind = type(value)
    plain = (int, float, complex, str, bytes, bool, type(None), type(...))
    # Other objects are put into code at run time, such as the dispatcher of a stub.
    text = repr(value) if kind in plain else ""
    return f"{kind.__qualname__}:{text}".encode()
