"""pictures: draws the graph by kernel, the compile time, and memory over a step, as SVG.

    found = jitmagic.explain(fn)(*args)
    found.picture("graph")       the operations, coloured by the kernel that computes them
    found.picture("compile")     a flame of compile time: frames, graphs, stages
    found.picture("memory")      bytes alive after each operation, eager and compiled

Input: compile records. Output: a `Picture`, which notebooks show and `.save(path)` writes, without
a server, scripts or other packages.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from torch.fx import Node

from ...errors import UsageError, UserLine
from ...lazy_dataclass import dataclass
from ...loops.ir import Extern, Nest
from ...records import CompileRecord
from ..builds import Build, builds_in_use, newest_variants, nodes_of
from ..words import duration, here, size
from .footprint import Footprint, footprint_of
from .svg import COLOURS, Drawing, letters_in, width_of

__all__ = ["PICTURES", "Picture", "picture_of"]

MOST_ROWS = 400  # operations drawn one by one; in a larger graph each row is a kernel
_ROW = 20.0
_WIDE = 640.0
_TALL = 180.0
_ATEN = "#999999"  # ATen calls


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """An SVG drawing with a title."""

    title: str
    svg: str

    def save(self, path: str | Path) -> Path:
        """Write the drawing to an .svg file and return the path."""
        target = Path(path)
        if target.suffix.lower() != ".svg":
            raise UsageError(f"a picture is saved as .svg, not as {target.suffix or target.name!r}")
        target.write_text(self.svg, encoding="utf-8")
        return target

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        """Return an image element with alternative text, which front ends do not give a bare SVG.

        On a narrow screen it scrolls instead of shrinking, to keep its text readable.
        """
        data = b64encode(self.svg.encode()).decode()
        image = f'<img alt="{escape(self.title)}" src="data:image/svg+xml;base64,{data}">'
        return f"<div style='overflow-x:auto'>{image}</div>"

    def __repr__(self) -> str:
        return f"<{self.title}: .save('name.svg'), or look at it in a notebook>"


def picture_of(kind: str, name: str, records: Sequence[CompileRecord]) -> Picture:
    """Draw one of PICTURES from the compile records of the function called `name`."""
    if kind not in PICTURES:
        raise UsageError.unknown("picture", kind, PICTURES)
    title, draw = PICTURES[kind]
    drawing = Drawing()
    title = f"{title}: {name}"
    drawing.text(8, 18, title, strong=True)
    draw(drawing, records)
    return Picture(title, drawing.finished(title))


# -- the graph -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """An operation, or a whole kernel in a large graph."""

    text: str
    group: str  # the kernel
    colour: str
    reads: frozenset[int]  # indices of earlier rows
    line: UserLine | None


def _draw_graphs(drawing: Drawing, records: Sequence[CompileRecord]) -> None:
    drawn = False
    for frame in newest_variants(records):
        for build in builds_in_use(frame):
            drawing.text(8, drawing.height + 22, f"{frame[0].name}: {build.name}")
            _draw_rows(drawing, _rows_of(build, nodes_of(build)))
            drawn = True
    if not drawn:
        drawing.text(8, drawing.height + 22, "no graph was compiled by jitmagic", dim=True)


def _rows_of(build: Build, nodes: Mapping[str, Node]) -> list[_Row]:
    """Return the rows in the order of the plan."""
    steps = [step for step in build.schedule.program.steps if isinstance(step, Nest | Extern)]
    owned = [[nodes[n] for n in _origins(step) if n in nodes] for step in steps]
    single = sum(map(len, owned)) <= MOST_ROWS
    row_of: dict[Node, int] = {}
    rows: list[_Row] = []
    for number, (step, own) in enumerate(zip(steps, owned, strict=True)):
        colour = COLOURS[number % len(COLOURS)] if isinstance(step, Nest) else _ATEN
        for part in [[node] for node in own] if single and own else [own]:
            reads = {row_of[n] for node in part for n in _computed_before(node, row_of)}
            row_of.update(dict.fromkeys(part, len(rows)))
            text = ", ".join(map(_operation, part)) or step.name
            line = next((line for node in part for line in node.meta.get("lines", ())), None)
            rows.append(_Row(text, step.name, colour, frozenset(reads), line))
    return rows


def _origins(step: Nest | Extern) -> tuple[str, ...]:
    return step.origins if isinstance(step, Nest) else (step.name,)


def _operation(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return node.name if packet is None else packet.__name__


def _computed_before(node: Node, row_of: Mapping[Node, int]) -> Iterator[Node]:
    """Yield the nodes with a row that a node reads, directly or through nodes without a row.

    Views have no row, as no step computes them.
    """
    seen: set[Node] = set()
    stack = list(node.all_input_nodes)
    while stack:
        argument = stack.pop()
        if argument in seen:
            continue
        seen.add(argument)
        if argument in row_of:
            yield argument
        else:
            stack.extend(argument.all_input_nodes)


def _draw_rows(drawing: Drawing, rows: Sequence[_Row]) -> None:
    """Draw the rows below each other, with arcs for reads and a box around each kernel."""
    top, left = drawing.height + 6, 90.0
    wide = max((width_of(row.text) for row in rows), default=0) + 16
    start = 0
    for number, row in enumerate(rows):
        y = top + number * _ROW
        for before in row.reads:
            depth = min(80.0, 14.0 + 6.0 * (number - before))
            drawing.arc(left, top + (before + 0.6) * _ROW, y + 0.4 * _ROW, depth)
        last = number + 1 == len(rows) or rows[number + 1].group != row.group
        if last:
            tall = (number + 1 - start) * _ROW - 2
            drawing.box(left, top + start * _ROW, wide, tall, row.colour, row.group)
            drawing.text(left + wide + 8, top + (start + 0.7) * _ROW, row.group)
            start = number + 1
    beyond = left + wide + 24 + max((width_of(row.group) for row in rows), default=0)
    for number, row in enumerate(rows):
        y = top + (number + 0.7) * _ROW
        drawing.text(left + 8, y, row.text)
        if row.line is not None and (not number or row.line != rows[number - 1].line):
            drawing.text(beyond, y, here(row.line), dim=True)


# -- compile time ----------------------------------------------------------------------------------


def _draw_compile(drawing: Drawing, records: Sequence[CompileRecord]) -> None:
    """Draw a flame graph: frames on top, graphs below them, stages at the bottom."""
    total = sum(record.seconds for record in records)
    drawing.text(
        8, 38, f"{duration(total)}: wall time of all stages; the mouse tells each", dim=True
    )
    scale, x = _WIDE / (total or 1.0), 8.0
    for number, record in enumerate(records):
        colour = COLOURS[number % len(COLOURS)]
        name = f"{record.name}, variant {record.number}" if record.number else record.name
        _flame(drawing, x, 0, record.seconds * scale, colour, name, record.seconds)
        for graph, stages in _by_graph(record):
            seconds = sum(spent for _, spent in stages)
            if graph:
                _flame(drawing, x, 1, seconds * scale, colour, graph, seconds)
            for stage, spent in stages:
                _flame(drawing, x, 2 if graph else 1, spent * scale, colour, stage, spent)
                x += spent * scale


def _by_graph(record: CompileRecord) -> list[tuple[str, list[tuple[str, float]]]]:
    """Return (graph name, its stages in order); the name is "" for stages of the frame."""
    stages: list[tuple[str, list[tuple[str, float]]]] = []
    for stage in record.stages:
        graph, colon, name = stage.stage.partition(": ")
        graph, name = (graph, name) if colon else ("", graph)
        if not stages or stages[-1][0] != graph:
            stages.append((graph, []))
        stages[-1][1].append((name, stage.seconds))
    return stages


def _flame(
    drawing: Drawing, x: float, depth: int, width: float, colour: str, name: str, seconds: float
) -> None:
    """Draw a box with as much of its name as fits."""
    y = 50 + depth * (_ROW + 2)
    drawing.box(x, y, width, _ROW, colour, f"{name}: {duration(seconds)}")
    fits = letters_in(width - 8)
    if fits >= min(4, len(name)):
        drawing.text(x + 4, y + 0.7 * _ROW, name[:fits])


# -- memory ----------------------------------------------------------------------------------------


def _draw_memory(drawing: Drawing, records: Sequence[CompileRecord]) -> None:
    footprints = [
        footprint for frame in newest_variants(records) if (footprint := footprint_of(frame))
    ]
    if not footprints:
        drawing.text(8, 40, "nothing of it was compiled", dim=True)
    caption = (
        "bytes alive after each operation, beside the inputs: as eager counted on made-up tensors "
        "of the same sizes; compiled as planned"
    )
    drawing.text(8, 38, caption, dim=True)
    for each in footprints:
        _draw_footprint(drawing, each)


def _draw_footprint(drawing: Drawing, footprint: Footprint) -> None:
    top = drawing.height + 24
    drawing.text(8, top, footprint.name)
    if footprint.why_not:
        drawing.text(8, top + _ROW, f"not measured: {footprint.why_not}", dim=True)
        return
    most = max(*footprint.eager, *footprint.compiled, 1)
    top += 10
    sides = (("eager", footprint.eager, COLOURS[1]), ("compiled", footprint.compiled, COLOURS[4]))
    for number, (side, points, colour) in enumerate(sides):
        steps = _stairs(points, most, top)
        drawing.line(steps, colour)
        turn = footprint.backward_at[number]
        if turn < len(points):
            x = 8 + _WIDE * turn / len(points)
            drawing.line([(x, top), (x, top + _TALL)], colour, dashed=True)
        y = top + 12 + number * _ROW
        drawing.box(_WIDE + 24, y - 9, 10, 10, colour)
        count = f"{len(points)} operations" if number == 0 else f"{len(points)} kernels and calls"
        drawing.text(_WIDE + 40, y, f"{side}: at most {size(max(points, default=0))}, {count}")
    drawing.line([(8, top + _TALL), (8 + _WIDE, top + _TALL)], "currentColor", dashed=True)
    if any(
        turn < len(points)
        for turn, (_, points, _) in zip(footprint.backward_at, sides, strict=True)
    ):
        drawing.text(_WIDE + 24, top + 12 + 2 * _ROW, "dashed: the backward begins", dim=True)


def _stairs(points: Iterable[int], most: int, top: float) -> list[tuple[float, float]]:
    """Return the corners of a step function over the whole width: bytes alive per operation."""
    values = [0, *points]
    wide = _WIDE / max(1, len(values) - 1)
    corners: list[tuple[float, float]] = []
    for number, value in enumerate(values):
        y = top + _TALL * (1 - value / most)
        corners += [(8 + max(0, number - 1) * wide, y), (8 + number * wide, y)]
    return corners


PICTURES: Mapping[str, tuple[str, Callable[[Drawing, Sequence[CompileRecord]], None]]] = {
    "graph": ("graph by kernel", _draw_graphs),
    "compile": ("compile time", _draw_compile),
    "memory": ("memory over a step", _draw_memory),
}
"""By name: the title and the function that draws it."""
