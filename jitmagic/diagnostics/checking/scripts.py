"""scripts: graphs as Python files that run by themselves, and what such a file says of itself.

Comes in: a graph of tensors only, and what its inputs look like. Goes out: the text of a script: a
plain function `repro`, which needs nothing but torch and jitmagic, and inputs made up by `made`.
Nodes that carry graphs of their own (calls of autograd functions, transforms of torch.func) are
built by code that stands before the function. What no text can stand for (an object or an operator
of the program's) raises NotWritable, with the reason. A script of minify calls `agree`, one of a
report calls `replay`.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph
from torch.utils._pytree import treespec_dumps

from ...api import tagged_copy, tagged_handle
from ...errors import FallbackWarning
from ...graph.operators.foreign import is_foreign, name_of
from ...graph.regions import FunctionCall
from ...graph.transforms import Pattern, Pull, Slot, Transformed
from ...spec import TensorSpec, spec_of
from ...trace.result import Break, Trace
from ..words import count
from .agreement import Line, compare, in_double
from .cases import Answers, answers, made, source_of

__all__ = [
    "NotWritable",
    "agree",
    "failure_of",
    "inputs_text",
    "made",
    "made_text",
    "made_text_of",
    "not_replayable",
    "remade",
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

from jitmagic.diagnostics.checking.scripts import {calls}, made


'''
_REGIONS = "from jitmagic.graph.regions import FunctionCall, Region\n"
_TRANSFORMS = (
    "from torch.utils._pytree import treespec_loads\n\n"
    "from jitmagic.graph.transforms import Pattern, Pull, Slot, Transformed\n"
)


class NotWritable(Exception):
    """Why a graph cannot be a script."""


# -- the text of a graph ---------------------------------------------------------------------------


def script(what: str, writer: str, graph: Graph, calls: str, rest: str) -> str:
    """The whole file: the graph as a function `repro`, what it needs before it, `rest`, which calls
    the function `calls` of this module, after it. `what` and `writer` hold nothing of the user's.
    Raises NotWritable.
    """
    head = _HEAD.format(what=what, writer=writer, calls=calls)
    return f"{head}{_function(graph, 'repro')}\n\n\n{rest}"


def _function(graph: Graph, name: str) -> str:
    """The function, after what it needs that torch and the file's imports do not have."""
    for node in graph.nodes:
        if node.op == "get_attr":
            raise NotWritable("a graph inside of it holds a tensor")
        if is_foreign(node.target):
            raise NotWritable(f"it calls {name_of(node.target)}, an operator of yours")
    source, names = source_of(graph, name)
    used = set(compile(source, "<graph>", "exec").co_consts[0].co_names)
    needs = [
        _definition(key, value)
        for key, value in names.items()
        if key in used and key not in _IMPORTED
    ]
    return "\n".join([*needs, source])


_IMPORTED = frozenset({"torch", "device", "inf", "nan", "operator"})


def _definition(key: str, value: Any) -> str:
    """Code after which `key` is `value`."""
    if isinstance(value, FunctionCall):
        return _autograd_function(key, value)
    if isinstance(value, Transformed):
        return _transformed(key, value)
    if isinstance(value, Pull):
        settings, arguments = _literal(value.settings), _pattern(value.arguments)
        return _factory(key, f"{_TRANSFORMS}\nreturn Pull({settings}, {arguments})")
    if value is type(None):
        return f"{key} = type(None)"
    module, name = _home(value)
    return f"from {module} import {name} as {key}"


