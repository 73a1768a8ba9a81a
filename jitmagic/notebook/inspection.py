"""inspection: shows a magic's help for Shift-Tab on its line.

Input: a shell with a kernel. Output: the kernel's reply to a front end's inspect request. IPython
looks a word up as Python code, so `%%compile` would show the help of Python's compile(), and an
option nothing. A shell without a kernel gets no such requests; `%%compile?` works there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

__all__ = ["install_inspection", "remove_inspection"]

_MAGIC = re.compile(r"%{1,2}\w+")


def install_inspection(shell: Any, magics: Iterable[str]) -> None:
    """Replace the kernel's do_inspect; `magics`: their names with `%` or `%%`."""
    kernel = getattr(shell, "kernel", None)
    if (plain := getattr(type(kernel), "do_inspect", None)) is not None:
        kernel.do_inspect = partial(_inspect, shell, plain, frozenset(magics))  # type: ignore[union-attr]


def remove_inspection(shell: Any) -> None:
    """Undo install_inspection."""
    if hasattr(getattr(shell, "kernel", None), "do_inspect"):
        vars(shell.kernel).pop("do_inspect", None)


def _inspect(
    shell: Any, plain: Any, magics: frozenset[str], code: str, cursor_pos: int, *further: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """Answer an inspect request, with the help of a magic on its line."""
    line = code[code.rfind("\n", 0, cursor_pos) + 1 :].partition("\n")[0].lstrip()
    magic = _MAGIC.match(line)
    if magic is None or magic[0] not in magics:
        return plain(shell.kernel, code, cursor_pos, *further, **options)
    shown = shell.object_inspect_mime(magic[0])
    return {"status": "ok", "found": True, "data": shown, "metadata": {}}
