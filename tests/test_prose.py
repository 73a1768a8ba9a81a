"""Prose: a floor for docstrings, module names and ARCHITECTURE.md, read out of the syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import ROOT

PACKAGE = ROOT / "jitmagic"
FILES = sorted(PACKAGE.rglob("*.py"))
# A docstring that opens with one of these is a fragment without a subject.
FRAGMENTS = frozenset(
    "What Of Where Those As Whether Whatever Whoever Whichever Which How Who".split()
)
LONGEST_SENTENCE = 40  # words
# Modules that were once named by the situation in which they are needed, not by their concept.
OLD_NAMES = frozenset(
    "at_vectors at_hints mortals foreseen handed_on kept_casts early_numbers from_one written_back "
    "lost windows small_runs generalise streaks laps spans pieces made_modules described originals "
    "commits shelf undecided told".split()
)

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring of a file, without the indentation of its code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Documented) and (text := ast.get_docstring(node, clean=False)):
            margin = "" if isinstance(node, ast.Module) else " " * (node.col_offset + 4)
            lines = [line.removeprefix(margin) for line in text.splitlines()]
            yield getattr(node, "lineno", 1), "\n".join(lines)


def sentences(text: str) -> Iterator[str]:
    """Sentences and clauses of prose; tables and examples, which are indented, are none."""
    prose = "\n".join("" if line.startswith(" ") else line for line in text.splitlines())
    yield from re.split(r"(?<=[.!?:;])\s+|\n\n", prose)


@pytest.mark.parametrize("package", sorted({path.relative_to(PACKAGE).parts[0] for path in FILES}))
def test_docstrings_open_with_a_sentence(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] == package
        for line, text in docstrings(path)
        if re.split(r"\W", text, maxsplit=1)[0] in FRAGMENTS
    ]
    assert not found, "\n".join(found)


def test_sentences_of_docstrings_are_short() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {sentence[:60]}"
        for path in FILES
        for line, text in docstrings(path)
        for sentence in sentences(text)
        if len(sentence.split()) > LONGEST_SENTENCE
    ]
    assert not found, "\n".join(found)


def test_modules_are_named_by_their_concept() -> None:
    assert not [str(path.relative_to(ROOT)) for path in FILES if path.stem in OLD_NAMES]
