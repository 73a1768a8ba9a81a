"""What Shift-Tab shows on the first line of a cell under one of the magics: the magic's help.

Comes in: a shell with a kernel. Goes out: its answer to a front end that asks what stands at the
cursor. IPython looks a word up as Python does, so that `%%compile` would show the help of Python's
compile(), and an option none. Without a kernel there is no such question: `%%compile?` is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

__all__ = ["install_inspection", "remove_inspection"]

_MAGIC = re.compile(r"%{1,2}\w+")


def install_inspection(shell: Any, magics: Iterable[str]) -> None:
    """Have the kernel answer; `magics`: as they are written."""
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
    """As the kernel's do_inspect."""
    line = code[code.rfind("\n", 0, cursor_pos) + 1 :].partition("\n")[0].lstrip()
    magic = _MAGIC.match(line)
    if magic is None or magic[0] not in magics:
        return plain(shell.kernel, code, cursor_pos, *further, **options)
    shown = shell.object_inspect_mime(magic[0])
    return {"status": "ok", "found": True, "data": shown, "metadata": {}}
