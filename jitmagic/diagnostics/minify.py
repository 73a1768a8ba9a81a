"""minify: from a function that is compiled wrongly to the few operations that show it, as a script.

    jitmagic.minify(fn, "folder")(*args)   ->  Path of folder/repro.py, or None when nothing fails

In: a function and a call of it; its graphs are taken out with the tensors they are called with. A
graph fails when its compiled form crashes in a stage, or answers otherwise than eager (agreement.py
has the rule). Out: the smallest graph found that still fails in the same way, written as a script
over random inputs of the same specs, which raises AssertionError while the bug is there. Delta
debugging: results that nobody needs go, then the end of the graph, then its beginning (values
become inputs), then sizes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..api import handle_of, tagged_copy
from ..errors import FallbackWarning
from .agreement import agree as agree_on
from .agreement import in_double
from .cases import (
    Case,
    Values,
    answers,
    cases_of,
    changed_options,
    copy_graph,
    copy_of,
    made,
    with_outputs,
    without_waste,
)

__all__ = ["agree", "made", "minify"]

_FELL = ("could not be compiled", "code generator failed", "runs as eager")  # a stage failed
_HEAD = '''\
"""{what}

Written by jitmagic.minify; fails with AssertionError while the bug is there.
"""

import operator
from math import inf, nan

import torch
from torch import device

from jitmagic.diagnostics.minify import agree, made


'''


def minify(
    fn: Callable[..., Any], folder: str | Path = "jitmagic_repro", **options: Any
) -> Callable[..., Path | None]:
    """`minify(fn, folder)(*args)`: call `fn` once, and write the smallest failing part of it to
    folder/repro.py. None: every graph compiles and agrees with eager. Options are those of `jit`.
    """
    known = handle_of(fn)
    chosen = options or (changed_options(known.options) if known is not None else {})

    def run(*args: Any, **kwargs: Any) -> Path | None:
        for case in cases_of(fn, args, kwargs):
            failure = _failure_of(case, chosen)
            if failure is None:
                continue
            smallest = _shrink(case, partial(_fails_alike, failure, chosen))
            return _write(smallest, chosen, Path(folder))
        return None

    return run


# -- one candidate --------------------------------------------------------------------------------


def _failure_of(case: Case, options: Mapping[str, Any]) -> str | None:
    """ "wrong", "crash: KIND", or None; None too where eager itself refuses."""
    try:
        return _failure(case.function(), case.inputs, options)
    except Exception:  # a candidate that eager cannot run is none, whatever it raises
        return None


def _failure(
    fn: Callable[..., Any], inputs: Sequence[Tensor], options: Mapping[str, Any]
) -> str | None:
    expected = answers(fn, inputs)
    compiled = tagged_copy(fn, options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            got = answers(compiled, inputs)
        except Exception as error:  # eager did not raise: whatever this is, it is the failure
            return f"crash: {type(error).__name__}"
    for warning in told:
        message = str(warning.message)
        if issubclass(warning.category, FallbackWarning) and any(w in message for w in _FELL):
            return f"crash: {_kind(message)}"
    return None if agree_on(got, expected, lambda: in_double(fn, inputs)[0]) else "wrong"


def _kind(message: str) -> str:
    """The name of the error in a fallback's message, else what fell back."""
    names = [w.rstrip(":") for w in message.split() if w.endswith(("Error:", "Failed:"))]
    return names[0] if names else message.partition("\n")[0][:40]


# -- graphs ---------------------------------------------------------------------------------------


def _with_inputs(case: Case, names: Sequence[str], values: Mapping[str, Any]) -> Case:
    """These values become inputs."""
    graph, inputs = copy_graph(case.graph), list(case.inputs)
    for name in names:
        node = next(node for node in graph.nodes if node.name == name)
        first = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(first):
            holder = graph.placeholder(f"v_{name}")
        node.replace_all_uses_with(holder)
        graph.erase_node(node)
        inputs.append(copy_of(values[name]))
    return without_waste(graph, inputs)


