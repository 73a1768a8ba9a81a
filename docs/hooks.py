"""What mkdocs adds to the pages that are written by hand.

Comes in: pages with ```python blocks, and the classes of jitmagic.trace.breaks. Goes out: each
block with what it prints below it (the blocks of a page are one program, run when the site is
built), and breaks.md, a section for each reason. tests/docs runs the same blocks.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

import jitmagic
from jitmagic.trace import breaks

_BLOCK = re.compile(r"^```python(?: result=(\w+))?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_MARK = "\x1eend of block\x1e"
_HEAD = """# Graph breaks

A graph break is a place where your code does what a graph cannot hold. The operation there runs as
plain Python, with its own result and its own traceback, and what follows is compiled again.
`jitmagic.explain(f)(x)` shows each break on your line; `fullgraph=True` makes an error of it.
These are all the reasons that it may name (made from the classes of `jitmagic/trace/breaks.py`).
"""


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: before pages are read."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "breaks.md", content=breaks_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs: a page's text; blocks get their output."""
    results = iter(outputs(markdown, page.file.name))

    def shown(block: re.Match[str]) -> str:
        code = f"```python\n{block[2]}```\n"
        result = next(results).strip("\n")
        return f"{code}\n```{block[1] or 'text'}\n{result}\n```\n" if result else code

    return _BLOCK.sub(shown, markdown)


def outputs(markdown: str, name: str) -> list[str]:
    """What each block of a page prints; what one raises is raised, at its line of `name`.py."""
    blocks = [match[2] for match in _BLOCK.finditer(markdown)]
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        script = Path(folder, f"{name}.py")
        script.write_text(f"print({_MARK!r})\n".join(blocks))
        jitmagic.reset()
        runpy.run_path(str(script), run_name=name)
    return printed.getvalue().split(f"{_MARK}\n")


def breaks_page() -> str:
    """Markdown: a section for each reason, by its class."""
    reasons = [made for made in map(breaks.__dict__.get, breaks.__all__) if _is_reason(made)]
    return _HEAD + "".join(_section(reason) for reason in reasons)


def _is_reason(made: Any) -> bool:
    return isinstance(made, type) and issubclass(made, breaks.Reason) and made is not breaks.Reason


def _section(reason: type[breaks.Reason]) -> str:
    lines = [
        f"\n## {reason.title}\n",
        f"It says: `{_filled(reason.template)}` (`{reason.__name__}`)\n",
        f"{reason.explanation}\n",
    ]
    if reason.advice:
        lines.append(f"**What to do:** {_filled(reason.advice)}.\n")
    if reason.expected:
        lines.append("No notice is shown for it: this is what the program says.\n")
    return "\n".join(lines)


def _filled(template: str) -> str:
    return re.sub(r"\{(\w+)[^}]*\}", r"<\1>", template)
