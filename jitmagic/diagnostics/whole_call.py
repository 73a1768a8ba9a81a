"""Runs what a call of a generator function or coroutine function returns.

Input: the result of a call. Output: that result or, for a generator, its first items; for a
coroutine or async generator, the same from an event loop of its own. Without this a report on such
a function would have nothing to show: the call itself runs none of its code.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any

from ..errors import UsageError

__all__ = ["whole"]

_MOST = 8  # items: a generator need not end


def whole(result: object) -> object:
    """Return the result of a call, items of generators and results of coroutines included."""
    if inspect.isgenerator(result):
        return _items(result)
    if inspect.iscoroutine(result):
        return _awaited(result)
    return _awaited(_async_items(result)) if inspect.isasyncgen(result) else result


def _items(generator: Generator[Any, Any, Any]) -> list[object]:
    try:
        return list(itertools.islice(generator, _MOST))
    finally:
        generator.close()


async def _async_items(generator: AsyncGenerator[Any, Any]) -> list[object]:
    items: list[object] = []
    try:
        while len(items) < _MOST:
            items.append(await anext(generator))
    except StopAsyncIteration:
        pass
    finally:
        await generator.aclose()
    return items


def _awaited(coroutine: Coroutine[Any, Any, object]) -> object:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise UsageError("a coroutine is run in an event loop of its own: call this outside of one")