# -- shrinking ------------------------------------------------------------------------------------

Fails = Callable[[Case], bool]


def _fails_alike(failure: str, options: Mapping[str, Any], case: Case) -> bool:
    return _failure_of(case, options) == failure


def _shrink(case: Case, fails: Fails) -> Case:
    """Take the first smaller candidate that fails, until there is none."""
    while True:
        smaller = next(
            (one for one in _candidates(case) if one.size < case.size and fails(one)), None
        )
        if smaller is None:
            return case
        case = smaller


def _candidates(case: Case) -> Iterator[Case]:
    """Smaller cases, the much smaller ones first."""
    values = Values(case).values
    nodes = [
        node
        for node in case.graph.nodes
        if node.op not in ("placeholder", "output") and isinstance(values[node.name], Tensor)
    ]
    for node in nodes:  # one operation alone, on the values it is given
        alone = with_outputs(case, [node.name])
        before = [n.name for n in node.all_input_nodes if n.op != "placeholder"]
        if all(isinstance(values[name], Tensor) for name in before):
            yield _with_inputs(alone, before, values)
    for node in nodes:  # the end goes
        yield with_outputs(case, [node.name])
    for node in nodes:  # the beginning goes
        yield _with_inputs(case, [node.name], values)
    yield from _smaller_sizes(case)


def _smaller_sizes(case: Case) -> Iterator[Case]:
    """Every dimension of one size gets a smaller one; where that cannot be, eager refuses."""
    sizes = sorted({n for tensor in case.inputs for n in tensor.shape if n > 2}, reverse=True)
    for size in sizes:
        for less in (2, size // 2):
            inputs = tuple(
                tensor[tuple(slice(less if n == size else n) for n in tensor.shape)]
                .detach()
                .clone()
                .requires_grad_(tensor.requires_grad)
                for tensor in case.inputs
            )
            yield Case(case.graph, inputs)


# -- the script -----------------------------------------------------------------------------------


def _write(case: Case, options: Mapping[str, Any], folder: Path) -> Path:
    """repro.py; with the very tensors beside it where random ones do not show the failure."""
    folder.mkdir(parents=True, exist_ok=True)
    failure = _failure_of(case, options)
    random = Case(case.graph, tuple(_remade(tensor) for tensor in case.inputs))
    if _failure_of(random, options) == failure:
        inputs = f"[\n{''.join(f'    {_made_text(t)},{chr(10)}' for t in case.inputs)}]"
    else:
        torch.save(list(case.inputs), folder / "inputs.pt")
        inputs = "torch.load(__file__.replace('repro.py', 'inputs.pt'))"
    given = {k: v for k, v in options.items() if isinstance(v, (str, bool, int, dict))}
    what = f"The compiled form of this graph fails ({failure})."
    call = f'if __name__ == "__main__":\n    agree(repro, INPUTS, **{given!r})\n'
    path = folder / "repro.py"
    path.write_text(f"{_HEAD.format(what=what)}{case.source()}\n\n\nINPUTS = {inputs}\n\n\n{call}")
    return path


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    """What `made` makes it of."""
    plain = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    whole = not plain and tensor.numel() > 0
    span = (int(tensor.min()), int(tensor.max())) if whole else (0, 0)
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device),
            tensor.requires_grad, *span)  # fmt: skip


def _made_text(tensor: Tensor) -> str:
    return f"made({', '.join(map(repr, _facts(tensor)))})"


def _remade(tensor: Tensor) -> Tensor:
    return made(*_facts(tensor))


def agree(fn: Callable[..., Any], inputs: Sequence[Tensor], **options: Any) -> None:
    """Raises AssertionError where the compiled function fails; says so where it does not."""
    failure = _failure(fn, inputs, options)
    if failure is not None:
        raise AssertionError(f"the compiled function fails: {failure}")
    print("the compiled function agrees with eager")
