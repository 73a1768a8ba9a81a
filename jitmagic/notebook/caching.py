"""caching: `%jit_cache` shows the cache on disk, empties it, and packs and unpacks bundles.

Input: the parsed options of the magic, and the notebook's names. Output: the reports of
`jitmagic.cache`, which IPython shows. Options that a command does not take are usage errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.core.error import UsageError

from ..api import handle_of
from ..errors import BundleError
from ..errors import UsageError as WrongArgument
from ..late import load

__all__ = ["run_command"]

_TAKES = {"": (), "list": ("kind",), "clear": ("kind", "older_than"), "bundle": (), "unbundle": ()}


def run_command(options: Mapping[str, Any], namespace: Mapping[str, object]) -> object:
    """Run a command of %jit_cache and return its report; raises IPython's UsageError."""
    command, names = options["command"], [name.strip("'\"") for name in options["names"]]
    given = {n: options[n] for n in ("kind", "older_than") if options[n] is not None}
    if wrong := [name for name in given if name not in _TAKES[command]]:
        option = wrong[0].replace("_", "-")
        raise UsageError(f"%jit_cache {command}: --{option} is an option of other commands")
    if command not in ("bundle", "unbundle") and names:
        raise UsageError(f"%jit_cache {command}: {names[0]!r} is one argument too many")
    if command in ("bundle", "unbundle") and (not names or (command == "unbundle" and names[1:])):
        raise UsageError(f"%jit_cache {command} takes the path of a bundle, such as x.jmz")
    cache = load("diagnostics.cache").cache
    try:
        if command == "bundle":
            return cache.bundle(names[0], *(_target(name, namespace) for name in names[1:]))
        return getattr(cache, command)(*names, **given) if command else cache
    except (BundleError, WrongArgument) as error:
        raise UsageError(f"%jit_cache {command}: {error}") from error


def _target(name: str, namespace: Mapping[str, object]) -> object:
    """Return what a name stands for: a tagged object of the notebook, or a name in the cache."""
    found = namespace.get(name)
    return found if handle_of(found) is not None else name