def _home(value: Any) -> tuple[str, str]:
    """The module and the name that import the object; that module is part of any installation."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if isinstance(module, str) and isinstance(name, str):
        root = module.partition(".")[0]
        known = root in ("torch", "jitmagic") or root in sys.stdlib_module_names
        if known and getattr(sys.modules.get(module), name, None) is value and name.isidentifier():
            return module, name
    raise NotWritable(f"it needs an object of the program's, {type(value).__name__}")


def _autograd_function(key: str, call: FunctionCall) -> str:
    name = call.__name__.removesuffix("_apply")
    flags = (
        f"dirty={call.dirty!r}, constant={call.constant!r}, "
        f"materialize={call.materialize!r}, once={call.once!r}"
    )
    lines = [_REGIONS, f"call = FunctionCall({name!r}, {flags})"]
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


def _factory(key: str, body: str) -> str:
    """What the body returns, with its names its own."""
    return f"def _made_{key}():\n{indent(body, '    ')}\n\n\n{key} = _made_{key}()\n\n"


def _pattern(pattern: Pattern) -> str:
    leaves = ", ".join(_literal(leaf) for leaf in pattern.leaves)
    try:
        spec = treespec_dumps(pattern.spec)
    except Exception as error:  # of classes of the program's own
        raise NotWritable(f"it takes or gives a structure of the program's: {error}") from None
    return f"Pattern(({leaves}{',' if leaves else ''}), treespec_loads({spec!r}))"


def _literal(value: Any) -> str:
    """Constants, and containers of such."""
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
    raise NotWritable(f"it is given an object of the program's, {type(value).__name__}")


# -- the inputs ------------------------------------------------------------------------------------


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    """What `made` makes it of."""
    plain = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    whole = not plain and tensor.numel() > 0
    span = (int(tensor.min()), int(tensor.max())) if whole else (0, 0)
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device),
            tensor.requires_grad, *span)  # fmt: skip


def made_text(tensor: Tensor) -> str:
    """The call of `made` for a tensor like this one."""
    return f"made({', '.join(map(repr, _facts(tensor)))})"


def made_text_of(spec: TensorSpec) -> str:
    """The same where only the spec is known: integers are zeros, which are valid as indices. What
    looks like a layer's weights is as small as such are: of the numbers that a chain of products of
    normal ones comes to, rounding leaves little, and eager agrees with nothing.
    """
    shape = tuple(map(int, spec.shape))
    facts = (shape, tuple(map(int, spec.stride)), spec.dtype, str(spec.device), spec.requires_grad)
    fan_in = math.prod(shape[1:])
    is_weight = spec.requires_grad and spec.is_leaf and len(shape) > 1 and fan_in > 1
    scale = f", scale={fan_in**-0.5:.3g}" if is_weight else ""
    return f"made({', '.join(map(repr, facts))}{scale})"


def inputs_text(texts: Sequence[str]) -> str:
    """A list, one tensor a line."""
    return f"[\n{''.join(f'    {text},{chr(10)}' for text in texts)}]"


def remade(tensor: Tensor) -> Tensor:
    """What `made_text` makes of it."""
    return made(*_facts(tensor))


# -- what a script says ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Compared:
    """`kind`: "wrong", "crash: KIND", or None where all agrees; graphs: that were compiled;
    breaks: between them, in words.
    """

    kind: str | None
    lines: tuple[Line, ...] = ()
    graphs: int = 0
    breaks: tuple[str, ...] = ()
    eager: tuple[str, ...] = field(default=())  # why a part runs as plain Python


def _compared(
    fn: Callable[..., Any], inputs: Sequence[Tensor], expected: Answers, options: Mapping[str, Any]
) -> _Compared:
    compiled = tagged_copy(fn, options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            got = answers(compiled, inputs)
        except Exception as error:  # eager did not raise: whatever this is, it is the failure
            return _Compared(f"crash: {type(error).__name__}")
    for warning in told:
        message = str(warning.message)
        if issubclass(warning.category, FallbackWarning) and any(w in message for w in _FELL):
            return _Compared(f"crash: {_kind(message)}")
    lines = compare(got, expected, {})
    if not all(line.agrees for line in lines):
        lines = compare(got, expected, in_double(fn, inputs)[0])
    wrong = tuple(line for line in lines if not line.agrees)
    return _Compared("wrong" if wrong else None, wrong, *_ran(compiled))


def _ran(compiled: Any) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """How much of it is compiled code."""
    records = list(tagged_handle(compiled).journal)
    traces = [t for r in records if isinstance(t := r.result("trace"), Trace)]
    breaks = tuple(t.exit.reason.message for t in traces if isinstance(t.exit, Break))
    graphs = sum(any(n.op.startswith("call") for n in t.graph.graph.nodes) for t in traces)
    why = tuple(r.outcome.why for r in records if hasattr(r.outcome, "why"))
    return graphs, breaks, why


def _kind(message: str) -> str:
    """The name of the error in a fallback's message, else what fell back."""
    names = [w.rstrip(":") for w in message.split() if w.endswith(("Error:", "Failed:"))]
    return names[0] if names else message.partition("\n")[0][:40]


def failure_of(
    fn: Callable[..., Any], inputs: Sequence[Tensor], options: Mapping[str, Any]
) -> str | None:
    """ "wrong", "crash: KIND", or None; raises what eager raises."""
    return _compared(fn, inputs, answers(fn, inputs), options).kind


def agree(fn: Callable[..., Any], inputs: Sequence[Tensor], **options: Any) -> None:
    """Raises AssertionError where the compiled function fails; says so where it does not."""
    failure = failure_of(fn, inputs, options)
    if failure is not None:
        raise AssertionError(f"the compiled function fails: {failure}")
    print("the compiled function agrees with eager")


def run(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    """Run the graph as it is, and say what came out."""
    for number, result in enumerate(fn(*inputs)):
        told = spec_of(result) if isinstance(result, Tensor) else result
        print(f"result {number}: {told}")


def replay(
    fn: Callable[..., Any],
    inputs: Callable[[], Sequence[Tensor]],
    *,
    state: Mapping[str, Any],
    options: Mapping[str, Any],
) -> int:
    """Say whether the graph agrees with eager on made-up inputs, under the state it was traced in.
    The exit status: 0 it agrees, 1 it differs, 2 it cannot be replayed here.
    """
    with ExitStack() as stack:
        _enter(stack, **state)
        try:
            tensors = inputs()
            expected = answers(fn, tensors)
        except Exception as error:  # whatever eager raises, a device that is not there
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
    """The state of the process and the thread, until the stack is left. Determinism by its mode:
    torch.use_deterministic_algorithms imports Inductor, 1.4 s, and forgets that only warnings were
    asked for.
    """
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
    """Print it; the exit status."""
    print(f"not replayable: {why}")
    return 2
