"""Reads the entries of a functools.lru_cache without calling it.

Input: a live wrapper and a key, or the arguments of a call. Output: the cached object itself;
raises KeyError if there is none. It does not call the wrapper: that would count a hit, and move the
entry to the front of a bounded cache. `extensions/frame/function_cache.c` does the same natively
from CPython's struct; this module uses the references that the garbage collector visits.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["LRU_CACHE", "cache_key", "cached_result"]

LRU_CACHE: Any = type(functools.lru_cache(lambda: None))


def cached_result(wrapper: object, key: object) -> object:
    """Return the cached result for a key; raises KeyError if there is none."""
    held, links = _references(wrapper)
    entry = held[key]
    if not links:  # an unbounded cache stores results directly
        return entry
    return {k: result for k, result in zip(links[::3], links[1::3], strict=True)}[key]


def cache_key(wrapper: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Return the key of a call, taken from another cache of the same kind.

    CPython does not export the marker before keyword arguments. Raises TypeError if an argument is
    not hashable.
    """
    probe = functools.lru_cache(None, wrapper.cache_parameters()["typed"])(_nothing)
    probe(*args, **kwargs)
    return next(iter(_references(probe)[0]))


def _nothing(*args: object, **kwargs: object) -> None: ...


def _references(wrapper: object) -> tuple[dict[object, object], list[object]]:
    """Return the dictionary of a cache and, if it is bounded, its links: key, result and class of
    each.

    CPython 3.11 to 3.13 visits the class, the links, the dictionary, the function and four more.
    """
    if type(wrapper) is not LRU_CACHE:
        raise TypeError("not a functools.lru_cache")
    _, *links, held, _, _, _, _, _ = gc.get_referents(wrapper)
    if type(held) is not dict:
        raise TypeError("a cache that cannot be read")
    return held, links
