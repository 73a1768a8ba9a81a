"""An Explanation as static HTML: no scripts, no outside files, readable in a saved notebook.

Colours follow the notebook's theme through `currentColor`; details fold with plain <details>. Where
styles are taken out (GitHub's view of a notebook), source keeps its lines and columns. JupyterLab
has rules of its own for <pre> and tables, which take more than one class to be overruled.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .cost import KernelCost
from .findings import Findings
from .gutter import Row, listings
from .report import (
    COMPILED,
    EAGER,
    KERNEL_COLUMNS,
    LEDGER,
    TRIAL_COLUMNS,
    cost_lines,
    elsewhere,
    good_news,
    guards_title,
    headline,
    kernel_rows,
    notes,
    outcome_lines,
    trial_rows,
)
from .words import duration

__all__ = ["STYLE", "html_body", "html_report"]

STYLE = """<style>
.jitmagic{font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;max-width:60em}
.jitmagic pre{margin:.3em 0;padding:.5em;overflow-x:auto;font-size:12px;background:#8881}
.jitmagic .no{opacity:.75;user-select:none}
.jitmagic .break{background:#e5484d33}
.jitmagic .why{color:#e5484d;color:color-mix(in srgb,#e5484d 60%,currentColor);font-weight:600}
.jitmagic .hint{opacity:.75}
.jitmagic .wide{overflow-x:auto}
.jitmagic table{border-collapse:collapse;margin:.4em 0;font-size:inherit}
.jitmagic .wide :is(td,th){padding:.1em .8em;text-align:left;border-bottom:1px solid #8884}
.jitmagic .wide td.n{text-align:right;font-variant-numeric:tabular-nums}
.jitmagic summary{cursor:pointer;font-weight:600}
.jitmagic pre.source.source{margin:.3em 0;padding:.5em;overflow-x:auto;background:#8881;
font:12px monospace}
.jitmagic .line{white-space:pre;width:max-content;min-width:100%}
.jitmagic summary.line{font-weight:400;list-style:none}
.jitmagic .source .n{opacity:.75}
.jitmagic .dear :is(.n,.no,.hint){opacity:1}
.jitmagic .kernel{margin-left:8em}
</style>"""


_GUTTER = len(EAGER) + len(COMPILED) + 2
# How yellow the dearest line is: light text on a dark page has a contrast of 4.5 on it (WCAG AA).
_DEAREST = 0.3


def html_report(findings: Findings) -> str:
    """The whole report; safe to embed (all user text is escaped)."""
    return f"{STYLE}\n{html_body(findings)}"


def html_body(findings: Findings) -> str:
    """The report for a page that has STYLE."""
    parts = [
        f"<div class='jitmagic'><b>jitmagic explain: {escape(findings.name)}</b>",
        f"<div>{escape(headline(findings))}</div>",
        *(f"<div class='why'>{escape(line)}</div>" for line in outcome_lines(findings)),
        _source(findings),
        *(f"<pre class='break'>{escape(str(b))}</pre>" for b in elsewhere(findings)),
        *(f"<div class='why'>{escape(note)}</div>" for note in notes(findings)),
        *(f"<div class='hint'>{escape(note)}</div>" for note in good_news(findings)),
        _details(LEDGER, findings.ledger, _variants_in(findings.ledger)),
        _details(guards_title(findings), findings.guards),
        _details("numbers that change from call to call", findings.numbers),
        _kernels(findings),
        _details(
            "calls of torch's own kernels", [f"{op}  ({why})" for op, why in findings.externs]
        ),
        _details("fusion decisions", findings.decisions),
        _trials(findings),
        _times(findings),
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


def _source(findings: Findings) -> str:
    """Each function; what the explained one calls is folded."""
    shown, texts = listings(findings), set[str]()
    parts = []
    for number, listing in enumerate(shown):
        head = ""
        if findings.costs:
            names = _column(EAGER, EAGER) + _column(COMPILED, COMPILED)
            head = f"<div class='line'>{names} {escape(listing.name)}</div>"
        rows = "".join(_row(row, findings, texts) for row in listing.rows)
        if number:
            parts.append(
                f"<details><summary>{escape(listing.name)}: {listing.eager:.0%} of eager, "
                f"{listing.compiled:.0%} of compiled time</summary>"
                f"<pre class='source'>{head}{rows}</pre></details>"
            )
        else:
            parts.append(f"<pre class='source'>{head}{rows}</pre>")
    parts += [f"<div class='hint'>{escape(line)}</div>" for line in cost_lines(findings)]
    return "".join(parts)


def _row(row: Row, findings: Findings, texts: set[str]) -> str:
    """A line; one with kernels opens: their code and fusions, each shown where it is met first."""
    text = f"<span class='no'>{row.number:5} </span>{escape(row.text)}"
    if findings.costs:
        kernel = f" <span class='hint'>{escape(row.owner)}</span>" if row.owner else ""
        shares = _column(EAGER, _percent(row.eager)) + _column(COMPILED, _percent(row.compiled))
        text = f"{shares}{text}{kernel}"
    dear = row.compiled >= 0.005
    shade = _DEAREST * min(1.0, row.compiled) ** 0.5
    style = f" style='background:rgba(255,208,0,{shade:.2f})'" if dear else ""
    kind = "line" + " break" * bool(row.breaks) + " dear" * dear
    gutter = _GUTTER if findings.costs else 0
    indent = " " * (gutter + 6 + len(row.text) - len(row.text.lstrip()))
    below = "".join(
        f"<div class='line'>{indent}<span class='why'>graph break: {escape(b.reason)}</span></div>"
        + (f"<div class='line hint'>{indent}hint: {escape(b.hint)}</div>" if b.hint else "")
        for b in row.breaks
    )
    if not row.kernels:
        return f"<div class='{kind}'{style}>{text}</div>{below}"
    inside = "".join(_kernel(kernel, texts) for kernel in row.kernels)
    return (
        f"<details class='line'><summary class='{kind}'{style}>{text}</summary>{inside}</details>"
        f"{below}"
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else ""


def _column(name: str, told: str) -> str:
    """A field of the gutter, as wide as the column's name."""
    return f"<span class='n'>{told:>{len(name) + 1}}</span>"


def _kernel(kernel: KernelCost, texts: set[str]) -> str:
    told = "".join(f"<div class='hint'>{escape(line)}</div>" for line in kernel.decisions)
    if kernel.text and kernel.text not in texts:
        texts.add(kernel.text)
        told += f"<pre>{escape(kernel.text)}</pre>"
    elif kernel.text:
        told += "<div class='hint'>its code is shown at a line above</div>"
    title = f"{kernel.label}: {duration(kernel.seconds)}"
    if not told:
        return f"<div class='kernel'>{escape(title)}</div>"
    return f"<details class='kernel'><summary>{escape(title)}</summary>{told}</details>"


def _variants_in(ledger: Sequence[str]) -> int:
    """What is told of each is indented."""
    return sum(not line.startswith(" ") for line in ledger)


def _details(title: str, lines: Sequence[str], number: int | None = None) -> str:
    """`number`: of what they tell, where that is not a line each."""
    if not lines:
        return ""
    text = escape("\n".join(lines))
    many = len(lines) if number is None else number
    return f"<details><summary>{title} ({many})</summary><pre>{text}</pre></details>"


def _kernels(findings: Findings) -> str:
    if not findings.kernels:
        return ""
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in kernel_rows(findings)
    )
    texts = dict.fromkeys(k.text for k in findings.kernels)
    sources = "".join(f"<pre>{escape(text)}</pre>" for text in texts)
    head = "<tr>" + "".join(f"<th>{column}</th>" for column in KERNEL_COLUMNS) + "</tr>"
    return (
        f"<details open><summary>kernels ({len(findings.kernels)})</summary>"
        f"<div class='wide'><table>{head}{rows}</table></div>"
        f"<details><summary>generated source</summary>{sources}</details></details>"
    )


def _trials(findings: Findings) -> str:
    if not findings.trials:
        return ""
    head = "".join(f"<th>{column}</th>" for column in TRIAL_COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in trial_rows(findings)
    )
    title = f"<summary>tuning ({len(findings.trials)})</summary>"
    table = f"<table><tr>{head}</tr>{rows}</table>"
    return f"<details>{title}<div class='wide'>{table}</div></details>"


def _times(findings: Findings) -> str:
    rows = "".join(
        f"<tr><td>{escape(stage)}</td><td class='n'>{seconds * 1e3:.1f} ms</td></tr>"
        for stage, seconds in findings.compile_times
    )
    table = f"<div class='wide'><table>{rows}</table></div>"
    return f"<details><summary>compile time</summary>{table}</details>"
