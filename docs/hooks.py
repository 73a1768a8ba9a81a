"""hooks: adds the output of code blocks and a generated page to the documentation.

Input: pages with ```python blocks, and the classes of jitmagic.trace.breaks. Output: each block
with its printed output below it (the blocks of a page are one program, run when the site is built),
and breaks.md with a section for each reason of a graph break. tests/docs runs the same blocks.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import jitmagic
from jitmagic.trace import breaks

_BLOCK = re.compile(r"^```python(?: result=(\w+))?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_MARK = "\x1eend of block\x1e"
_HEAD = """# Graph breaks

A graph break is a place where your code does something that cannot be part of a graph. That
operation runs as plain Python, with the same result and traceback as in eager, and the code after
it is compiled as another graph. `jitmagic.explain(f)(x)` shows each break on your line; with
`fullgraph=True`, a break is an error. This page lists all reasons (generated from the classes of
`jitmagic/trace/breaks.py`).
"""


def on_files(files: Any, config: Any) -> Any:
    """Add the generated page; mkdocs calls this before it reads the pages."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "breaks.md", content=breaks_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text with the output of its blocks; mkdocs calls this for each page."""
    results = iter(outputs(markdown, page.file.name))

    def shown(block: re.Match[str]) -> str:
        code = f"```python\n{block[2]}```\n"
        result = next(results).strip("\n")
        return f"{code}\n```{block[1] or 'text'}\n{result}\n```\n" if result else code

    return _BLOCK.sub(shown, markdown)


def outputs(markdown: str, name: str) -> list[str]:
    """Run the blocks of a page and return the output of each; errors show lines of `name`.py."""
    blocks = [match[2] for match in _BLOCK.finditer(markdown)]
    printed = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),  # a page may write files
        contextlib.redirect_stdout(printed),
        mock.patch.dict(os.environ),  # a page may set variables
    ):
        script = Path(folder, f"{name}.py")
        script.write_text(f"print({_MARK!r})\n".join(blocks))
        jitmagic.reset()
        runpy.run_path(str(script), run_name=name)
    return printed.getvalue().split(f"{_MARK}\n")


def breaks_page() -> str:
    """Return the page about graph breaks, with a section for each class of reasons."""
    reasons = [value for value in map(breaks.__dict__.get, breaks.__all__) if _is_reason(value)]
    return _HEAD + "".join(_section(reason) for reason in reasons)


def _is_reason(value: Any) -> bool:
    if not isinstance(value, type) or value is breaks.Reason:
        return False
    return issubclass(value, breaks.Reason)


def _section(reason: type[breaks.Reason]) -> str:
    lines = [
        f"\n## {reason.title}\n",
        f"It says: `{_filled(reason.template)}` (`{reason.__name__}`)\n",
        f"{reason.explanation}\n",
    ]
    if reason.advice:
        lines.append(f"**What to do:** {_filled(reason.advice)}.\n")
    if reason.expected:
        lines.append("No message is shown for this break, because the program requests it.\n")
    return "\n".join(lines)


def _filled(template: str) -> str:
    return re.sub(r"\{(\w+)[^}]*\}", r"<\1>", template)
