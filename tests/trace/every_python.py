"""Runs the corpus of Python programs on an interpreter without torch, and prints JSON.

    python3.13 -m tests.trace.every_python

A stand-in replaces torch with the few names that the core of the tracer uses. The torch side of the
tracer and the graph builder are left out.
"""

from __future__ import annotations

import dis
import importlib.util
import json
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TRIES = 5  # graph breaks tried per program
TORCH_SIDE = (
    "jitmagic.trace.builtins.pytorch.collectives",
    "jitmagic.trace.values.autograd.forward_mode",
    "jitmagic.trace.values.autograd.later_hooks",
    "jitmagic.trace.builtins.pytorch.attention",
    "jitmagic.trace.builtins.pytorch.autocast",
    "jitmagic.trace.builtins.pytorch.autograd_functions",
    "jitmagic.trace.builtins.pytorch.checkpointing",
    "jitmagic.trace.builtins.pytorch.checks",
    "jitmagic.trace.builtins.pytorch.composites",
    "jitmagic.trace.builtins.pytorch.control_flow",
    "jitmagic.trace.builtins.python.copying",
    "jitmagic.trace.builtins.pytorch.differentiation",
    "jitmagic.trace.builtins.pytorch.flex_attention",
    "jitmagic.trace.builtins.pytorch.functional",
    "jitmagic.trace.builtins.pytorch.numpy_calls",
    "jitmagic.trace.builtins.pytorch.optimizers",
    "jitmagic.trace.builtins.pytorch.process_state",
    "jitmagic.trace.builtins.pytorch.random_numbers",
    "jitmagic.trace.builtins.pytorch.recurrent",
    "jitmagic.trace.builtins.pytorch.torch_calls",
    "jitmagic.trace.builtins.pytorch.triton_operators",
    "jitmagic.trace.dead_calls",
    "jitmagic.trace.values.tensors.torch_namespaces",
    "jitmagic.trace.residual.undo",
    "jitmagic.trace.values.autograd.traced_backwards",
    "jitmagic.trace.values.autograd.transformed",
    "jitmagic.trace.values.modules.backward_hooks",
    "jitmagic.trace.values.caches.cached_tensors",
    "jitmagic.trace.values.contexts.attention_kernels",
    "jitmagic.trace.values.contexts.contexts",
    "jitmagic.trace.values.numbers.precomputed_scalars",
    "jitmagic.trace.values.modules.hook_handles",
    "jitmagic.trace.values.contexts.inference",
    "jitmagic.trace.values.modules.new_modules",
    "jitmagic.trace.values.modules.nn_module",
    "jitmagic.trace.values.numpy.numbers",
    "jitmagic.trace.values.contexts.torch_contexts",
    "jitmagic.trace.values.numpy.random_streams",
    "jitmagic.trace.values.numbers.arithmetic",
    "jitmagic.trace.values.numbers.number",
    "jitmagic.trace.values.objects.torchscript",
    "jitmagic.trace.values.tensors.function_subclasses",
    "jitmagic.trace.values.tensors.leaves",
    "jitmagic.trace.values.tensors.subclasses",
    "jitmagic.trace.values.tensors.tensor_hooks",
    "jitmagic.trace.values.tensors.tensor_inputs",
    "jitmagic.trace.values.tensors.tensor_members",
    "jitmagic.trace.values.tensors.torch_function",
    "jitmagic.trace.values.tensors.triton_kernels",
)


GRAPH_SIDE = tuple(
    f"jitmagic.graph.{name}"
    for name in (
        "builder",
        "gradients",
        "memory",
        "verify",
        "operators.overlap",
        "propagate",
        "wrappers.nodes",
        "wrappers.wrapping",
    )
)


class _StandIn(types.ModuleType):
    """A module whose every unknown name is a new, empty class."""

    __path__ = ["/no/torch"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class _Graph:
    """A graph that records nothing."""

    def __init__(self, grad_enabled: bool, step: Callable[[], int], transformed: bool) -> None:
        self.grad_enabled, self.step, self.is_transformed = grad_enabled, step, transformed
        self.assertions = self.leaves = ()
        self.root, self.work, self.arithmetic = self, 0, 0
        self.mutated_inputs: dict[Any, int] = {}

    def finish(self, name: str) -> tuple[Any, tuple]:
        return (lambda: ()), ()

    def written(self) -> tuple[int, ...]:
        return ()

    def differentiable_outputs(self) -> list[Any]:
        return []

    def reachable_leaves(self, outputs: list[Any]) -> list[Any]:
        return []


def _stand_in_for_torch() -> None:
    torch = _StandIn("torch")
    torch.__version__ = "2.13.0"
    torch.Size = type("Size", (tuple,), {})
    off = lambda *_: False
    for name in ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled"):
        setattr(torch, name, off)
    torch.are_deterministic_algorithms_enabled = off
    torch.get_default_dtype = lambda: None
    torch._C = _StandIn("torch._C")
    torch._C._len_torch_function_stack = torch._C._len_torch_dispatch_stack = lambda: 0
    torch._C._functorch = _StandIn("torch._C._functorch")
    torch._C._functorch.peek_interpreter_stack = lambda: None
    torch.nn, torch.fx = _StandIn("torch.nn"), _StandIn("torch.fx")
    torch._compile = _StandIn("torch._compile")
    torch._compile._disable_dynamo = lambda function: lambda *args: function(*args)
    sys.modules |= {
        "torch": torch,
        "torch.nn": torch.nn,
        "torch.nn.attention": _StandIn("torch.nn.attention"),
        "torch.fx": torch.fx,
        "torch._C": torch._C,
        "torch._compile": torch._compile,
    }
    for name in (*TORCH_SIDE, *GRAPH_SIDE):
        sys.modules[name] = _StandIn(name)
    sys.modules["jitmagic.graph.builder"].GraphBuilder = _Graph
    sys.modules["jitmagic.trace.values.tensors.tensor_hooks"].check_hooks = lambda notes: None
    sys.modules["jitmagic.trace.values.tensors.tensor_hooks"].TensorHooks = list
    leaves = sys.modules["jitmagic.trace.values.tensors.leaves"]
    leaves.check_leaves = leaves.output_leaves = lambda graph: None
    backwards = sys.modules["jitmagic.trace.values.autograd.traced_backwards"]
    backwards.release_facts, backwards.SavedObjects = lambda notes: None, dict
    sys.modules["jitmagic.trace.dead_calls"].check_dead_calls = lambda graph: None
    for name in ("jitmagic", "jitmagic.graph"):  # their own __init__ may import more of torch
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT / name.replace(".", "/"))]
        sys.modules[name] = package
    from jitmagic import late_tables

    # The stand-in is no torch for the modules that would otherwise all be loaded at once.
    late_tables._is_listed = True


