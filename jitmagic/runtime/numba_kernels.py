"""Compiles numba text to machine code; the only file that imports numba, and lazily.

In: a KernelSource of language "numba". Out: per kernel a C function `int (void* const* args)` as in
the C++ tier, so that the native executor launches it in the same way. The text may use names that
numba lacks: typed pointers, bits of a float, a fused multiply-add, and `kernel`, which compiles a
function. No fast-math: NaN, infinities and rounding follow IEEE, and division never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from ..budget import check
from ..codegen.plan import KernelSource
from ..errors import ToolchainError

__all__ = ["build_functions"]


def build_functions(source: KernelSource) -> dict[str, Any]:
    """Return kernel name -> compiled callback with `.address`; keep it alive while that is used."""
    return dict(_built(source.text, tuple(source.symbols)))


@lru_cache(maxsize=64)
def _built(text: str, symbols: Sequence[str]) -> Mapping[str, Any]:
    """Cache per process: numba has no disk cache for functions without a file."""
    try:
        names = dict(_names())
    except Exception as error:  # numba built for another numpy: not always an ImportError
        hint = "  hint: python -m pip install numba"
        raise ToolchainError("numba", "import numba", f"{error}\n{hint}") from error
    try:
        exec(compile(text, "<jitmagic numba kernels>", "exec"), names)
    except Exception as error:  # numba and LLVM raise errors of many unrelated classes
        raise ToolchainError("numba", ", ".join(symbols), str(error)) from error
    return {name: names[name] for name in symbols}


@lru_cache(maxsize=1)
def _names() -> Mapping[str, Any]:
    """Return the names that the text of a module may use."""
    from numba import cfunc, njit, types  # noqa: PLC0415 - heavy, and only this tier needs it

    signature = types.intc(types.CPointer(types.voidptr))

    def kernel(function: Callable[[Any], int]) -> Any:
        check()  # LLVM cannot be stopped within one
        return cfunc(signature, error_model="numpy")(function)

    compiled: dict[CodeType, Any] = {}

    def inline(function: Callable[..., Any]) -> Any:
        """Compile a helper once for all texts: in a bfloat16 kernel helpers take two thirds of the
        time.
        """
        code = function.__code__.replace(co_firstlineno=1)  # texts differ in its line number
        # x * 3 + 1 in bfloat16 takes 60 ms instead of 191, softmax 180 instead of 293.
        if code not in compiled:
            space = function.__globals__  # would keep the first text's kernels alive
            named = {name: space[name] for name in code.co_names if name in space}
            compiled[code] = njit(error_model="numpy")(FunctionType(code, named))
        return compiled[code]

    return {"kernel": kernel, "inline": inline, **_intrinsics()}


def _intrinsics() -> dict[str, Any]:
    """Return operations that are one LLVM instruction each."""
    from numba import types  # noqa: PLC0415 - heavy, and only this tier needs it
    from numba.extending import intrinsic  # noqa: PLC0415 - as above

    def reinterpret(typing: Any, source: Any, result: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(result))

        return result(source), generate

    def pointer(typing: Any, address: Any, dtype: Any) -> Any:
        """Return `address` as a pointer to elements of `dtype`."""
        result = types.CPointer(dtype.dtype)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(result))

        return result(address, dtype), generate

    def bits(typing: Any, a: Any) -> Any:
        return reinterpret(typing, a, types.uint32)

    def real(typing: Any, a: Any) -> Any:
        return reinterpret(typing, a, types.float32)

    def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.fma(*args)

        return a(a, a, a), generate

    return {one.__name__: intrinsic(one) for one in (pointer, bits, real, fma)}
