"""An Explanation as static HTML: no scripts, no outside files, readable in a saved notebook.

Colours follow the notebook's theme through `currentColor`; details fold with plain <details>.
"""

from __future__ import annotations

from html import escape

from .findings import Findings
from .report import (
    GUARDS,
    LEDGER,
    TRIAL_COLUMNS,
    elsewhere,
    headline,
    notes,
    outcome_lines,
    source_rows,
    trial_rows,
)

__all__ = ["html_report"]

_STYLE = """
.jitmagic{font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;max-width:60em}
.jitmagic pre{margin:.3em 0;padding:.5em;overflow-x:auto;font-size:12px;background:#8881}
.jitmagic .no{opacity:.5;user-select:none}
.jitmagic .break{background:#e5484d33;display:inline-block;width:100%}
.jitmagic .why{color:#e5484d;font-weight:600}
.jitmagic .hint{opacity:.75}
.jitmagic table{border-collapse:collapse;margin:.4em 0}
.jitmagic td,.jitmagic th{padding:.1em .8em;text-align:left;border-bottom:1px solid #8884}
.jitmagic td.n{text-align:right;font-variant-numeric:tabular-nums}
.jitmagic summary{cursor:pointer;font-weight:600}
"""


def html_report(found: Findings) -> str:
    """The whole report; safe to embed (all user text is escaped)."""
    parts = [
        f"<style>{_STYLE}</style>",
        f"<div class='jitmagic'><b>jitmagic explain: {escape(found.name)}</b>",
        f"<div>{escape(headline(found))}</div>",
        *(f"<div class='why'>{escape(line)}</div>" for line in outcome_lines(found)),
        _source(found),
        *(f"<pre class='break'>{escape(str(b))}</pre>" for b in elsewhere(found)),
        *(f"<div class='why'>{escape(note)}</div>" for note in notes(found)),
        _details(LEDGER, found.ledger),
        _details(GUARDS, found.guards),
        _details("numbers that change from call to call", found.numbers),
        _kernels(found),
        _details("calls of torch's own kernels", [f"{op}  ({why})" for op, why in found.externs]),
        _details("fusion decisions", found.decisions),
        _trials(found),
        _times(found),
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


def _source(found: Findings) -> str:
    lines = []
    for number, line, breaks in source_rows(found):
        text = f"<span class='no'>{number:5} </span>{escape(line)}"
        lines.append(f"<span class='break'>{text}</span>" if breaks else text)
        indent = " " * (6 + len(line) - len(line.lstrip()))
        for b in breaks:
            lines.append(f"{indent}<span class='why'>graph break: {escape(b.reason)}</span>")
            lines.append(f"{indent}<span class='hint'>hint: {escape(b.hint)}</span>")
    return f"<pre>{chr(10).join(lines)}</pre>" if lines else ""


def _details(title: str, lines: tuple[str, ...] | list[str]) -> str:
    if not lines:
        return ""
    text = escape("\n".join(lines))
    return f"<details><summary>{title} ({len(lines)})</summary><pre>{text}</pre></details>"


def _kernels(found: Findings) -> str:
    if not found.kernels:
        return ""
    rows = "".join(
        f"<tr><td>{escape(k.name)}</td><td>{escape(k.graph)}</td><td>{escape(k.language)}</td>"
        f"<td>{escape(', '.join(k.computes))}</td></tr>"
        for k in found.kernels
    )
    texts = dict.fromkeys(k.text for k in found.kernels)
    sources = "".join(f"<pre>{escape(text)}</pre>" for text in texts)
    head = "<tr><th>kernel</th><th>graph</th><th>language</th><th>computes</th></tr>"
    return (
        f"<details open><summary>kernels ({len(found.kernels)})</summary>"
        f"<table>{head}{rows}</table>"
        f"<details><summary>generated source</summary>{sources}</details></details>"
    )


def _trials(found: Findings) -> str:
    if not found.trials:
        return ""
    head = "".join(f"<th>{column}</th>" for column in TRIAL_COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in trial_rows(found)
    )
    title = f"<summary>tuning ({len(found.trials)})</summary>"
    return f"<details>{title}<table><tr>{head}</tr>{rows}</table></details>"


def _times(found: Findings) -> str:
    rows = "".join(
        f"<tr><td>{escape(stage)}</td><td class='n'>{seconds * 1e3:.1f} ms</td></tr>"
        for stage, seconds in found.compile_times
    )
    return f"<details><summary>compile time</summary><table>{rows}</table></details>"
