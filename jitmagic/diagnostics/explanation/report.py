"""report: renders a Page as lines of text and through rich.

The short report has at most 25 lines: verdict, chips, and the slowest lines and kernels. Plain text
and rich are rendered from the same lines; plain text leaves the styles out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ...figures import count, duration
from .findings import Findings
from .page import page_of
from .page_model import Code, CodeRow, KernelBar, Module, Page, badge

__all__ = ["full_report", "rich_report", "text_report"]

MOST_LINES = 25
_MOST_KERNELS = 4
_MOST_MODULES = 6
_OWNER = 28  # characters of an operator's name
_MOST_FACTS = 64  # characters
# Columns of code before the times, and of a kernel's name, so that a row fits 80 columns.
_WIDTH = 44
_TITLE = 32
_TONES = {"faster": "bold green", "slower": "bold red", "plain": "bold yellow"}
_STYLES = {
    "keyword": "magenta",
    "string": "green",
    "number": "cyan",
    "comment": "dim",
    "function": "blue",
    "builtin": "cyan",
}

Line = list[tuple[str, str]]  # (text, style of rich)


def text_report(found: Findings) -> str:
    """Return the short report, at most 25 lines."""
    return _joined(_short(page_of(found)))


def full_report(found: Findings) -> str:
    """Return the full report."""
    return _joined(_full(page_of(found)))


def rich_report(found: Findings) -> RenderableType:
    """Return the short report in colours."""
    return Group(*(Text.assemble(*line) for line in _short(page_of(found))))


def _joined(lines: Sequence[Line]) -> str:
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


# -- short -----------------------------------------------------------------------------------------


def _short(page: Page) -> list[Line]:
    lines = list(_head(page))
    tail = [*_largest_modules(page), *_kernel_lines(page, _MOST_KERNELS), *_last(page)]
    room = MOST_LINES - len(lines) - len(tail) - 1
    code = _code_lines(page, room)
    if code:
        lines += [[], *code]
    return [*lines, *tail][:MOST_LINES]


def _head(page: Page) -> Iterator[Line]:
    yield [(page.sentence, _TONES.get(page.verdict.tone, "bold"))]
    yield [(" · ".join(chip.text for chip in page.chips), "")]
    for warning in page.warnings[:3]:
        yield [(warning, "yellow")]


def _code_lines(page: Page, room: int) -> list[Line]:
    """Return the explained function, then annotated lines of others, as far as there is room."""
    lines: list[Line] = []
    for place, code in enumerate(page.codes):
        left = room - len(lines) - page.is_measured
        if left < 2 or not (code.is_open or place == 0):
            break
        rows = list(code.rows) if place == 0 else [row for row in code.rows if row.is_annotated]
        if place and len(rows) < len(code.rows):
            rows = [code.rows[0], *[row for row in rows if row is not code.rows[0]]]
        lines += [_columns(code)] if page.is_measured or place else []
        lines += _rows_in(rows, left)
    for each in page.elsewhere[: max(0, room - len(lines))]:
        lines.append([(f"graph break at {each.where.file}, line {each.where.lineno}: ", "red")])
        lines[-1].append((each.reason, "red"))
    return lines[:room]


def _columns(code: Code) -> Line:
    return [(f"      {code.name:<{_WIDTH}} {'eager':>8} {'compiled':>9}", "bold")]


def _rows_in(rows: Sequence[CodeRow], room: int) -> list[Line]:
    """Return all rows, or the slowest and those with breaks, with dots for omitted ones."""
    if sum(len(_row_lines(row)) for row in rows) <= room:
        return [line for row in rows for line in _row_lines(row)]
    ordered = sorted(rows, key=_weight, reverse=True)
    chosen: list[CodeRow] = []
    left = room
    for row in [rows[0], *ordered]:
        need = len(_row_lines(row)) + 1
        if row not in chosen and need <= left:
            chosen.append(row)
            left -= need
    lines: list[Line] = []
    last = -1
    for place, row in enumerate(rows):
        if row in chosen:
            lines += [[("      ...", "dim")]] if place > last + 1 else []
            lines += _row_lines(row)
            last = place
    return [*lines, [("      ...", "dim")]][:room] if last + 1 < len(rows) else lines[:room]


def _weight(row: CodeRow) -> tuple[bool, float]:
    return bool(row.breaks), max(row.eager, row.compiled)


def _row_lines(row: CodeRow) -> list[Line]:
    """Return a code line with times and badges, then each break on it with its edit or hint."""
    code: Line = [(text, _STYLES.get(kind, "")) for kind, text in row.pieces]
    line: Line = [(f"{row.number:5} ", "dim"), *code]
    if row.eager or row.compiled:
        times = f"{_time(row.eager):>8} {_time(row.compiled):>9}  "
        line.append((" " * max(1, _WIDTH - len(row.text)) + " " + times, ""))
        more = f"+{row.more_badges}" if row.more_badges else ""
        line.append(("".join(map(badge, row.badges)) + more, "cyan"))
    lines = [line]
    for each in row.breaks:
        place = " " * (6 + row.indent)
        lines.append([(f"{place}graph break: {each.reason}", "red")])
        if each.edit:
            styles = {"-": "red", "+": "green"}
            lines += [[(f"{place}{text}", styles.get(text[0], ""))] for text in each.edit]
        elif each.hint:
            lines.append([(f"{place}hint: {each.hint}", "dim")])
    return lines


def _time(seconds: float) -> str:
    return duration(seconds) if seconds else ""


def _kernel_lines(page: Page, most: int) -> list[Line]:
    if not page.kernels:
        return []
    states = dict.fromkeys(each.kernel.state for each in page.kernels if each.kernel.state)
    lines: list[Line] = [[], [("kernels", "bold"), *((f"  {one}", "dim") for one in states)]]
    lines += [_kernel_line(each) for each in page.kernels[:most]]
    if (more := len(page.kernels) - most) > 0:
        rest = sum(each.seconds for each in page.kernels[most:])
        seconds = f", {duration(rest)}" if rest else ""
        lines.append([(f"  and {more} more{seconds}", "dim")])
    return lines


def _kernel_line(each: KernelBar) -> Line:
    many = f" (x{each.count})" if each.count > 1 else ""
    owner = "" if each.kernel.is_generated else f" ({each.owner[:_OWNER]})"
    title = f"{each.title}{owner}{many}"
    place = f"{title}  {each.lines}"
    facts = f" {_time(each.seconds):>8} {each.size:>9}  {each.limit}"
    return [(f"  {badge(each.number)} ", "cyan"), (f"{place:<{_TITLE}}", ""), (facts, "dim")]


def _last(page: Page) -> Iterator[Line]:
    yield from ([(text, "yellow")] for text in page.last_recompile)
    if page.facts:
        shown = [page.facts[0]]
        for fact in page.facts[1:]:
            if sum(map(len, shown)) + len(fact) < _MOST_FACTS:
                shown.append(fact)
        more = len(page.facts) - len(shown)
        facts = "; ".join(shown) + (f"; and {more} more" if more else "")
        yield [(f"must stay the same: {facts}", "")]
    yield [(".full() has all of it as text", "dim")]


# -- full ------------------------------------------------------------------------------------------


def _full(page: Page) -> list[Line]:
    lines = [*_head(page), *([(w, "yellow")] for w in page.warnings[3:])]
    for code in page.codes:
        lines += [[], _columns(code), *(line for row in code.rows for line in _row_lines(row))]
    for each in page.elsewhere:
        lines += [[], [(f"graph break: {each}", "red")]]
    lines += list(_module_lines(page))
    lines += _kernel_lines(page, len(page.kernels))
    lines += _section("fusions that were refused", page.refused)
    for fold in (*page.folds, *page.further):
        lines += _section(fold.head, fold.lines)
    lines += _section(f"compile time: {duration(page.seconds)}", list(_stages(page)))
    lines += _section("memory over a step", list(_peaks(page)))
    lines += [[], *([(text, "dim")] for text in page.small_print)]
    return lines


def _section(title: str, texts: Sequence[str]) -> list[Line]:
    return [[], [(title, "bold")], *([(f"  {text}", "")] for text in texts)] if texts else []


def _largest_modules(page: Page) -> list[Line]:
    """Return lines of the slowest modules, in the order of the tree."""
    found = [pair for top in page.modules for pair in top.walk()]
    if len(found) <= _MOST_MODULES:  # the lines say as much
        return []
    largest = sorted(found, key=lambda pair: pair[1].part, reverse=True)[:_MOST_MODULES]
    chosen = {id(module) for _, module in largest}
    lines = [_module_line(depth, module) for depth, module in found if id(module) in chosen]
    return [[], _MODULES, *lines] if lines else []


_MODULES: Line = [(f"      {'modules':<{_WIDTH}} {'eager':>8} {'compiled':>9}", "bold")]


def _module_line(depth: int, module: Module) -> Line:
    name = f"{'  ' * depth}{module.title}  {module.kind}"
    times = f"{_time(module.eager):>8} {_time(module.compiled):>9}  {module.part:.0%}"
    return [(f"      {name:<{_WIDTH}} {times}".replace("%", " %"), "")]


def _module_lines(page: Page) -> Iterator[Line]:
    if page.modules:
        yield []
        yield _MODULES
    for top in page.modules:
        yield from (_module_line(depth, module) for depth, module in top.walk())
    for code in (code for top in page.modules for _, m in top.walk() for code in m.codes):
        yield []
        yield _columns(code)
        for row in code.rows:
            yield from _row_lines(row)


def _stages(page: Page) -> Iterator[str]:
    for flame in page.flames:
        stages = ", ".join(f"{name} {duration(seconds)}" for name, seconds in flame.stages)
        yield f"{flame.name}: {duration(flame.seconds)}: {stages}"


def _peaks(page: Page) -> Iterator[str]:
    for each in page.footprints:
        if each.why_not:
            yield f"{each.name}: not measured: {each.why_not}"
        else:
            yield f"{each.name}: {each.peaks} of {count(len(each.eager), 'operation')}"
