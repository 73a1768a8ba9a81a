"""scripts: writes graphs as standalone Python scripts, and defines the functions that those call.

Input: a graph whose inputs are tensors, and their specs. Output: the text of a script with the
graph as a plain function `repro`, which needs only torch and jitmagic, and inputs from
`random_tensor`. Nodes that contain graphs (calls of autograd functions, transforms of torch.func,
control flow) are built by code before that function. An object or operator of the user's program
cannot be written as text and raises NotWritable. Scripts of minify call `check_agreement`, scripts
of a report call `replay`.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from textwrap import indent
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

from ...api import tagged_copy, tagged_handle
from ...compat.pytree import treespec_dumps
from ...errors import FallbackWarning
from ...graph.operators.foreign import is_foreign, name_of
from ...graph.targets.control_flow import PLACES, ControlFlow
from ...graph.targets.flex_attention import FlexAttention
from ...graph.targets.regions import FunctionCall
from ...graph.targets.transforms import Pattern, Pull, Slot, Transformed
from ...graph.triton.launches import kernel_name
from ...lazy_dataclass import dataclass, field
from ...spec import TensorSpec, spec_of
from ...torch_types import AnyFunction
from ...trace.result import Break, Trace
from ..builds import operations_of
from ..words import count
from .agreement import Line, compare, in_double
from .cases import Results, collect_results, random_tensor, source_of

__all__ = [
    "NotWritable",
    "check_agreement",
    "failure_of",
    "inputs_text",
    "not_replayable",
    "random_like",
    "random_like_text",
    "random_tensor",
    "random_tensor_text",
    "replay",
    "run",
    "script",
]

_FELL = ("could not be compiled", "code generator failed", "runs as eager")  # a stage failed
_HEAD = '''\
"""{what}

Written by jitmagic.{writer}.
"""

import operator
from math import inf, nan

import torch
from torch import device

from jitmagic.diagnostics.checking.scripts import {calls}, random_tensor


'''
_REGIONS = "from jitmagic.graph.targets.regions import FunctionCall, HookCall, Region\n"
_TRANSFORMS = (
    "from torch.utils._pytree import treespec_loads\n\n"
    "from jitmagic.graph.targets.transforms import Pattern, Pull, Slot, Transformed\n"
)


class NotWritable(Exception):
    """A graph cannot be written as a script, for the reason in the message."""


# -- the text of a graph ---------------------------------------------------------------------------


def script(what: str, writer: str, graph: Graph, calls: str, rest: str) -> str:
    """Return the text of a script: imports, the graph as a function `repro`, then `rest`.

    what, writer: text for the head, which must not contain the user's text, as it is not escaped
    calls: the function of this module that `rest` calls
    Raises NotWritable.
    """
    head = _HEAD.format(what=what, writer=writer, calls=calls)
    return f"{head}{_function(graph, 'repro')}\n\n\n{rest}"


def _function(graph: Graph, name: str) -> str:
    """Return the function's source after the definitions of the objects that it needs."""
    for node in graph.nodes:
        if node.op == "get_attr":
            raise NotWritable("a graph inside it holds a tensor")
        if (kernel := kernel_name(node.target)) is not None:
            raise NotWritable(f"it launches the Triton kernel {kernel}")
        if is_foreign(node.target):
            raise NotWritable(f"it calls the custom operator {name_of(node.target)}")
    source, names = source_of(graph, name)
    used = set(compile(source, "<graph>", "exec").co_consts[0].co_names)
    needs = [
        _definition(key, value)
        for key, value in names.items()
        if key in used and key not in _IMPORTED
    ]
    return "\n".join([*needs, source])


_IMPORTED = frozenset({"torch", "device", "inf", "nan", "operator"})


