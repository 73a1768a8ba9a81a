"""Runs generated Triton with no GPU: one worker process under TRITON_INTERPRET=1 serves all tests.

The variable has to be set before triton is imported, hence the process. The interpreter has no
libdevice: its functions are replaced by torch's on the CPU.
"""

from __future__ import annotations

import atexit
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from jitmagic.codegen.plan import KernelSource, Plan
from jitmagic.loops.philox_state import PHILOX_STATE
from jitmagic.runtime.plan_interpreter import PlanRunner
from tests.processes import ROOT, child_environment

__all__ = ["PHILOX", "run_interpreted"]

PHILOX = (0x123456789ABCDEF, 4 * 7)  # the seed and the offset of draws


def run_interpreted(
    source: KernelSource | None, plan: Plan, inputs: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
    """Return (outputs, inputs after the call); an error of the worker is raised here."""
    worker = _worker()
    assert worker.stdin is not None
    assert worker.stdout is not None
    _Pickler(worker.stdin).dump((source, plan, list(inputs), torch.get_rng_state()))
    worker.stdin.flush()
    answer = pickle.load(worker.stdout)
    if isinstance(answer, str):
        raise RuntimeError(answer)
    *result, drawn = answer
    torch.set_rng_state(drawn)  # the plan's random draws happen here
    return tuple(result)


class _Pickler(pickle.Pickler):
    """ATen overloads travel by name."""

    def reducer_override(self, part: Any) -> Any:
        if isinstance(part, torch._ops.OpOverload):
            return _overload, (part._schema.name, part._overloadname)
        return NotImplemented


def _overload(name: str, overload: str) -> Any:
    space, op = name.split("::")
    return getattr(getattr(getattr(torch.ops, space), op), overload)


@lru_cache(maxsize=1)
def _worker() -> subprocess.Popen[bytes]:
    env = child_environment(TRITON_INTERPRET="1")
    command = [sys.executable, "-m", "tests.codegen.interpreted"]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT
    )
    atexit.register(worker.kill)
    return worker


# -- in the worker ------------------------------------------------------------------------------


def _serve() -> None:
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # of numpy: inf - inf and the like
    _replace_libdevice()
    _replace_instructions()
    _quicken_reductions()
    _round_to_bfloat16()
    _keep_assertions()
    draws = _draw_without_a_gpu()
    folder = tempfile.TemporaryDirectory()
    for number in range(10**6):
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = _run(Path(folder.name) / f"kernels{number}.py", *request)
        except Exception as error:  # any error should reach the test
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


def _run(
    path: Path,
    source: KernelSource | None,
    plan: Plan,
    inputs: list[torch.Tensor],
    generator: torch.Tensor,
) -> Any:
    torch.set_rng_state(generator)
    space: dict[str, Any] = {"__name__": path.stem}
    if source is not None:
        path.write_text(source.text)
        exec(compile(source.text, str(path), "exec"), space)

    def kernel(name: str) -> Any:
        assert source is not None
        numbers, grid = source.by_value.get(name, ()), source.grids[name].grid

        def launch(tensors: list[torch.Tensor]) -> None:
            given = [_number(t) if n in numbers else t for n, t in enumerate(tensors)]
            space[name][grid](*given)

        return launch

    runner = PlanRunner(plan, {name: kernel(name) for name in (source.symbols if source else ())})
    return list(runner(*inputs)), inputs, torch.get_rng_state()


