"""Every `except Exception` says in a comment why any error may come there."""

from __future__ import annotations

import re

from .processes import ROOT

BROAD = re.compile(r"\s*except\s*(\(?\s*(Base)?Exception\b.*)?:")


def test_broad_excepts_have_a_reason() -> None:
    bare = []
    for path in sorted((ROOT / "jitmagic").rglob("*.py")):
        lines = ["", *path.read_text().splitlines()]
        for number, line in enumerate(lines):
            above = lines[number - 1].strip() if number else ""
            if BROAD.match(line) and "#" not in line and not above.startswith("#"):
                bare.append(f"{path.relative_to(ROOT)}:{number}")
    assert not bare, "\n".join(bare)


def test_the_pattern_finds_broad_excepts() -> None:
    for text in ("except Exception:", "  except BaseException as e:", "except:"):
        assert BROAD.match(text)
    assert not BROAD.match("except ExceptionGroup:")
    assert not BROAD.match("except (OSError, ValueError) as error:")