def _definition(key: str, value: object) -> str:
    """Return code that binds `key` to `value`."""
    if isinstance(value, FunctionCall):
        return _autograd_function(key, value)
    if isinstance(value, Transformed):
        return _transformed(key, value)
    if isinstance(value, Pull):
        settings, arguments = _literal(value.settings), _pattern(value.arguments)
        return _factory(key, f"{_TRANSFORMS}\nreturn Pull({settings}, {arguments})")
    if isinstance(value, ControlFlow):
        return _control_flow(key, value)
    if isinstance(value, FlexAttention):
        return _flex_attention(key, value)
    if value is type(None):
        return f"{key} = type(None)"
    module, name = _home(value)
    return f"from {module} import {name} as {key}"


def _home(value: object) -> tuple[str, str]:
    """Return the module (of torch, jitmagic or the standard library) and name of the object."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if isinstance(module, str) and isinstance(name, str):
        root = module.partition(".")[0]
        known = root in ("torch", "jitmagic") or root in sys.stdlib_module_names
        if known and getattr(sys.modules.get(module), name, None) is value and name.isidentifier():
            return module, name
    raise NotWritable(f"it needs an object of your program, a {type(value).__name__}")


def _autograd_function(key: str, call: FunctionCall) -> str:
    name = call.__name__.removesuffix("_apply")
    flags = (
        f"dirty={call.dirty!r}, constant={call.constant!r}, "
        f"materialize={call.materialize!r}, once={call.once!r}"
    )
    lines = [_REGIONS, f"call = {type(call).__name__}({name!r}, {flags})"]
    if (region := call.backward) is not None:
        lines.insert(1, _function(region.graph.graph, "backward") + "\n")
        lines.append(f"call.backward = Region(backward, {region.feeds!r}, {region.returns!r})")
    return _factory(key, "\n".join([*lines, "return call"]))


def _transformed(key: str, call: Transformed) -> str:
    module, name = _home(call.transform)
    function = _function(call.region.graph, "function")
    return _factory(
        key,
        f"{_TRANSFORMS}from {module} import {name} as transform\n\n{function}\n\n"
        f"return Transformed(transform, {_literal(call.settings)}, {call.takes_function!r}, "
        f"function, {call.feeds!r}, {_pattern(call.arguments)}, {_pattern(call.answer)})",
    )


def _control_flow(key: str, flow: ControlFlow) -> str:
    names = PLACES[flow.kind]
    graphs = [
        _function(body.graph.graph, name) for name, body in zip(names, flow.bodies, strict=True)
    ]
    bodies = "".join(
        f"Body({name}, {body.feeds!r}, {body.returns!r}, {body.reaches!r}), "
        for name, body in zip(names, flow.bodies, strict=True)
    )
    facts = f"{flow.given}, {flow.carried}, {flow.differentiable!r}, {flow.ints!r}"
    made = f"return ControlFlow({flow.kind!r}, ({bodies}), {facts})"
    head = "from jitmagic.graph.targets.control_flow import Body, ControlFlow"
    return _factory(key, "\n\n".join([head, *graphs, made]))


def _flex_attention(key: str, target: FlexAttention) -> str:
    graphs = [_function(body.graph.graph, name) for name, body in target.bodies.items()]
    texts = {
        name: f"Body({name}, {body.feeds!r}, {body.returns!r})"
        for name, body in target.bodies.items()
    }
    functions = ", ".join(texts.get(name, "None") for name in ("score_mod", "mask_mod"))
    form = target.form
    facts = f"{form.scale!r}, {form.blocks}, {form.block_size!r}, {form.bias}"
    head = (
        "from jitmagic.graph.targets.attention_operators import Form\n"
        "from jitmagic.graph.targets.control_flow import Body\n"
        "from jitmagic.graph.targets.flex_attention import FlexAttention"
    )
    made = f"return FlexAttention(Form({functions}, {facts}))"
    return _factory(key, "\n\n".join([head, *graphs, made]))


def _factory(key: str, body: str) -> str:
    """Return code that binds `key` to the value the body returns, with the body's names local."""
    return f"def _make_{key}():\n{indent(body, '    ')}\n\n\n{key} = _make_{key}()\n\n"


