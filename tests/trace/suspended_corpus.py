"""The generators and coroutines of the bytecode corpus with rewritten code.

Their pieces run as plain functions, or give their values back to the generator's frame: nothing is
traced here, so that it also runs on an interpreter without torch.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jitmagic.bytecode.suspension import HERE
from jitmagic.trace.residual.generators import rewrite_generator

__all__ = ["REWRITTEN"]

_PATH = Path(__file__).parents[1] / "bytecode" / "bytecode_checks" / "corpus.py"
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _corpus() -> Any:
    spec = importlib.util.spec_from_file_location("corpus_of_suspended", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_CORPUS = _corpus()


def _rewritten(code: types.CodeType, gives_back: Iterator[bool]) -> types.CodeType:
    """Rewrite a code object and those of the functions that it defines."""
    constants = tuple(
        _rewritten(one, gives_back) if isinstance(one, types.CodeType) else one
        for one in code.co_consts
    )
    code = code.replace(co_consts=constants)
    if not code.co_flags & _SUSPENDED:
        return code

    def make_piece(flat: Any) -> Callable[..., object]:
        piece = types.FunctionType(flat.code, vars(_CORPUS))

        def run(*values: object) -> object:
            return (HERE, *values) if next(gives_back) else piece(*values)

        return run

    return rewrite_generator(code, make_piece, lambda error: None) or code


def _is_suspended(code: types.CodeType) -> bool:
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return bool(code.co_flags & _SUSPENDED) or any(map(_is_suspended, inner))


def _outcome(function: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        result = function(*copy.deepcopy(arguments))
        if inspect.isgenerator(result):
            return list(result)
        return _driven(result) if inspect.iscoroutine(result) else result
    except Exception as error:
        return type(error), str(error)


def _driven(coroutine: Any) -> Any:
    """Run a coroutine to its end by hand; return its result and the number of its pauses."""
    for pauses in itertools.count():
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value, pauses


def _check(function: Any, calls: Any) -> Callable[[], None]:
    def run() -> None:
        for pattern in ((False,), (True,), (False, True), (True, True, False)):
            code = _rewritten(function.__code__, itertools.cycle(pattern))
            copied = types.FunctionType(
                code,
                function.__globals__,
                argdefs=function.__defaults__,
                closure=function.__closure__,
            )
            copied.__kwdefaults__ = function.__kwdefaults__
            for arguments in calls:
                assert _outcome(copied, arguments) == _outcome(function, arguments)

    return run


REWRITTEN = {
    f"rewritten_{name}": _check(function, calls)
    for name, (function, calls) in {
        **_CORPUS.CASES,
        **{
            name: (function, [(1,) * function.__code__.co_argcount])
            for name, function in _CORPUS.ASYNC.items()
        },
    }.items()
    if _is_suspended(function.__code__)
}
