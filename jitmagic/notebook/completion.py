"""What <TAB> offers after the magics: options, their values, names of what can be tagged.

Comes in: the line up to the cursor. Goes out: words. They come from a matcher, which has Jedi stay
silent where it knows something (a hook, IPython's older way, does not): what stands after a magic
is no Python.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..api import handle_of
from .arguments import VALUES, options_of

__all__ = ["complete", "install_completion", "remove_completion"]

_MAGICS = ("%%compile", "%compile", "%jit_timeit", "%compile_off", "%compile_status")
_TAGGED = frozenset({"%compile_off", "%compile_status"})
_IDENTIFIER = "jitmagic"


def complete(line: str, names: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The word at the end of `line` as far as it is written, and what it may become."""
    magic, *before = line.split()
    written = before.pop() if before and not line[-1].isspace() else ""
    if before and before[-1] in VALUES:
        offered: Iterable[str] = VALUES[before[-1]]
    elif written.startswith("-"):
        offered = [option for option in options_of(magic) if option not in before]
    elif magic in ("%%compile", "%jit_timeit"):
        offered = () if written else options_of(magic)
    else:
        offered = _nameable(names, magic in _TAGGED)
    return written, [word for word in sorted(offered) if word.startswith(written)]


def _nameable(names: Mapping[str, Any], tagged: bool) -> list[str]:
    """Names of what can be tagged, or is."""
    return [
        name
        for name, value in names.items()
        if not name.startswith("_") and callable(value) and (handle_of(value) is not None) == tagged
    ]


class _Completion(NamedTuple):
    """As IPython's SimpleCompletion."""

    text: str
    type: str = "magic"


def install_completion(shell: Any, context_matcher: Callable[..., Any]) -> None:
    """Have IPython ask; `context_matcher` is the decorator of its completer."""
    matcher = context_matcher(identifier=_IDENTIFIER)(_matcher(weakref.ref(shell)))
    shell.Completer.custom_matchers.append(matcher)


def remove_completion(shell: Any) -> None:
    """Undo install_completion."""
    kept = [m for m in shell.Completer.custom_matchers if not _is_ours(m)]
    shell.Completer.custom_matchers[:] = kept


def _is_ours(matcher: Any) -> bool:
    return getattr(matcher, "matcher_identifier", "") == _IDENTIFIER


def _matcher(shell: weakref.ref[Any]) -> Callable[[Any], dict[str, Any]]:
    def matcher(context: Any) -> dict[str, Any]:
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
