"""Loads extensions that installed packages publish, when they are first needed.

Input: the entry points of the group `jitmagic`. Each names a module, which registers what it adds
when it is imported, or a function without arguments, which is called. Output: nothing; an extension
that fails is one warning that names it, and the others are loaded all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points

from ..errors import warn

__all__ = ["GROUP", "is_loading", "load_extensions", "torch_backends"]

GROUP = "jitmagic"
_TORCH_GROUP = "torch_dynamo_backends"  # where packages publish backends for torch.compile
_lock = threading.RLock()


class _Progress:
    """The extensions that are left to load; None: not searched for yet."""

    left: list[EntryPoint] | None = None
    is_done = False


def load_extensions() -> None:
    """Load all extensions; only the first call does anything."""
    if _Progress.is_done:
        return
    with _lock:  # reentrant: an extension may tag a function with the name of a backend
        if _Progress.left is None:
            _Progress.left = _published(GROUP)
        while _Progress.left:
            _load(_Progress.left.pop(0))
        _Progress.is_done = True


def _published(group: str) -> list[EntryPoint]:
    """Return the entry points of a group. `entry_points` parses those of all packages; looking for
    the group first takes a quarter of that (0.9 ms for 80 packages).
    """
    texts = (package.read_text("entry_points.txt") for package in distributions())
    has_group = any(f"[{group}]" in text for text in texts if text)
    return list(entry_points(group=group)) if has_group else []


def is_loading() -> bool:
    """Return whether extensions are being loaded. No function is compiled before they are."""
    return _Progress.left is not None and not _Progress.is_done


def _load(extension: EntryPoint) -> None:
    try:
        loaded = extension.load()
        if callable(loaded):
            loaded()
    except Exception as error:  # it may raise anything, and the user's call needs none of it
        package = "" if extension.dist is None else f" of {extension.dist.name}"
        warn(
            f"the extension {extension.name!r}{package} ({extension.value}) is not loaded: "
            f"{type(error).__name__}: {error}"
        )


@cache
def torch_backends() -> Mapping[str, EntryPoint]:
    """Return the backends that packages publish for torch.compile, by name; jitmagic's own is not
    among them.
    """
    return {
        found.name: found
        for found in _published(_TORCH_GROUP)
        if not found.value.startswith("jitmagic.")
    }
