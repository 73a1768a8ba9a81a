"""issue_report: `jitmagic.report` writes everything compiled as a folder or page for an issue.

    jitmagic.report(folder)     index.html, report.txt, capsules/NN_NAME/
    jitmagic.report("x.html")   one page, with the capsules' files inside

Input: the handles of tagged functions. Output: one self-contained page with the card, Explanation
and pictures of each function, and a capsule for each compiled graph (checking/capsules.py). Nothing
runs and nothing is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from html import escape
from itertools import count as numbers
from pathlib import Path

from ..api import tagged_handle
from ..frame.handle import Handle
from ..lazy_dataclass import dataclass, replace
from .builds import by_variant
from .checking.capsules import Capsule, capsule_of, versions
from .explanation.explain import Explanation, explain_records
from .explanation.html import STYLE, card_body, html_body
from .explanation.report import full_report
from .folder import PAGE_HEAD, write_folder, write_page
from .status import Card, card_of, listed_handles
from .words import count

__all__ = ["Report", "report"]

_PAGES = (".html", ".htm")  # a path with such a suffix means one file
_PICTURES = ("graph", "compile")  # not "memory": it would run the graphs


@dataclass(frozen=True, slots=True)
class _Function:
    """One tagged function or module."""

    card: Card
    found: Explanation | None  # None if nothing has been compiled
    capsules: tuple[Capsule, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The paths that `report` wrote; no capsule folders if the page contains the capsules."""

    folder: Path
    page: Path
    capsules: tuple[Path, ...]
    functions: int
    graphs: int  # one capsule each

    def __str__(self) -> str:
        counts = f"{count(self.functions, 'function')}, {count(self.graphs, 'capsule')}"
        return f"{counts}: {self.page}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # Browsers block file: links on a page that came over HTTP, so the path is text.
        return f"<div>jitmagic report: <code>{escape(str(self))}</code></div>"


def report(folder: str | Path, /, *targets: object) -> Report:
    """Write a report about `targets`, or about everything tagged, into `folder`.

    The folder gets one HTML page, the same as text, and a capsule for each compiled graph. A
    capsule has the user's code, input shapes, dtypes and strides (never tensor values), versions,
    options, generated code, and replay.py, which compares the graph with eager. A path that ends in
    .html or .htm is written as one file that contains the capsules.

    The folder is created if necessary, and an earlier report in it is replaced. Raises ReportError,
    and changes nothing, if it holds other files or cannot be written; TypeError if a target is not
    tagged.
    """
    chosen = [tagged_handle(target) for target in targets] or listed_handles()
    number = numbers(1)
    functions = [_function(handle, number) for handle in chosen]
    capsules = [capsule for function in functions for capsule in function.capsules]
    if os.fspath(folder).lower().endswith(_PAGES):
        page = write_page(folder, _page(functions, _inside))
        return Report(page.parent, page, (), len(functions), len(capsules))
    files = {"index.html": _page(functions, _linked), "report.txt": _text(functions)}
    for capsule in capsules:
        files |= {f"{_place(capsule)}/{name}": text for name, text in capsule.files.items()}
    root = write_folder(folder, files)
    places = tuple(root / _place(capsule) for capsule in capsules)
    return Report(root, root / "index.html", places, len(functions), len(capsules))


def _place(capsule: Capsule) -> str:
    return f"capsules/{capsule.name}"


def _function(handle: Handle, number: Iterator[int]) -> _Function:
    capsules = []
    for records in by_variant(handle.journal).values():
        capsule = capsule_of(records, handle.original.source_lines, handle.options)
        if capsule is not None:
            capsules.append(replace(capsule, name=f"{next(number):02}_{capsule.name}"))
    explanation = explain_records(handle) if len(handle.journal) else None
    return _Function(card_of(handle), explanation, tuple(capsules))


# -- the views -------------------------------------------------------------------------------------


def _text(functions: list[_Function]) -> str:
    parts = [_versions()]
    for function in functions:
        parts.append(str(function.card))
        parts += [full_report(function.found)] if function.found else []
        parts += [f"{_place(c)}: {_state(c)}" for c in function.capsules]
    return "\n\n".join(parts) + "\n"


def _versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in versions().items())


def _state(capsule: Capsule) -> str:
    replay = f"not replayable: {capsule.why_not}" if capsule.why_not else "python replay.py"
    return f"{capsule.title}: {capsule.outcome}; {replay}"


def _page(functions: list[_Function], show: Callable[[Capsule], str]) -> str:
    body = (
        "\n".join(_section(function, show) for function in functions) or "<p>nothing is tagged</p>"
    )
    return (
        f"{PAGE_HEAD}<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        "<meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>jitmagic report</title>{STYLE}\n"
        "<style>:root{color-scheme:light dark}body{margin:2em}section{margin:2em 0}</style>"
        f"</head><body class='jitmagic'><h1>jitmagic report</h1>\n"
        f"<p>{escape(_versions())}</p>\n{body}\n</body></html>\n"
    )


def _section(function: _Function, show: Callable[[Capsule], str]) -> str:
    parts = [f"<h2>{escape(function.card.name)}</h2>", card_body(function.card)]
    if function.found is not None:
        parts.append(html_body(function.found))
        for kind in _PICTURES:
            picture = function.found.picture(kind)
            parts.append(
                f"<details><summary>{escape(picture.title)}</summary>"
                f"{picture._repr_html_()}</details>"
            )
    parts += map(show, function.capsules)
    return f"<section>{''.join(parts)}</section>"


def _linked(capsule: Capsule) -> str:
    path = _place(capsule)
    return f"<div><a href='{path}/replay.py'>{path}</a>: {escape(_state(capsule))}</div>"


def _inside(capsule: Capsule) -> str:
    """Return the capsule's files as foldable HTML sections."""
    files = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
        for name, text in capsule.files.items()
    )
    title = f"{capsule.name}: {_state(capsule)}"
    return f"<details><summary>{escape(title)}</summary>{files}</details>"
