"""Coroutines and async generators that are tagged, with what uses them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import types
from collections.abc import AsyncIterator, Awaitable, Generator
from typing import Any

import torch
from torch import Tensor

from .registry import program


async def doubled(x: Tensor, log: list[str]) -> Tensor:
    log.append("doubling")
    await asyncio.sleep(0)
    return x * 2


async def awaiting(x: Tensor, log: list[str]) -> Any:
    y = x.sin() + 1
    z = await doubled(y, log)
    log.append("awaited")
    results = [z + (await doubled(z, log)), await asyncio.gather(doubled(x, log), doubled(y, log))]
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.001)
    except TimeoutError:
        results.append((z * 3).sum())
    return results


@program(awaiting)
def awaits(f: Any) -> Any:
    log: list[str] = []
    return asyncio.run(f(torch.ones(2), log)), log, inspect.iscoroutinefunction(f)


class Resource:
    """An asynchronous context manager."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def __aenter__(self) -> int:
        self.log.append("enter")
        await asyncio.sleep(0)
        return 4

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        await asyncio.sleep(0)
        self.log.append(f"exit {kind and kind.__name__}")
        return kind is ValueError


async def using_resources(x: Tensor, log: list[str], fails: bool) -> Any:
    async with Resource(log) as number:
        y = (x * number).exp()
        if fails:
            raise ValueError("suppressed")
        log.append("inside")
        async with Resource(log) as other:
            z = y + other
    try:
        w = (x + 1).log()
        if fails:
            x.view(77)
        return w, z
    except RuntimeError as error:
        log.append(str(error))
        return w * 2
    finally:
        await asyncio.sleep(0)
        log.append("finally")


@program(using_resources)
def asynchronous_managers(f: Any) -> Any:
    log: list[str] = []
    x = torch.ones(2)
    return asyncio.run(f(x, log, False)), asyncio.run(f(x, log, True)), log


async def stream(x: Tensor, n: int) -> AsyncIterator[Any]:
    try:
        for k in range(n):
            await asyncio.sleep(0)
            got = yield (x + k).sin()
            if got is not None:
                x = x * got
        async for other in ticks(2):
            yield x + other
    finally:
        await asyncio.sleep(0)
        NOTES.append("closed")


NOTES: list[str] = []


async def ticks(n: int) -> AsyncIterator[int]:
    for k in range(n):
        await asyncio.sleep(0)
        yield k


async def consume(f: Any) -> list[Any]:
    NOTES.clear()
    x = torch.arange(3.0)
    found: list[Any] = [item async for item in f(x, 3)]
    g = f(x, 4)
    found += [await g.__anext__(), await g.asend(3.0), await g.asend(None)]
    with contextlib.suppress(ValueError):
        await g.athrow(ValueError("thrown"))
    g = f(x, 4)
    found.append(await anext(g))
    await g.aclose()
    return [*found, *NOTES, inspect.isasyncgenfunction(f)]


@program(stream)
def asynchronous_generators(f: Any) -> Any:
    return asyncio.run(consume(f))


async def listing(x: Tensor) -> Any:
    found = [x * k async for k in ticks(3)]
    table = {k: (await doubled(x + k, [])) for k in range(2)}
    more = [await doubled(x, []) for _ in range(2)]
    y = sum(found) + x.exp()
    return found, table[1], more, await doubled(y, [])


@program(listing)
def asynchronous_comprehensions(f: Any) -> Any:
    return asyncio.run(f(torch.ones(2)))


SCALE: contextvars.ContextVar[int] = contextvars.ContextVar("SCALE", default=1)


async def reading_context(x: Tensor, scale: int) -> Any:
    before = x * SCALE.get()
    token = SCALE.set(scale)
    await asyncio.sleep(0)
    within = x * SCALE.get()
    SCALE.reset(token)
    await asyncio.sleep(0)
    return before, within, x * SCALE.get()


async def in_tasks(f: Any) -> Any:
    SCALE.set(7)
    x = torch.ones(1)
    return [*(await asyncio.gather(*(f(x, k) for k in range(4)))), SCALE.get()]


@program(reading_context)
def context_variables(f: Any) -> Any:
    return asyncio.run(in_tasks(f))


async def cancelled(x: Tensor, log: list[str]) -> Any:
    try:
        y = x.sin()
        log.append("waits")
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        log.append(f"cancelled {y.sum().item():.3f}")
        raise
    finally:
        log.append("finally")


async def cancel(f: Any, log: list[str]) -> None:
    task = asyncio.create_task(f(torch.ones(1), log))
    await asyncio.sleep(0.001)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        log.append("noticed")


@program(cancelled)
def cancellation(f: Any) -> Any:
    log: list[str] = []
    asyncio.run(cancel(f, log))
    return log


@types.coroutine
def legacy(x: Tensor) -> Generator[Any, Any, Tensor]:
    got = yield x + 1
    return (got * x).sum()


@program(legacy)
def coroutines_of_types(f: Any) -> Any:
    async def outer() -> Any:
        return await f(torch.ones(3))

    coroutine = outer()
    first = coroutine.send(None)
    try:
        coroutine.send(5.0)
    except StopIteration as end:
        return first, end.value


class Awaits:
    """An awaitable written as a generator."""

    def __await__(self) -> Generator[Any, Any, str]:
        got = yield "waiting"
        return f"got {got}"


async def awaiting_objects(x: Tensor, ready: Awaitable[Any]) -> Any:
    return await ready, x.sin(), await Awaits()


@program(awaiting_objects)
def awaitable_objects(f: Any) -> Any:
    coroutine = f(torch.ones(1), Awaits())
    found = [coroutine.send(None), coroutine.send(1)]
    try:
        coroutine.send(2)
    except StopIteration as end:
        return found, end.value
