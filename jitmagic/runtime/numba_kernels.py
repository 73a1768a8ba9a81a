"""Numba text to machine code: the one file that imports numba, and only when such a kernel is
loaded.

In: a KernelSource of language "numba". Out: per kernel a C function `int (void* const* args)` as
the C++ tier has them, so that the native executor launches it in the same way. The text finds under
their names what numba lacks: typed pointers, bits of a float, a fused multiply-add, and `kernel`,
which compiles a function. No fast-math: NaN, infinities and roundings are IEEE's, division never
raises.
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
    """Kernel name -> compiled callback with `.address`; keep it alive while the address is used."""
    return dict(_built(source.text, tuple(source.symbols)))


@lru_cache(maxsize=64)
def _built(text: str, symbols: Sequence[str]) -> Mapping[str, Any]:
    """Of a process: numba has no cache on disk for functions that no file defines."""
    try:
        names = dict(_names())
    except Exception as error:  # installed for another numpy, it raises more than ImportError
        hint = "  hint: python -m pip install numba"
        raise ToolchainError("numba", "import numba", f"{error}\n{hint}") from error
    try:
        exec(compile(text, "<jitmagic numba kernels>", "exec"), names)
    except Exception as error:  # numba and LLVM raise errors of many unrelated classes
        raise ToolchainError("numba", ", ".join(symbols), str(error)) from error
    return {name: names[name] for name in symbols}


@lru_cache(maxsize=1)
def _names() -> Mapping[str, Any]:
    """What the text of a module may call."""
    from numba import cfunc, njit, types  # noqa: PLC0415 - heavy, and only this tier needs it

    signature = types.intc(types.CPointer(types.voidptr))

    def kernel(function: Callable[[Any], int]) -> Any:
        check()  # LLVM cannot be stopped within one
        return cfunc(signature, error_model="numpy")(function)

    compiled: dict[CodeType, Any] = {}

    def inline(function: Callable[..., Any]) -> Any:
        """Numba compiles it once for all texts: of a kernel of bfloat16 its helpers are two thirds
        of the time.
        """
        code = function.__code__.replace(co_firstlineno=1)  # texts differ in where it stands
        if code not in compiled:
            space = function.__globals__  # but for what it names, the first text's kernels
            named = {name: space[name] for name in code.co_names if name in space}
            compiled[code] = njit(error_model="numpy")(FunctionType(code, named))
        return compiled[code]

    return {"kernel": kernel, "inline": inline, **_intrinsics()}


def _intrinsics() -> dict[str, Any]:
    """Operations that are one LLVM instruction each."""
    from numba import types  # noqa: PLC0415 - heavy, and only this tier needs it
    from numba.extending import intrinsic  # noqa: PLC0415 - as above

    def reinterpret(typing: Any, source: Any, result: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(result))

        return result(source), generate

    def pointer(typing: Any, address: Any, dtype: Any) -> Any:
        """`address` as a pointer to elements of `dtype`."""
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