# Tested also where that Python is not installed: an opcode without a handler is reported by name.
OPCODES_OF_314 = """
BINARY_OP BINARY_SLICE BUILD_INTERPOLATION BUILD_LIST BUILD_MAP BUILD_SET BUILD_SLICE BUILD_STRING
BUILD_TEMPLATE BUILD_TUPLE CACHE CALL CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2 CALL_KW
CHECK_EG_MATCH CHECK_EXC_MATCH CLEANUP_THROW COMPARE_OP CONTAINS_OP CONVERT_VALUE COPY
COPY_FREE_VARS DELETE_ATTR DELETE_DEREF DELETE_FAST DELETE_GLOBAL DELETE_NAME DELETE_SUBSCR
DICT_MERGE DICT_UPDATE END_ASYNC_FOR END_FOR END_SEND ENTER_EXECUTOR EXIT_INIT_CHECK EXTENDED_ARG
FORMAT_SIMPLE FORMAT_WITH_SPEC FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE GET_ITER GET_LEN
GET_YIELD_FROM_ITER IMPORT_FROM IMPORT_NAME INTERPRETER_EXIT IS_OP JUMP_BACKWARD
JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD LIST_APPEND LIST_EXTEND LOAD_ATTR LOAD_BUILD_CLASS
LOAD_COMMON_CONSTANT LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_BORROW
LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_FROM_DICT_OR_DEREF
LOAD_FROM_DICT_OR_GLOBALS LOAD_GLOBAL LOAD_LOCALS LOAD_NAME LOAD_SMALL_INT LOAD_SPECIAL
LOAD_SUPER_ATTR MAKE_CELL MAKE_FUNCTION MAP_ADD MATCH_CLASS MATCH_KEYS MATCH_MAPPING
MATCH_SEQUENCE NOP NOT_TAKEN POP_EXCEPT POP_ITER POP_JUMP_IF_FALSE POP_JUMP_IF_NONE
POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE POP_TOP PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE
RESERVED RESUME RETURN_GENERATOR RETURN_VALUE SEND SETUP_ANNOTATIONS SET_ADD
SET_FUNCTION_ATTRIBUTE SET_UPDATE STORE_ATTR STORE_DEREF STORE_FAST STORE_FAST_LOAD_FAST
STORE_FAST_STORE_FAST STORE_GLOBAL STORE_NAME STORE_SLICE STORE_SUBSCR SWAP TO_BOOL UNARY_INVERT
UNARY_NEGATIVE UNARY_NOT UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START YIELD_VALUE
""".split()


def check_opcodes(version: tuple[int, int], opcodes: Iterable[str]) -> str:
    """Check that every opcode of a version has a handler, a reason, or is removed by decode."""
    from jitmagic.bytecode.versions import tables
    from jitmagic.trace.opcodes.registry import UNSUPPORTED, handlers_of_version

    table, handled = tables()[version], set(handlers_of_version(version))
    decoded = {*table.superinstructions, *table.borrowed, *table.values}
    missing = set(opcodes) - handled - set(UNSUPPORTED) - decoded
    portable = {*table.aliases, *table.expansions} - handled
    twice = handled & set(UNSUPPORTED)
    ok = not missing and not portable and not twice
    return "ok" if ok else f"missing {missing | portable}, twice {twice}"


def running_opcodes() -> Iterable[str]:
    """Return the opcodes that code objects of the running interpreter have."""
    real = (name for name, number in dis.opmap.items() if number < 256)
    return (name for name in real if not name.startswith("INSTRUMENTED_"))


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        _stand_in_for_torch()
    from .agreement import agree
    from .forcing import break_anywhere, leave_loops, run_without_dispatcher
    from .loop_programs import PROGRAMS
    from .suspended_corpus import REWRITTEN

    checked = check_opcodes(sys.version_info[:2], running_opcodes())
    outcomes = {"every opcode has a handler or a reason": checked}
    for fn, make in PROGRAMS:
        try:
            agree(fn, make)
            if not fn.__defaults__:  # it would keep state between calls
                leave_loops(fn, make)
                break_anywhere(fn, make, TRIES, run_without_dispatcher)
            outcomes[fn.__name__] = "ok"
        except Exception:  # whatever went wrong is the outcome
            outcomes[fn.__name__] = traceback.format_exc(limit=-4)
    for name, check in REWRITTEN.items():
        try:
            check()
            outcomes[name] = "ok"
        except Exception:
            outcomes[name] = traceback.format_exc(limit=-4)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
