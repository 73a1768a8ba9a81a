"""svg: draws shapes and text into one standalone SVG.

The background is always white, because front ends show an SVG as an image, which does not follow a
dark theme. All text is escaped. Units are pixels; y grows downwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape as _escape

from ...lazy_dataclass import dataclass, field

__all__ = ["COLOURS", "Drawing", "letters_in", "width_of"]

# The palette of Okabe and Ito, which is safe for colour blindness.
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442")
_INK = "#1a1a1a"
_PER_LETTER = 7.3  # pixels, for 12 px monospace


# Characters that XML cannot contain, even escaped: a viewer would refuse the whole drawing.
_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def escape(text: str) -> str:
    """Return the text escaped for an element or a quoted attribute."""
    return _escape(_NOT_XML.sub("?", text))


def width_of(text: str) -> float:
    """Return the width in pixels of a text."""
    return len(text) * _PER_LETTER


def letters_in(width: float) -> int:
    """Return the number of characters that fit into a width in pixels."""
    return int(width / _PER_LETTER)


@dataclass(eq=False)
class Drawing:
    """Shapes in the order in which they are painted, and the extent that they cover."""

    parts: list[str] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def text(
        self, x: float, y: float, text: str, *, strong: bool = False, dim: bool = False
    ) -> None:
        """Draw a text, left-aligned at x on the base line y."""
        style = " font-weight='700'" if strong else " opacity='.65'" if dim else ""
        self.parts.append(f"<text x='{x:.1f}' y='{y:.1f}'{style}>{escape(text)}</text>")
        self._reach(x + width_of(text), y + 4)

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, title: str = ""
    ) -> None:
        """Draw a filled rectangle; `title` is its tooltip, which screen readers read aloud."""
        tooltip = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(width, 0.5):.1f}' height='{height:.1f}' "
            f"rx='3' fill='{colour}' fill-opacity='.45' stroke='{colour}'>{tooltip}</rect>"
        )
        self._reach(x + width, y + height)

    def arc(self, x: float, top: float, bottom: float, depth: float) -> None:
        """Draw an arc from (x, top) to (x, bottom), bent to the left by `depth`."""
        path = f"M{x:.1f} {top:.1f}C{x - depth:.1f} {top:.1f} {x - depth:.1f} {bottom:.1f}"
        self.parts.append(
            f"<path d='{path} {x:.1f} {bottom:.1f}' fill='none' stroke='{_INK}' "
            "stroke-opacity='.35'/>"
        )

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, *, dashed: bool = False
    ) -> None:
        """Draw straight segments from point to point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = " stroke-dasharray='4 3' stroke-opacity='.5'" if dashed else " stroke-width='2'"
        self.parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}'{dash}/>")
        for x, y in points:
            self._reach(x, y)

    def finished(self, title: str) -> str:
        """Return the SVG; `title` is its name for screen readers."""
        width, height = self.width + 8, self.height + 8
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' role='img' viewBox='0 0 {width:.0f} "
            f"{height:.0f}' width='{width:.0f}' height='{height:.0f}' font-family='monospace' "
            f"font-size='12' fill='{_INK}'><title>{escape(title)}</title>"
            f"<path d='M0 0H{width:.0f}V{height:.0f}H0Z' fill='white'/>"
        )
        return head + "".join(self.parts) + "</svg>"

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)
