"""minify: reduces a function that is compiled wrongly to a script with a few operations.

    jitmagic.minify(fn, "folder")(*args)   ->  Path of folder/repro.py, or None when nothing fails

Input: a function and its arguments. The graphs of that call are captured with their input tensors;
a graph fails if a compile stage crashes or its results differ from eager by the rule of
agreement.py. Output: the smallest graph found that fails in the same way, as a script with random
inputs that raises AssertionError as long as the bug exists. Delta debugging tries single
operations, then removes the end of the graph, then its beginning (values become inputs), then
reduces sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...autograd.nodes import copy_graph
from ...errors import ReportError
from ...torch_types import AnyFunction
from ..words import Question, count
from .cases import (
    Case,
    Values,
    capture_call,
    chosen_options,
    copy_of,
    with_outputs,
    without_waste,
)
from .scripts import NotWritable, failure_of, inputs_text, random_like, random_like_text, script

__all__ = ["minify"]


def minify(
    fn: AnyFunction, folder: str | Path = "jitmagic_repro", **options: object
) -> Question[Path | None]:
    """`minify(fn, folder)(*args)`: call `fn` once, and write its smallest failing part to a script.

    Returns the path of folder/repro.py. If every graph compiles and agrees with eager, a line is
    printed and None returned. `options` are those of `jit`.
    """
    chosen = chosen_options(fn, options)

    def run(*args: object, **kwargs: object) -> Path | None:
        compared = refused = 0
        for case in capture_call(fn, args, kwargs).cases:
            try:
                failure = failure_of(case.function(), case.inputs, chosen)
            except Exception:  # eager cannot run the graph alone, and may raise anything
                refused += 1
                continue
            compared += 1
            if failure is not None:
                smallest = _shrink(case, partial(_fails_alike, failure, chosen))
                return _write(smallest, chosen, Path(folder))
        print(_nothing_found(compared, refused))
        return None

    return Question("minify", fn, run)


def _nothing_found(compared: int, refused: int) -> str:
    """Return the message that is printed if there is no script to write."""
    rest = f"; {count(refused, 'graph')} not compared: eager raises there" if refused else ""
    if compared:
        agreed = f"eager and compiled agree ({count(compared, 'graph')} compared)"
        return f"minify: {agreed}, no script is written{rest}"
    return f"minify: nothing was compared{rest or ': this call has no graph'}"


# -- one candidate --------------------------------------------------------------------------------


def _failure_of(case: Case, options: Mapping[str, object]) -> str | None:
    """Return "wrong", "crash: KIND", or None if all agree or eager cannot run the candidate."""
    try:
        return failure_of(case.function(), case.inputs, options)
    except Exception:  # eager may raise anything on an invalid candidate
        return None


# -- graphs ---------------------------------------------------------------------------------------


def _with_inputs(case: Case, names: Sequence[str], values: Mapping[str, Tensor]) -> Case:
    """Return the case with the values of these nodes as further inputs."""
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


def _fails_alike(failure: str, options: Mapping[str, object], case: Case) -> bool:
    return _failure_of(case, options) == failure


def _shrink(case: Case, fails: Fails) -> Case:
    """Replace the case by the first smaller candidate that fails, until there is none."""
    while True:
        smaller = next(
            (
                candidate
                for candidate in _candidates(case)
                if candidate.size < case.size and fails(candidate)
            ),
            None,
        )
        if smaller is None:
            return case
        case = smaller


def _candidates(case: Case) -> Iterator[Case]:
    """Yield smaller cases, the much smaller ones first."""
    run = Values(case)
    nodes, values = run.tensor_operations(), run.values
    for node in nodes:  # one operation alone, on recorded input values
        alone = with_outputs(case, [node.name])
        before = [n.name for n in node.all_input_nodes if n.op != "placeholder"]
        if all(isinstance(values[name], Tensor) for name in before):
            yield _with_inputs(alone, before, values)
    for node in nodes:  # without the end of the graph
        yield with_outputs(case, [node.name])
    for node in nodes:  # without the beginning
        yield _with_inputs(case, [node.name], values)
    yield from _smaller_sizes(case)


def _smaller_sizes(case: Case) -> Iterator[Case]:
    """Yield cases with all dimensions of one size reduced; eager rejects the invalid ones."""
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


def _write(case: Case, options: Mapping[str, object], folder: Path) -> Path:
    """Write repro.py, and inputs.pt if random inputs do not show the failure; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    failure = _failure_of(case, options)
    random = Case(case.graph, tuple(random_like(tensor) for tensor in case.inputs))
    if _failure_of(random, options) == failure:
        inputs = inputs_text([random_like_text(tensor) for tensor in case.inputs])
    else:
        torch.save(list(case.inputs), folder / "inputs.pt")
        inputs = "torch.load(__file__.replace('repro.py', 'inputs.pt'))"
    given = {k: v for k, v in options.items() if isinstance(v, (str, bool, int, dict))}
    what = f"The compiled form of this graph fails ({failure}), with an AssertionError here."
    call = f'if __name__ == "__main__":\n    check_agreement(repro, INPUTS, **{given!r})\n'
    rest = f"INPUTS = {inputs}\n\n\n{call}"
    path = folder / "repro.py"
    try:
        text = script(what, "minify", case.graph, "check_agreement", rest)
    except NotWritable as error:
        raise ReportError(
            f"the graph that fails ({failure}) cannot be a script: {error}",
            "attach what jitmagic.report(folder) writes",
        ) from None
    path.write_text(text, encoding="utf-8")
    return path
