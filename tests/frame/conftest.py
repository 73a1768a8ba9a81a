"""Compiles that pay after a few calls, and those that wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import jitmagic
from jitmagic.compile import pipeline
from jitmagic.frame.timing import pay_back


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any compile would be noticed, and pays after two calls."""
    monkeypatch.setattr(pay_back, "_UNNOTICEABLY", pay_back.Terms(affordable=0.0))
    monkeypatch.setattr(pay_back._Evidence, "pays", property(lambda one: one.calls >= 2))
    monkeypatch.setattr(pay_back, "has_free_processor", lambda values: True)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compiles in the background wait until it is set."""
    event, joint = threading.Event(), pipeline.trace_joint

    def waits(*args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            event.wait(60)
        return joint(*args)

    monkeypatch.setattr(pipeline, "trace_joint", waits)
    yield event
    event.set()
    assert jitmagic.wait(120)
