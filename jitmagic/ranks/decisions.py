"""Lets the ranks of a distributed program choose alike: the first one that chooses does so for all.

A rank proposes its choice by a note. All ranks read the notes in the same order, so the first
choice about a subject is the same everywhere, and holds. A rank that has not read it yet goes on as
before: no rank waits for another.
"""

from __future__ import annotations

import json

from .board import Board, board, listen, poll, watch

__all__ = ["decide", "decided", "forget", "is_shared"]

_TOPIC = "decision"
_decided: dict[str, str] = {}  # by subject
_proposed: set[str] = set()  # subjects of this rank's notes


def is_shared() -> bool:
    """Return whether there are other ranks."""
    return board() is not None


def decide(subject: str, choice: str) -> str | None:
    """Propose a choice and return the one that holds; None if that is not known yet."""
    if (notes := board()) is None:
        return choice
    try:
        watch(notes)
        if subject not in _proposed and subject not in _decided:
            _proposed.add(subject)
            notes.post(_TOPIC, json.dumps([subject, choice]))
        poll(notes)
    except RuntimeError:  # the process that served the store has ended
        return _decided.setdefault(subject, choice)
    return _decided.get(subject)


def decided(subject: str) -> str | None:
    """Return the choice that holds, as far as this rank has read the notes."""
    return _decided.get(subject)


def forget() -> None:
    """Drop the choices; other ranks keep them."""
    _decided.clear()
    _proposed.clear()


def _receive(notes: Board, rank: int, text: str) -> None:
    subject, choice = json.loads(text)
    _decided.setdefault(subject, choice)


listen(_TOPIC, _receive)
