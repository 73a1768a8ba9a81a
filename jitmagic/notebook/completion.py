"""What <TAB> offers after the magics: options, their values, names of what can be tagged.

Comes in: the line up to the cursor. Goes out: words. IPython asks a hook per magic; nothing of it
is called at any other time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..api import handle_of
from ..options import BACKENDS, MODES

__all__ = ["complete", "install_completion", "remove_completion"]

_OF_JIT = ("--backend", "--dynamic", "--fullgraph", "--mode")
_OPTIONS = {
    "%%compile": (*_OF_JIT, "--annotate", "--explain", "--quiet", "--time"),
    "%compile": _OF_JIT,
    "%jit_timeit": ("--seconds", "--vs"),
    "%compile_off": (),
    "%compile_status": (),
}
_VALUES = {"--mode": MODES, "--backend": BACKENDS}
_TAGGED = frozenset({"%compile_off", "%compile_status"})
_HOOK = "complete_command"


def complete(line: str, symbol: str, names: Mapping[str, Any]) -> list[str]:
    """Words that may stand at the end of `line`, of which `symbol` is the part already written."""
    magic, *before = line.split()
    written = before.pop() if before and not line[-1].isspace() else ""
    if before and before[-1] in _VALUES:
        offered: Iterable[str] = _VALUES[before[-1]]
    elif written.startswith("-"):
        offered = [option for option in _OPTIONS[magic] if option not in before]
    elif magic in ("%%compile", "%jit_timeit"):
        offered = () if written else _OPTIONS[magic]
    else:
        offered = _nameable(names, magic in _TAGGED)
    # IPython replaces `symbol`, which may be less than the word: it breaks words at dashes.
    kept = len(written) - len(symbol)
    return [word[kept:] for word in sorted(offered) if word.startswith(written)]


def _nameable(names: Mapping[str, Any], tagged: bool) -> list[str]:
    """Names of what can be tagged, or is."""
    return [
        name
        for name, value in names.items()
        if not name.startswith("_") and callable(value) and (handle_of(value) is not None) == tagged
    ]


def install_completion(shell: Any) -> None:
    """Have IPython ask for each magic."""
    for magic in _OPTIONS:
        shell.set_hook(_HOOK, _completer(weakref.ref(shell)), str_key=magic)


def remove_completion(shell: Any) -> None:
    """IPython has no way to take a hook back but this table."""
    for magic in _OPTIONS:
        shell.strdispatchers[_HOOK].strs.pop(magic, None)


def _completer(shell: weakref.ref[Any]) -> Callable[[Any, Any], list[str]]:
    def completer(_: Any, event: Any) -> list[str]:
        here = shell()
        if here is None:
            return []
        hidden = here.user_ns_hidden
        own = {name: value for name, value in here.user_ns.items() if name not in hidden}
        return complete(event.line, event.symbol, own)

    return completer
