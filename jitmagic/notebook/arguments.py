"""arguments: declares the options of the magics with IPython's magic_arguments.

Input: the line of a magic. Output: its options as a dictionary, or a UsageError that suggests the
nearest option or value. `%%compile?` and completion use the same declarations.
"""

from __future__ import annotations

import difflib
import re
from argparse import REMAINDER
from collections.abc import Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments

from ..options import BACKENDS, MODES
from ..torch_types import AnyFunction

__all__ = ["CACHE_COMMANDS", "VALUES", "declared", "defaults_of", "options_of", "parse"]

VALUES: Mapping[str, tuple[str, ...]] = {"--mode": MODES, "--backend": BACKENDS}
_OF_JIT = (
    argument("--mode", choices=MODES, default="default", metavar="M", help=", ".join(MODES)),
    argument(
        "--backend",
        default="native",
        metavar="B",
        help=f"{', '.join(BACKENDS)}, or the name of a callable in the notebook",
    ),
    argument("--fullgraph", action="store_true", help="raise an error where a graph breaks"),
    argument(
        "--dynamic",
        action="store_true",
        default=None,
        help="one variant serves all sizes from 2 on",
    ),
)
_OF_CELLS = (
    argument(
        "--lazy",
        action="store_true",
        help="tag nothing: record the cell's tensor operations, and compile and run them when a "
        "value is needed",
    ),
    argument(
        "--explain",
        action="store_true",
        help="show what was captured, where graphs break and why, and the kernels",
    ),
    argument(
        "--annotate",
        action="store_true",
        help="the same, with what each line costs, eager and compiled: the graphs run on made-up "
        "tensors; your code does not run again",
    ),
    argument(
        "--time",
        action="store_true",
        help="show how long the cell took, and how much of it was compiling",
    ),
    argument(
        "--quiet",
        action="store_true",
        help="do not show what was compiled or what runs as plain Python",
    ),
)
_OF_TIMING = (
    argument("--seconds", type=float, default=1.0, metavar="S", help="seconds to measure, 1"),
    argument(
        "--vs",
        default="",
        metavar="EXPRESSION",
        help="another expression to compare with, in quotes: 'torch_compiled(x)'",
    ),
    argument("expression", nargs=REMAINDER, metavar="EXPRESSION", help="what is timed"),
)
CACHE_COMMANDS = ("list", "clear", "bundle", "unbundle")
_OF_CACHE = (
    argument(
        "command",
        nargs="?",
        default="",
        metavar="COMMAND",
        choices=("", *CACHE_COMMANDS),
        help="list, clear, bundle FILE [NAME ...], unbundle FILE; none: a summary",
    ),
    argument("names", nargs="*", metavar="NAME", help="a file, and what it is to hold: all"),
    argument("--kind", default=None, metavar="K", help="list or clear files of a kind: entry"),
    argument(
        "--older-than",
        default=None,
        metavar="AGE",
        help="clear what was last used longer ago: 12h, 30d",
    ),
)
_NAMES = argument("names", nargs="+", metavar="NAME", help="what to tag")
_DECLARED: Mapping[str, tuple[argument, ...]] = {
    "%%compile": (*_OF_JIT, *_OF_CELLS),
    "%compile": (*_OF_JIT, _NAMES),
    "%jit_timeit": _OF_TIMING,
    "%jit_cache": _OF_CACHE,
}


def declared(magic: str) -> Any:
    """Return a decorator that declares the options of a magic's method; `magic`: `%%compile`."""

    def decorate(method: AnyFunction) -> AnyFunction:
        for declare in reversed(_DECLARED[magic]):
            method = declare(method)
        decorated: AnyFunction = magic_arguments(magic.removeprefix("%"))(method)
        _parser(decorated).allow_abbrev = False  # argparse would accept prefixes of options
        return decorated

    return decorate


def _parser(method: AnyFunction) -> MagicArgumentParser:
    parser: MagicArgumentParser = method.parser  # type: ignore[attr-defined]
    return parser


def defaults_of(method: AnyFunction) -> dict[str, Any]:
    """Return the options of a magic's method by name, as they are if the line is empty."""
    found: dict[str, Any] = vars(_parser(method).parse_argstring(""))
    return found


def options_of(magic: str) -> tuple[str, ...]:
    """Return the options that a magic takes: `--mode`."""
    names = (declaration.args[0] for declaration in _DECLARED.get(magic, ()))
    return tuple(name for name in names if name.startswith("--"))


def parse(magic: str, method: AnyFunction, line: str) -> dict[str, Any]:
    """Return the options on a magic's line by name; raise UsageError for invalid ones."""
    try:
        found: dict[str, Any] = vars(_parser(method).parse_argstring(line))
        return found
    except (UsageError, ValueError) as error:  # ValueError: an unclosed quote
        usage = " ".join(_parser(method).format_usage().replace("::", "").split())
        message = f"{magic}: {error}{_nearest(str(error), magic)}\n{usage}   ({magic}? shows help)"
        raise UsageError(message) from error


def _nearest(message: str, magic: str) -> str:
    """Return a suggestion for the unknown options or value in argparse's message."""
    known = options_of(magic)
    words = [re.split("[=:]", word)[0] for word in message.split() if word.startswith("--")]
    near = [n for w in words if w not in known for n in difflib.get_close_matches(w, known, 1)]
    if (wrong := _WRONG_VALUE.match(message)) is not None:
        near += difflib.get_close_matches(wrong[2], VALUES.get(wrong[1], ()), 1, 0.3)
    return f" (did you mean {', '.join(near)}?)" if near else ""


_WRONG_VALUE = re.compile(r"argument (--\w+): invalid choice: '([^']*)'")
