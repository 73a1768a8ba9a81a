"""Locks, attributes of a thread's own and context variables beside tensors: as eager, with what
they are afterwards, in a second thread too."""

from __future__ import annotations

import contextvars
import copy
import sys
import threading
from typing import Any

import pytest
import torch

import jitmagic

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


def computes_under_a_lock(x: torch.Tensor) -> Any:
    with PLAIN:
        y = x * 2
    return y + 1


def writes_under_a_lock(x: torch.Tensor) -> Any:
    with NESTED:
        SCALES["a"] = SCALES["a"] + 1
    return x * SCALES["a"]


def writes_what_it_computes(x: torch.Tensor) -> Any:
    y = x * 2
    with PLAIN:
        if "b" not in SCALES:
            SCALES["b"] = SCALES["a"] + y.size(0)
    with PLAIN:
        SCALES["c"] = float(y.dim())
    return y + 1, PLAIN.locked()


def data_raises_under_a_lock(x: torch.Tensor) -> Any:
    with PLAIN:
        SCALES["a"] = SCALES["a"] + 1
        y = torch.arange(3).index_select(0, (x.sum() * 2).long().reshape(1))
    return y


def reads_before_it_writes(x: torch.Tensor) -> Any:
    with PLAIN:
        scale = SCALES["a"]
    with PLAIN:
        SCALES["a"] = scale + 1
    return x * SCALES["a"]


WHOLE = (
    reads_under_a_lock, reads_under_a_condition, reads_nested, by_calls, thread_reads_and_writes,
    context_reads, context_set_and_reset, context_stays_set, computes_under_a_lock,
    writes_under_a_lock, writes_what_it_computes, data_raises_under_a_lock,
    reads_before_it_writes,
)  # fmt: skip


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


def calls_after_a_lock(x: torch.Tensor) -> Any:
    with PLAIN:
        SCALES["a"] = SCALES["a"] + 1
    print(end="")
    return x * SCALES["a"], PLAIN.locked()


def writes_under_two(x: torch.Tensor) -> Any:
    with NESTED, PLAIN:
        SCALES["a"] = SCALES["a"] + 1
    with NESTED:
        SCALES["a"] = SCALES["a"] * 2
    return x * SCALES["a"]


def gives_the_token(x: torch.Tensor) -> Any:
    token = LEVEL.set(5)
    return x * LEVEL.get(), type(token).__name__, token.old_value


BREAKS = (
    releases_what_is_free, raises_under_a_lock, calls_after_a_lock, writes_under_two,
       thread_lacks, context_is_not_set, gives_the_token,
)  # fmt: skip


def _plain(value: Any) -> Any:
    parts = value if isinstance(value, tuple) else (value,)
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in parts]


def _calls(run: Any) -> list[Any]:
    """Results and what is left behind; the second time with other state."""
    SCALES.clear()
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


def test_lock_held_at_exit() -> None:
    compiled = jitmagic.jit(leaves_it_held, backend="eager")
    for _ in range(2):
        made, owned = compiled(torch.ones(3))
        assert owned
        assert made.tolist() == [2.0] * 3
        NESTED.release()
    assert not NESTED._is_owned()  # type: ignore[attr-defined]


def called_while_held(lock: Any, compiled: Any) -> Any:
    """What a call of another thread gives that begins while this one has the lock, and writes."""
    begun, results = threading.Event(), []

    def other() -> None:
        begun.set()
        results.append(compiled(torch.ones(3)))

    with lock:
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        thread.join(0.2)
        assert thread.is_alive()
        SCALES["a"] = 7.0
    thread.join()
    return results[0]


def test_lock_held_by_another_thread_blocks() -> None:
    compiled = jitmagic.jit(reads_under_a_lock, backend="eager")
    SCALES["a"] = 2.0
    compiled(torch.ones(3))
    assert called_while_held(PLAIN, compiled).tolist() == [7.0] * 3


class Counted(torch.nn.Module):
    """Hooks that are installed at the first call, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen, self.calls = torch.nn.Linear(3, 3), [0], 0

    def note(self, module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        self.seen[0] += 1
        return output + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not getattr(self, "ready", False):
            with PLAIN:
                if not getattr(self, "ready", False):
                    self.layer.register_forward_hook(self.note)
                    self.ready = True
        with PLAIN:
            self.calls += 1
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_hooks_are_installed_under_a_lock(backend: str) -> None:
    plain = Counted()
    compiled = jitmagic.jit(copy.deepcopy(plain), backend=backend, fullgraph=True)
    for x in (torch.randn(2, 3), torch.randn(2, 3), torch.randn(4, 3, requires_grad=True)):
        torch.testing.assert_close(compiled(x), plain(x))
    assert (compiled.seen, compiled.calls, len(compiled.layer._forward_hooks)) == ([3], 3, 1)


def test_threads_that_write_under_a_lock_lose_nothing() -> None:
    compiled = jitmagic.jit(Counted(), backend="eager")
    began, each = threading.Barrier(6), 40

    def run() -> None:
        began.wait()
        for _ in range(each):
            compiled(torch.ones(2, 3))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert compiled.calls == 6 * each
    assert len(compiled.layer._forward_hooks) == 1
    assert not PLAIN.locked()


def test_write_by_another_thread_is_seen() -> None:
    """The guards hold when the call begins, and no more when it has the lock."""
    compiled = jitmagic.jit(writes_under_a_lock, backend="eager")
    for _ in range(2):
        SCALES["a"] = 2.0
        compiled(torch.ones(3))
    SCALES["a"] = 2.0
    assert called_while_held(NESTED, compiled).tolist() == [8.0] * 3
