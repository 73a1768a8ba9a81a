"""Makes tracebacks show the user's parameters for frames of generated code.

Residual and resume functions take all the dispatcher's values as plain parameters: the user's
arguments, and also cells and stack values. A debugger or IPython's traceback would list them all.
Input: such code and the function that it runs in place of. Output: the same code (instructions and
slots) with the function's own parameters only, to put into frames that have ended. Invariant: the
user's parameters come first, in the user's order.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import CodeType

from ..lazy_dataclass import dataclass
from .instruction import Body

__all__ = ["UserSignature", "in_users_order", "shown_as", "with_signature"]

_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


@dataclass(frozen=True, slots=True)
class UserSignature:
    """Parameter counts, stored as the last constant of the code."""

    argcount: int
    kwonlyargcount: int
    stars: int


def in_users_order(names: Iterable[str], body: Body) -> tuple[str, ...]:
    """Sort names: the function's parameters in their order, then the others by name."""
    order = {name: index for index, name in enumerate(body.parameters)}
    return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))


def with_signature(code: CodeType, parameters: tuple[str, ...], body: Body) -> CodeType:
    """Return `code` with a last constant that says which `parameters` are those of `body`."""
    own = body.parameters
    plain, named = own[: body.argcount], own[body.argcount :][: body.kwonlyargcount]
    starred = own[body.argcount + body.kwonlyargcount :]
    flags = [flag for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS) if body.flags & flag]
    bound = frozenset(parameters)
    stars = sum(flag for name, flag in zip(starred, flags, strict=True) if name in bound)
    signature = UserSignature(
        sum(name in bound for name in plain), sum(name in bound for name in named), stars
    )
    return code.replace(co_consts=(*code.co_consts, signature))


def shown_as(code: CodeType) -> CodeType | None:
    """Return the code to show in place of generated `code`; None for the user's own code."""
    signature = code.co_consts[-1] if code.co_consts else None
    if not isinstance(signature, UserSignature):
        return None
    return code.replace(
        co_argcount=signature.argcount,
        co_posonlyargcount=0,
        co_kwonlyargcount=signature.kwonlyargcount,
        co_flags=code.co_flags & ~_STARS | signature.stars,
        co_consts=code.co_consts[:-1],
    )
