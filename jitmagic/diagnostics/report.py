"""An Explanation for people: plain text, and the same through rich.

Both show the user's own source with the graph breaks on their lines, then guards, kernels and
times.
"""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .findings import BreakReport, Findings
from .gutter import Row, listings
from .words import count, duration, line_numbers

__all__ = [
    "COMPILED",
    "EAGER",
    "KERNEL_COLUMNS",
    "LEDGER",
    "TRIAL_COLUMNS",
    "cost_lines",
    "elsewhere",
    "good_news",
    "guards_title",
    "headline",
    "kernel_rows",
    "notes",
    "outcome_lines",
    "rich_report",
    "text_report",
    "trial_rows",
]

GUARDS = "guards: a call that meets them all runs this code, another is compiled anew"
GUARDS_OF_SEVERAL = (
    "guards: a call that meets all of a variant's runs that one, another is compiled anew"
)
LEDGER = "variants: what was compiled, for which call, and why the one before did not fit it"
EAGER, COMPILED = "eager", "compiled"  # the columns of the gutter
DEAR = 0.1  # of compiled time: a line that is marked
SHOWN_GUARDS = 40  # in text, where nothing folds: an optimizer's step has hundreds
LIBRARY_GUARDS = "about code of installed packages"
KERNEL_COLUMNS = ("kernel", "graph", "lines", "language", "computes")
TRIAL_COLUMNS = ("graph", "what", "how", "time", "outcome")


def headline(findings: Findings) -> str:
    """One sentence: variants, and of all of them graphs, breaks, operations, kernels, time."""
    parts = [count(findings.variants, "variant")] if findings.variants > 1 else []
    parts += [
        count(findings.graph_count, "graph"),
        count(findings.graph_break_count, "graph break"),
        count(findings.op_count, "operation"),
        count(len(findings.kernels), "kernel"),
        count(len(findings.externs), "call") + " of torch's own kernels",
    ]
    hits = count(findings.cache_hits, "kernel")
    cached = f", {hits} from the disk cache" if findings.cache_hits else ""
    return f"{', '.join(parts)}; compiled in {duration(findings.seconds)}{cached}"


def guards_title(findings: Findings) -> str:
    """What the guards mean."""
    return GUARDS if findings.variants == 1 else GUARDS_OF_SEVERAL


def notes(findings: Findings) -> list[str]:
    """What a reader of the kernels and times has to know: what is not among them."""
    told = [str(each) for each in findings.compared if not each.is_kept]
    told += findings.untuned
    if findings.waiting:
        told.append(
            f"{count(findings.waiting, 'backward')} not compiled yet: that happens at the first use"
        )
    return told


def good_news(findings: Findings) -> list[str]:
    """Variants that won against eager, and what a call takes of memory."""
    won = [str(each) for each in findings.compared if each.is_kept]
    return won + [findings.memory] * bool(findings.memory)


def kernel_rows(findings: Findings) -> list[tuple[str, str, str, str, str]]:
    """(kernel, graph, lines, language, computes); the variant is named where there are several."""
    several = len({kernel.variant for kernel in findings.kernels}) > 1
    return [
        (
            kernel.name,
            f"variant {kernel.variant}: {kernel.graph}" if several else kernel.graph,
            line_numbers(kernel.lines, findings.source[0]),
            kernel.language,
            ", ".join(kernel.computes),
        )
        for kernel in findings.kernels
    ]


def outcome_lines(findings: Findings) -> list[str]:
    """Which frames run as eager, and why."""
    return [f"{name} ran as eager: {outcome.why}" for name, outcome in findings.outcomes]


def trial_rows(findings: Findings) -> list[tuple[str, str, str, str, str]]:
    """(graph, what, how, time, outcome) of everything that max-autotune tried."""
    return [
        (
            trial.graph,
            trial.subject,
            trial.config,
            f"{trial.seconds * 1e6:.1f} µs" if trial.seconds else "",
            trial.outcome + ("" if trial.measured else " (in an earlier process)"),
        )
        for trial in findings.trials
    ]


def elsewhere(findings: Findings) -> list[BreakReport]:
    """Breaks that are not on a line that is shown; one in a callee breaks its caller too."""
    shown = {b for listing in listings(findings) for row in listing.rows for b in row.breaks}
    return [b for b in dict.fromkeys(findings.break_reasons) if b not in shown]


def cost_lines(findings: Findings) -> list[str]:
    """How the shares beside the lines were measured, and what has none."""
    costs = findings.costs
    if not costs:
        return list(costs.notes)
    rest = costs.unattributed
    told = [
        f"{EAGER}, {COMPILED}: parts of {duration(costs.eager)} as eager, op by op, and of "
        f"{duration(costs.compiled)} compiled: each graph run once, on made-up tensors of its "
        "first call's sizes; a line counts what it calls; a kernel of several lines is divided "
        "among them as eager's time is"
    ]
    if rest.eager or rest.compiled:
        parts = rest.eager / (costs.eager or 1.0), rest.compiled / (costs.compiled or 1.0)
        told.append(f"operations without a line: {parts[0]:.0%}, {parts[1]:.0%}")
    return [*told, *costs.notes]


