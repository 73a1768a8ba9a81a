"""Locks, attributes of a thread's own and context variables beside tensors: as eager, with what
they are afterwards, in a second thread too."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch

import jitmagic

from ..counts import counts_of

PLAIN, NESTED, CONDITION = threading.Lock(), threading.RLock(), threading.Condition()
SCALES = {"a": 2.0}
OWN = threading.local()
LEVEL: contextvars.ContextVar[Any] = contextvars.ContextVar("LEVEL", default=2)
UNSET: contextvars.ContextVar[Any] = contextvars.ContextVar("UNSET")


def reads_under_a_lock(x: torch.Tensor) -> Any:
    with PLAIN:
        scale = SCALES["a"]
    return x * scale


def reads_nested(x: torch.Tensor) -> Any:
    with NESTED, NESTED:
        scale = SCALES["a"]
    with NESTED:
        return x * scale if scale > 9 else x


def reads_under_a_condition(x: torch.Tensor) -> Any:
    with CONDITION:
        scale = SCALES["a"]
    return x * scale, PLAIN.locked()


def by_calls(x: torch.Tensor) -> Any:
    PLAIN.acquire()
    try:
        scale = SCALES["a"]
        held = PLAIN.locked()
    finally:
        PLAIN.release()
    return x * scale, held, PLAIN.locked()


def thread_reads_and_writes(x: torch.Tensor) -> Any:
    before = getattr(OWN, "count", 0)
    OWN.count = before + 1
    return x * OWN.count, hasattr(OWN, "count"), hasattr(OWN, "never")


def thread_lacks(x: torch.Tensor) -> Any:
    return x * OWN.never


def context_reads(x: torch.Tensor) -> Any:
    return x * LEVEL.get(), UNSET.get(None)


def context_set_and_reset(x: torch.Tensor) -> Any:
    token = LEVEL.set(LEVEL.get() + 1)
    y = x * LEVEL.get()
    LEVEL.reset(token)
    return y * LEVEL.get()


def context_stays_set(x: torch.Tensor) -> Any:
    LEVEL.set(LEVEL.get() + 1)
    return x * LEVEL.get()


def context_is_not_set(x: torch.Tensor) -> Any:
    return x * UNSET.get()


WHOLE = (
    reads_under_a_lock, reads_under_a_condition, reads_nested, by_calls, thread_reads_and_writes,
    context_reads, context_set_and_reset, context_stays_set,
)  # fmt: skip


def computes_under_a_lock(x: torch.Tensor) -> Any:
    with PLAIN:
        y = x * 2
    return y + 1


def writes_under_a_lock(x: torch.Tensor) -> Any:
    with NESTED:
        SCALES["a"] = SCALES["a"] + 1
    return x * SCALES["a"]


def leaves_it_held(x: torch.Tensor) -> Any:
    y = x + 1
    NESTED.acquire()
    return y, NESTED._is_owned()  # type: ignore[attr-defined]


def releases_what_is_free(x: torch.Tensor) -> Any:
    y = x + 1
    PLAIN.release()
    return y


def raises_under_a_lock(x: torch.Tensor) -> Any:
    with PLAIN:
        scale = SCALES["none"]
    return x * scale


def gives_the_token(x: torch.Tensor) -> Any:
    token = LEVEL.set(5)
    return x * LEVEL.get(), type(token).__name__, token.old_value


BREAKS = (
    computes_under_a_lock, writes_under_a_lock, releases_what_is_free, raises_under_a_lock,
    thread_lacks, context_is_not_set, gives_the_token,
)  # fmt: skip


def _plain(value: Any) -> Any:
    parts = value if isinstance(value, tuple) else (value,)
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in parts]


def _calls(run: Any) -> list[Any]:
    """Results and what is left behind; the second time with other state."""
    SCALES.update(a=2.0)
    OWN.__dict__.clear()
    seen: list[Any] = []
    for x in (torch.ones(3), torch.ones(3), torch.zeros(0), torch.tensor([[-0.0, 2.0]]).t()):
        try:
            seen.append(_plain(run(x)))
        except Exception as error:
            seen.append((type(error), str(error)))
        state = PLAIN.locked(), dict(SCALES), dict(OWN.__dict__), LEVEL.get(), UNSET.get(None)
        seen.append(state)
        SCALES["a"] += 1
    return seen


def _in_context(run: Any) -> list[Any]:
    return contextvars.Context().run(_calls, run)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [*WHOLE, *BREAKS], ids=lambda f: f.__name__)
def test_as_eager(program: Any, backend: str) -> None:
    assert _in_context(jitmagic.jit(program, backend=backend)) == _in_context(program)


@pytest.mark.parametrize("program", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(program: Any) -> None:
    compiled = jitmagic.jit(program, fullgraph=True, backend="eager")
    assert _in_context(compiled) == _in_context(program)


@pytest.mark.parametrize("program", [thread_reads_and_writes, context_stays_set])
def test_each_thread_has_its_own(program: Any) -> None:
    compiled = jitmagic.jit(program, backend="eager")

    def in_thread(run: Any) -> list[Any]:
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.extend(_calls(run)))
        thread.start()
        thread.join()
        return seen

    assert _in_context(compiled) == _in_context(program)
    assert in_thread(compiled) == in_thread(program)


def test_a_lock_that_is_left_held() -> None:
    compiled = jitmagic.jit(leaves_it_held, backend="eager")
    for _ in range(2):
        made, owned = compiled(torch.ones(3))
        assert owned
        assert made.tolist() == [2.0] * 3
        NESTED.release()
    assert not NESTED._is_owned()  # type: ignore[attr-defined]


def test_a_lock_of_another_thread_is_waited_for() -> None:
    compiled = jitmagic.jit(reads_under_a_lock, backend="eager")
    SCALES["a"] = 2.0
    compiled(torch.ones(3))
    begun, results = threading.Event(), []

    def other() -> None:
        begun.set()
        results.append(compiled(torch.ones(3)))

    with PLAIN:
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        thread.join(0.2)
        assert thread.is_alive()
        SCALES["a"] = 7.0
    thread.join()
    assert results[0].tolist() == [7.0] * 3


def test_what_computes_under_a_lock_is_cut_and_no_more() -> None:
    compiled = jitmagic.jit(computes_under_a_lock, backend="eager")
    compiled(torch.ones(3))
    assert counts_of(compiled).breaks <= 2
