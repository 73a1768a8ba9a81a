"""Names backends for `jit(backend=name)`.

Input: a function `(graph_module, example_inputs) -> callable`, as torch.compile's backends are.
Output: `find_backend`, which `Options` asks for names that are not jitmagic's own. Names that
packages publish for torch.compile (the entry points `torch_dynamo_backends`) are known too, and
those that the program has registered with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

from ..compat.torch_compile import backends_of_program
from ..errors import UsageError
from ..torch_types import AnyFunction
from .entry_points import load_extensions, torch_backends
from .registry import Registration, Registry, as_decorator

__all__ = ["BACKENDS", "backend_names", "find_backend", "register_backend"]

OWN = ("native", "aot_eager", "eager", "inductor", "jitmagic")
BACKENDS: Registry[AnyFunction] = Registry("backend", recompiles=False)


@overload
def register_backend(name: str, compile_fn: AnyFunction, /) -> Registration: ...
@overload
def register_backend(name: str, /) -> Callable[[AnyFunction], AnyFunction]: ...


def register_backend(
    name: str, compile_fn: AnyFunction | None = None, /
) -> Registration | Callable[[AnyFunction], AnyFunction]:
    """Register `compile_fn(graph_module, example_inputs) -> callable` for `jit(backend=name)`.

    The graph is the captured one, with torch functions and methods; dynamic sizes are SymInts among
    its inputs. The callable takes the same inputs and returns a tuple. Errors of a backend are
    raised to the caller.

    With a function, it returns a `Registration`, which a `with` block removes at its end; without
    one, a decorator. Functions that were tagged with the name keep their backend when it is
    removed. Raises UsageError for a name that is taken.
    """
    if compile_fn is None:
        return as_decorator(lambda compile_fn: register_backend(name, compile_fn))
    if not callable(compile_fn):
        raise UsageError(f"a backend is a function of a graph and its inputs, not {compile_fn!r}")
    if name in OWN:
        raise UsageError(f"there is a backend {name!r} already: choose another name")
    return BACKENDS.add(name, compile_fn)


def find_backend(name: str) -> AnyFunction | None:
    """Return the backend of that name, loading extensions if needed; None if there is none.

    A registered name has precedence over one that torch.compile knows.
    """
    if name in BACKENDS.rows:
        return BACKENDS.rows[name]
    load_extensions()
    if name in BACKENDS.rows:
        return BACKENDS.rows[name]
    if (published := torch_backends().get(name)) is not None:
        return published.load()  # type: ignore[no-any-return]
    return backends_of_program().get(name)


def backend_names() -> tuple[str, ...]:
    """Return the names that `find_backend` knows."""
    load_extensions()
    return tuple(dict.fromkeys((*BACKENDS.rows, *torch_backends(), *backends_of_program())))
