"""completion: completes options, their values and names after the magics.

Input: the line up to the cursor. Output: completions from a matcher of IPython's completer. Unlike
IPython's older completion hooks, a matcher can suppress Jedi, which would complete Python names:
the text after a magic is not Python.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..api import handle_of
from ..torch_types import AnyFunction
from .arguments import CACHE_COMMANDS, VALUES, options_of

__all__ = ["complete", "install_completion", "remove_completion"]

_MAGICS = (
    "%%compile",
    "%compile",
    "%jit_timeit",
    "%jit_cache",
    "%compile_off",
    "%compile_status",
)
_TAGGED = frozenset({"%compile_off", "%compile_status", "%jit_cache"})
_IDENTIFIER = "jitmagic"


def complete(line: str, names: Mapping[str, object]) -> tuple[str, list[str]]:
    """Return the incomplete word at the end of `line`, and its completions."""
    magic, *before = line.split()
    written = before.pop() if before and not line[-1].isspace() else ""
    if before and before[-1] in VALUES:
        offered: Iterable[str] = VALUES[before[-1]]
    elif written.startswith("-"):
        offered = [option for option in options_of(magic) if option not in before]
    elif magic == "%jit_cache" and not before:
        offered = CACHE_COMMANDS
    elif magic in ("%%compile", "%jit_timeit"):
        offered = () if written else options_of(magic)
    else:
        offered = _nameable(names, magic in _TAGGED)
    return written, [word for word in sorted(offered) if word.startswith(written)]


def _nameable(names: Mapping[str, object], tagged: bool) -> list[str]:
    """Return the names of callables that are tagged, or of those that are not."""
    return [
        name
        for name, value in names.items()
        if not name.startswith("_") and callable(value) and (handle_of(value) is not None) == tagged
    ]


class _Completion(NamedTuple):
    """A completion with the fields of IPython's SimpleCompletion."""

    text: str
    type: str = "magic"


def install_completion(shell: Any, context_matcher: AnyFunction) -> None:
    """Add the matcher to IPython; `context_matcher` is the decorator of its completer."""
    matcher = context_matcher(identifier=_IDENTIFIER)(_matcher(weakref.ref(shell)))
    shell.Completer.custom_matchers.append(matcher)


def remove_completion(shell: Any) -> None:
    """Undo install_completion."""
    others = [m for m in shell.Completer.custom_matchers if not _is_jitmagics(m)]
    shell.Completer.custom_matchers[:] = others


def _is_jitmagics(matcher: object) -> bool:
    return getattr(matcher, "matcher_identifier", "") == _IDENTIFIER


def _matcher(shell: weakref.ref[Any]) -> Callable[[Any], dict[str, object]]:
    def matcher(context: Any) -> dict[str, object]:
        here, line = shell(), context.text_until_cursor
        magic, blank, _ = line.partition(" ")
        if here is None or not blank or magic not in _MAGICS:
            return {"completions": []}
        hidden = here.user_ns_hidden
        own = {name: value for name, value in here.user_ns.items() if name not in hidden}
        written, words = complete(line, own)
        found = list(map(_Completion, words))
        return {"completions": found, "matched_fragment": written, "suppress": True}

    return matcher