def _number(tensor: torch.Tensor) -> Any:
    """Return a scalar as a kernel gets it; the interpreter would make a float32 of any float."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    names = {torch.float32: tl.float32, torch.float64: tl.float64, torch.int32: tl.int32}
    dtype = names.get(tensor.dtype, tl.int64)
    return tl.tensor(TensorHandle(tensor.reshape(()).numpy(), dtype), dtype)


def _draw_without_a_gpu() -> torch.library.Library:
    """Let dropouts of a GPU draw from a fixed state, as long as the library lives."""
    library = torch.library.Library("jitmagic", "IMPL")
    name, kind = PHILOX_STATE._schema.name, "CompositeExplicitAutograd"
    library.impl(name, lambda *_: tuple(map(torch.tensor, PHILOX)), kind)
    return library


def _replace_libdevice() -> None:
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def torch_op(op: Any) -> Any:
        def function(*args: Any) -> Any:
            arrays = np.broadcast_arrays(*[arg.handle.data for arg in args])
            found = op(*[torch.from_numpy(np.array(array)) for array in arrays]).numpy()
            dtype = args[0].dtype
            shape = np.shape(found)
            whole = max(args, key=lambda arg: len(arg.shape))
            kind = tl.block_type(dtype, list(shape)) if len(whole.shape) else dtype
            return tl.tensor(TensorHandle(found, dtype), kind)

        return function

    for name in (
        "rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh "
        "acosh atanh erf erfc erfinv lgamma atan2 hypot pow copysign nextafter fmod trunc floor "
        "sqrt"
    ).split():
        setattr(libdevice, name, torch_op(getattr(torch, name)))
    libdevice.nearbyint = torch_op(torch.round)
    # torch's vectorised fmod gives up where the quotient overflows
    libdevice.fmod = torch_op(lambda a, b: torch.from_numpy(np.fmod(a.numpy(), b.numpy())))


def _replace_instructions() -> None:
    import triton.language as tl
    from triton.language.extra import libdevice

    def instruction(asm: str, constraints: str, args: list[Any], *_: Any, **__: Any) -> Any:
        assert asm == "ex2.approx.ftz.f32 $0, $1;", asm
        return libdevice.exp2(*args)

    tl.inline_asm_elementwise = instruction


def _quicken_reductions() -> None:
    """Reduce large tiles by numpy: the interpreter calls a combining function once per element."""
    import numpy as np
    from triton.runtime.interpreter import ReduceOps

    quick = {"combine_max": np.maximum, "combine_min": np.minimum, "combine_prod": np.multiply}
    slowly = ReduceOps.generic_reduce

    def generic_reduce(self: Any, given: Any) -> Any:
        ufunc = quick.get(self.combine_fn.fn.__name__)
        data = given[0].handle.data
        if ufunc is None or data.size < 512:
            return slowly(self, given)
        found = ufunc.reduce(data, axis=self.axis, keepdims=self.keep_dims)
        return [self.to_tensor(found, given[0].dtype)]

    ReduceOps.generic_reduce = generic_reduce


def _round_to_bfloat16() -> None:
    """Round to nearest even as the GPU does, and multiply numbers: the interpreter truncates, and
    multiplies the bits.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast = InterpreterBuilder.cast_impl

    def cast_impl(self: Any, src: Any, kind: Any) -> Any:
        if src.dtype.scalar != tl.float32 or kind.scalar != tl.bfloat16:
            return cast(self, src, kind)
        rounded = torch.from_numpy(np.array(src.data)).to(torch.bfloat16)
        return TensorHandle(rounded.view(torch.uint16).numpy(), kind.scalar)

    InterpreterBuilder.cast_impl = cast_impl
    multiply = InterpreterBuilder.create_dot

    def widened(operand: TensorHandle) -> TensorHandle:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        held = torch.from_numpy(np.array(operand.data)).view(torch.bfloat16)
        return TensorHandle(held.float().numpy(), tl.float32)

    def create_dot(self: Any, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
        return multiply(self, widened(a), widened(b), *rest)

    InterpreterBuilder.create_dot = create_dot


def _keep_assertions() -> None:
    """Enable device assertions, which Triton otherwise checks only when debugging."""
    from dataclasses import replace

    from triton.runtime.interpreter import interpreter_builder

    options = replace(interpreter_builder.options, debug=True, sanitize_overflow=False)
    interpreter_builder.options = options


if __name__ == "__main__":
    _serve()
