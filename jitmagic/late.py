"""Imports parts of the package at their first use.

`import jitmagic` loads tagging and dispatch, `%load_ext jitmagic` the magics. The stages of the
compiler are loaded by the first call, or in the background before it; diagnostics at the first use
of one of them.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = [
    "collector_paused",
    "importing",
    "is_loaded",
    "late_names",
    "load",
    "load_part",
    "short_turns",
]

# Seconds for which one thread keeps the interpreter while another waits for it. With Python's own
# 5 ms, a training step of short operations took 2.7 times as long beside a compile, with this 1.3.
_TURN = 0.0005


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector. Importing and compiling trigger full collections, and each walks all
    objects of torch (0.1 s).
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def short_turns() -> Iterator[None]:
    """Let threads take turns more often during the block, in which this one works for others. If
    the program sets the interval meanwhile, that stays.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN))
    short = sys.getswitchinterval()
    try:
        yield
    finally:
        if sys.getswitchinterval() == short:
            sys.setswitchinterval(before)


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector, and spare it the walk of what is imported, which stays for good: 5 ms
    after `import jitmagic`, 20 ms after the stages.
    """
    with collector_paused():
        yield
        if not gc.get_freeze_count():  # else this would thaw what the program froze
            gc.freeze()
            gc.unfreeze()  # into the oldest generation


_PACKAGE = sys.modules[str(__package__)]
_LOADED: dict[str, ModuleType] = {}


def is_loaded(name: str) -> bool:
    """Return whether `load` returns without waiting. sys.modules cannot tell: a module that another
    thread is still importing is in it already.
    """
    return name in _LOADED


def load(name: str) -> ModuleType:
    """Return the module of that name below the package, importing it if needed.

    Raises ImportError if the package was removed from `sys.modules` after its import: importing
    would mix this copy's modules with those of a newly imported one. Functions that this copy
    tagged go on with the modules loaded so far.
    """
    if name not in _LOADED:
        if sys.modules.get(_PACKAGE.__name__) is not _PACKAGE:
            raise ImportError(f"{_PACKAGE.__name__} was purged from sys.modules since its import")
        with importing():
            _LOADED[name] = importlib.import_module(f"{_PACKAGE.__name__}.{name}")
    return _LOADED[name]


def load_part(name: str) -> ModuleType:
    """Return a further module of a stage that is loaded, also if the package was purged since."""
    if name in _LOADED or sys.modules.get(_PACKAGE.__name__) is _PACKAGE:
        return load(name)
    with _own_modules(), importing():
        _LOADED[name] = importlib.import_module(f"{_PACKAGE.__name__}.{name}")
    return _LOADED[name]


@contextmanager
def _own_modules() -> Iterator[None]:
    """Put this copy of the package back into `sys.modules` during the block."""
    other = {name: part for name, part in sys.modules.items() if _is_within(name)}
    for name in other:
        del sys.modules[name]
    sys.modules.update(_modules_below(_PACKAGE))
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_within(name)]:
            del sys.modules[name]
        sys.modules.update(other)


def _is_within(name: str) -> bool:
    return name == _PACKAGE.__name__ or name.startswith(f"{_PACKAGE.__name__}.")


def _modules_below(module: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    yield module.__name__, module
    for name, part in [*vars(module).items()]:
        if isinstance(part, ModuleType) and part.__name__ == f"{module.__name__}.{name}":
            yield from _modules_below(part)


class _LateName:
    """Stands in a namespace for a function or class of another module until it is first used."""

    __slots__ = ("_alias", "_module", "_name", "_namespace")

    def __init__(self, namespace: dict[str, Any], alias: str, module: str, name: str) -> None:
        self._namespace, self._alias = namespace, alias
        self._module, self._name = module, name

    def _found(self) -> Any:
        found = getattr(load_part(self._module), self._name)
        if self._namespace[self._alias] is self:
            self._namespace[self._alias] = found
        return found

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._found()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._found())


def late_names(namespace: dict[str, Any], names: Mapping[str, str]) -> None:
    """Import functions and classes, {module: names}, at their first use, as `lazy from ... import`
    does in Python 3.15. It is for steps that few compiles take:

        if TYPE_CHECKING:
            from .buckets import compile_buckets
        else:
            late_names(globals(), {"compile.buckets": "compile_buckets"})
    """
    for module, listed in names.items():
        for one in listed.split(", "):
            name, _, alias = one.partition(" as ")
            namespace[alias or name] = _LateName(namespace, alias or name, module, name)