def rich_report(findings: Findings) -> RenderableType:
    """The report as rich renderables."""
    parts: list[RenderableType] = [Text(headline(findings), style="bold")]
    parts.extend(Text(line, style="yellow") for line in outcome_lines(findings))
    parts.append(_source_text(findings))
    parts.extend(Text(line, style="dim") for line in cost_lines(findings))
    parts.extend(Text(str(b), style="yellow") for b in elsewhere(findings))
    parts.extend(Text(note, style="yellow") for note in notes(findings))
    parts.extend(Text(note, style="dim") for note in good_news(findings))
    if findings.ledger:
        parts.append(Text(f"\n{LEDGER}", style="bold"))
        parts.extend(Text(f"  {line}") for line in findings.ledger)
    if findings.guards:
        parts.append(Text(f"\n{guards_title(findings)} ({len(findings.guards)})", style="bold"))
        shown = findings.guards[: len(findings.guards) - findings.library_guards][:SHOWN_GUARDS]
        parts.extend(Text(f"  {guard}") for guard in shown)
        if (more := len(findings.guards) - len(shown)) > 0:
            what = LIBRARY_GUARDS if more == findings.library_guards else "more"
            parts.append(Text(f"  and {more} {what}: all are in .guards", style="dim"))
    parts.extend(Text(f"  {number}") for number in findings.numbers)
    if findings.kernels:
        parts.append(_kernel_table(findings))
    parts.extend(Text(f"  torch's own: {op}  ({why})") for op, why in findings.externs)
    if findings.trials:
        parts.append(_trial_table(findings))
    parts.append(_time_table(findings))
    return Panel(Group(*parts), title=f"jitmagic explain: {findings.name}", title_align="left")


def _source_text(findings: Findings) -> Text:
    """The function; of those that it calls the lines with something beside them."""
    text = Text()
    shown = listings(findings)
    measured = bool(findings.costs)
    for number, listing in enumerate(shown):
        if number or measured:
            head = f"{EAGER:>5} {COMPILED:>8}   " if measured else ""
            text.append(f"{head}{listing.name}\n", style="bold")
        for row in listing.rows:
            if not number or row.eager or row.compiled or row.breaks:
                _append_row(text, row, measured)
    return text


def _append_row(text: Text, row: Row, measured: bool) -> None:
    gutter = f"{_percent(row.eager):>5} {_percent(row.compiled):>8} " if measured else ""
    text.append(f"{gutter}{row.number:5} | ", style="dim")
    style = "yellow" if row.breaks or row.compiled >= DEAR else ""
    text.append(f"{row.text}\n", style=style)
    indent = " " * (len(gutter) + len(row.text) - len(row.text.lstrip()))
    if row.owner and row.compiled >= DEAR:
        text.append(f"      ^ {indent}{row.owner}\n", style="dim")
    for b in row.breaks:
        text.append(f"      ^ {indent}graph break: {b.reason}\n", style="red")
        if b.hint:
            text.append(f"        {indent}hint: {b.hint}\n", style="dim")


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "" if not share else "<1%"


def _kernel_table(findings: Findings) -> Table:
    table = Table(title="kernels", title_justify="left", box=None)
    for column in KERNEL_COLUMNS:
        table.add_column(column)
    for row in kernel_rows(findings):
        table.add_row(*map(Text, row))  # names are no markup
    return table


def _trial_table(findings: Findings) -> Table:
    table = Table(title="tuning", title_justify="left", box=None)
    for column in TRIAL_COLUMNS:
        table.add_column(column, justify="right" if column == "time" else "left")
    for row, trial in zip(trial_rows(findings), findings.trials, strict=True):
        table.add_row(*row, style="bold" if trial.outcome == "chosen" else "")
    return table


def _time_table(findings: Findings) -> Table:
    table = Table(title="compile time", title_justify="left", box=None)
    table.add_column("stage")
    table.add_column("ms", justify="right")
    for stage, seconds in findings.compile_times:
        table.add_row(stage, f"{seconds * 1e3:.1f}")
    return table


def text_report(findings: Findings) -> str:
    """The report as plain text, 100 columns."""
    out = io.StringIO()
    # In a notebook rich would display the report by itself and leave `out` empty.
    console = Console(
        file=out, width=100, color_system=None, force_terminal=False, force_jupyter=False
    )
    console.print(rich_report(findings))
    return out.getvalue()