def _pattern(pattern: Pattern) -> str:
    leaves = ", ".join(_literal(leaf) for leaf in pattern.leaves)
    try:
        spec = treespec_dumps(pattern.spec)
    except Exception as error:  # pytree nodes of user classes; torch raises various errors
        raise NotWritable(f"it takes or returns a structure of your program: {error}") from None
    return f"Pattern(({leaves}{',' if leaves else ''}), treespec_loads({spec!r}))"


def _literal(value: object) -> str:
    """Return the source of a constant, or of a container of constants."""
    if isinstance(value, Slot):
        return f"Slot({value.index})"
    if isinstance(value, tuple | list):
        inside = "".join(f"{_literal(part)}, " for part in value)
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, dict):
        parts = (f"{_literal(k)}: {_literal(v)}" for k, v in value.items())
        return f"{{{', '.join(parts)}}}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, torch.dtype | torch.device):
        return repr(value)
    raise NotWritable(f"it takes an object of your program, a {type(value).__name__}")


# -- the inputs ------------------------------------------------------------------------------------


def _facts(
    tensor: Tensor,
) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype, str, bool, int, int]:
    """Return the arguments of `random_tensor` for a tensor with this spec and range of integers."""
    plain = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    whole = not plain and tensor.numel() > 0
    span = (int(tensor.min()), int(tensor.max())) if whole else (0, 0)
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device),
            tensor.requires_grad, *span)  # fmt: skip


def random_like_text(tensor: Tensor) -> str:
    """Return the source of the call of `random_tensor` for a tensor like this one."""
    return f"random_tensor({', '.join(map(repr, _facts(tensor)))})"


def random_tensor_text(spec: TensorSpec) -> str:
    """Return the source of the call of `random_tensor` for a spec.

    Integers are zeros, which are valid as indices. Weights are scaled by 1/sqrt(fan in): in a chain
    of products of standard normal numbers rounding errors grow until no two programs agree.
    """
    shape = tuple(map(int, spec.shape))
    facts = (shape, tuple(map(int, spec.stride)), spec.dtype, str(spec.device), spec.requires_grad)
    fan_in = math.prod(shape[1:])
    is_weight = spec.requires_grad and spec.is_leaf and len(shape) > 1 and fan_in > 1
    scale = f", scale={fan_in**-0.5:.3g}" if is_weight else ""
    return f"random_tensor({', '.join(map(repr, facts))}{scale})"


def inputs_text(texts: Sequence[str]) -> str:
    """Return the source of a list with one tensor per line."""
    return f"[\n{''.join(f'    {text},{chr(10)}' for text in texts)}]"


def random_like(tensor: Tensor) -> Tensor:
    """Return the tensor that the text of `random_like_text` evaluates to."""
    return random_tensor(*_facts(tensor))


# -- functions that scripts call -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Compared:
    """The result of comparing a graph's compiled form with eager.

    kind: "wrong", "crash: KIND", or None if all tensors agree
    graphs: number of compiled graphs; breaks: the reasons of graph breaks
    """

    kind: str | None
    lines: tuple[Line, ...] = ()
    graphs: int = 0
    breaks: tuple[str, ...] = ()
    eager: tuple[str, ...] = field(default=())  # why a part runs as plain Python


