"""What a cell shows looks as it did, in each theme (--update-golden stores how it looks now)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.lab import Lab
from tests.browser.shots import difference, shot

STORED = Path(__file__).parent / "stored"
CELLS = ["compile", "report", "gutter", "card", "status", "passport", "picture"]
_TOLERANCE = 0.01  # of the pixels: a word in another place is about a hundredth of a small report


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_looks_as_it_did(themed: Lab, theme: str, cell: str, update_golden: bool) -> None:
    path = STORED / f"{cell}.{theme.lower()}.png"
    seen = shot(themed, cell)
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(seen)
    assert path.exists(), "no screenshot is stored: --update-golden stores one"
    differs = difference(themed, seen, path.read_bytes())
    if differs > _TOLERANCE:
        path.with_suffix(".seen.png").write_bytes(seen)
    assert differs <= _TOLERANCE


def test_another_look_is_seen(lab: Lab) -> None:
    """Each of the stored pictures is none of the others."""
    stored = [path.read_bytes() for path in sorted(STORED.glob("*.light.png"))]
    for left, right in zip(stored, stored[1:], strict=False):
        assert difference(lab, left, right) > _TOLERANCE