def _compared(
    fn: AnyFunction, inputs: Sequence[Tensor], expected: Results, options: Mapping[str, object]
) -> _Compared:
    compiled = tagged_copy(fn, options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            got = collect_results(compiled, inputs)
        except Exception as error:  # eager did not raise, so any error is the failure
            return _Compared(f"crash: {type(error).__name__}")
    for warning in caught:
        message = str(warning.message)
        if issubclass(warning.category, FallbackWarning) and any(w in message for w in _FELL):
            return _Compared(f"crash: {_kind(message)}")
    lines = compare(got, expected, {})
    if not all(line.agrees for line in lines):
        lines = compare(got, expected, in_double(fn, inputs)[0])
    wrong = tuple(line for line in lines if not line.agrees)
    records = list(tagged_handle(compiled).journal)
    traces = [t for r in records if isinstance(t := r.result("trace"), Trace)]
    breaks = tuple(t.exit.reason.message for t in traces if isinstance(t.exit, Break))
    graphs = sum(bool(operations_of(t.graph.graph)) for t in traces)
    why = tuple(r.outcome.why for r in records if hasattr(r.outcome, "why"))
    return _Compared("wrong" if wrong else None, wrong, graphs, breaks, why)


def _kind(message: str) -> str:
    """Return the name of the error in a fallback's message, else the message's beginning."""
    names = [w.rstrip(":") for w in message.split() if w.endswith(("Error:", "Failed:"))]
    return names[0] if names else message.partition("\n")[0][:40]


def failure_of(
    fn: AnyFunction, inputs: Sequence[Tensor], options: Mapping[str, object]
) -> str | None:
    """Return "wrong", "crash: KIND", or None if both agree. Raises what eager raises."""
    return _compared(fn, inputs, collect_results(fn, inputs), options).kind


def check_agreement(fn: AnyFunction, inputs: Sequence[Tensor], **options: object) -> None:
    """Raise AssertionError if the compiled function fails; otherwise print that it agrees."""
    failure = failure_of(fn, inputs, options)
    if failure is not None:
        raise AssertionError(f"the compiled function fails: {failure}")
    print("the compiled function agrees with eager")


def run(fn: AnyFunction, inputs: Sequence[Tensor]) -> None:
    """Run the graph as eager and print the spec of each result."""
    for number, result in enumerate(fn(*inputs)):
        shown = spec_of(result) if isinstance(result, Tensor) else result
        print(f"result {number}: {shown}")


def replay(
    fn: AnyFunction,
    inputs: Callable[[], Sequence[Tensor]],
    *,
    state: Mapping[str, Any],
    options: Mapping[str, object],
) -> int:
    """Print whether the graph agrees with eager on random inputs, and return the exit status.

    state: torch's state at the trace. The status is 0 if they agree, 1 if they differ, 2 if the
    graph cannot be replayed on this machine.
    """
    with ExitStack() as stack:
        _enter(stack, **state)
        try:
            tensors = inputs()
            expected = collect_results(fn, tensors)
        except Exception as error:  # eager may raise anything: a device may be missing here
            return not_replayable(f"eager raises {type(error).__name__}: {error}")
        found = _compared(fn, tensors, expected, options)
    if found.kind is not None:
        print(f"differs: {found.kind}", *found.lines, sep="\n  ")
        return 1
    if not found.graphs:
        return not_replayable("; ".join(found.eager or found.breaks) or "nothing is computed")
    parts = [count(found.graphs, "graph"), *(f"graph break: {why}" for why in found.breaks)]
    print(f"agrees with eager ({'; '.join(parts)})")
    return 0


def _enter(
    stack: ExitStack,
    grad: bool,
    inference: bool,
    autocast: Mapping[str, torch.dtype],
    default: torch.dtype,
    deterministic: bool,
) -> None:
    """Set torch's state of process and thread until the stack is closed."""
    # torch.use_deterministic_algorithms would import Inductor (1.4 s) and lose the warn-only mode.
    stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(default)
    stack.enter_context(torch.set_grad_enabled(grad))
    if inference:
        stack.enter_context(torch.inference_mode())
    for where, dtype in autocast.items():
        stack.enter_context(torch.autocast(where, dtype))


def not_replayable(why: str) -> int:
    """Print the reason, and return the exit status 2."""
    print(f"not replayable: {why}")
    return 2
