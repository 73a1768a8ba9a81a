"""Graphs as data: what is read back is equal, runs alike and gives the same kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import jitmagic
from jitmagic.autograd.nodes import node_spec, placeholders
from jitmagic.autograd.result import Partition
from jitmagic.codegen import render, render_template
from jitmagic.compile import pipeline, sized_joint
from jitmagic.devices import find_target
from jitmagic.errors import CannotKeep
from jitmagic.graph.data.forms import TensorData
from jitmagic.graph.data.names import is_function, name_of
from jitmagic.graph.data.reading import graph_of, restored
from jitmagic.graph.data.writing import PLAIN, graph_data, stored
from jitmagic.graph.symbolic.concrete import graph_at
from jitmagic.graph.verify import verify
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.examples import examples
from jitmagic.schedule import schedule
from jitmagic.symbols.predicates import Predicates, fresh_sizes, read_as_ints
from jitmagic.symbols.symbolic_numbers import Symbol
from jitmagic.torch_types import OpOverload

from .stored_programs import PROGRAMS, Case

OPERATORS = (OpOverload, type(torch.ops.aten.add))


@dataclass
class Compiled:
    """What the stages made of a program."""

    case: Case
    traced: list[GraphModule] = field(default_factory=list)
    parts: list[tuple[Partition, Predicates | None]] = field(default_factory=list)


def compiled(case: Case, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Compile and run a program, without kernels, and return its graphs."""
    seen = Compiled(case)

    def noting(module: Any, name: str, note: Callable[..., None]) -> None:
        original = getattr(module, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            note(made, *args)
            return made

        monkeypatch.setattr(module, name, run)

    noting(pipeline, "edit_captured", lambda _, traced, *rest: seen.traced.append(traced.graph))
    noting(pipeline, "edit_parts", lambda made, *rest: seen.parts.append((made, None)))
    noting(sized_joint, "edit_parts", lambda made, *rest: seen.parts.append((made, None)))

    def with_predicates(made: Any, gm: GraphModule, name: str, within: Any, *rest: Any) -> None:
        last = seen.parts[-1][0]
        if gm is last.forward:
            seen.parts[-1] = last, within

    noting(sized_joint, "Templates", with_predicates)
    jitmagic.jit(case.build(), options={"cpu_tier": "aten"}, dynamic=case.dynamic)(*case.make())
    assert seen.parts
    return seen


@pytest.fixture(params=PROGRAMS, ids=str)
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    return compiled(request.param, monkeypatch)


def outcome(gm: GraphModule, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """The results of a graph, and its inputs afterwards, which it may write to."""
    torch.manual_seed(7)
    given = [one.detach().clone(memory_format=torch.preserve_format) for one in inputs]
    with torch.no_grad():
        return [*gm.forward(*given), *given]


def inputs_of_backward(parts: Partition, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What the forward saves, and gradients."""
    assert parts.backward is not None
    made: list[Any] = outcome(parts.forward, inputs)
    results, inputs = made[: -len(inputs)], made[-len(inputs) :]
    saved = [inputs[n] for n in parts.saved_inputs]
    saved += [results[n] for n in parts.saved_results]
    saved += results[parts.results :]
    tangents = placeholders(parts.backward)[len(saved) :]
    return [*saved, *examples([node_spec(node) for node in tangents])]


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().contiguous().view(-1).view(torch.uint8)


def same(one: list[Tensor | None], two: list[Tensor | None]) -> None:
    for a, b in zip(one, two, strict=True):
        assert (a is None) == (b is None)
        # Bytes are workspaces of torch's kernels, parts of which nobody writes.
        if a is not None and b is not None and a.dtype is not torch.uint8:
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert torch.equal(bytes_of(a), bytes_of(b))


def kernels(gm: GraphModule) -> Any:
    options = Options()
    target = find_target(torch.device("cpu"), options)
    plan, source = render(schedule(lower(gm, "graph"), target, options), target)
    return stored(plan), source


def sized_kernels(gm: GraphModule, within: Predicates, values: tuple[int, ...]) -> Any:
    """What a Template is made of, with the symbols that a stage needs as ints as constants."""
    options, fixed = Options(), set[Symbol]()
    target = find_target(torch.device("cpu"), options)
    while True:
        predicates, known = fresh_sizes(
            within.ranges, values, fixed, relations=within.relations, renames=True
        )
        try:
            fused = schedule(lower(gm, "graph", known), target, options)
            plans, source = render_template(fused, target, predicates.symbols)
        except Exception as error:
            if not (more := read_as_ints(error) - fixed):
                raise
            fixed |= more
            continue
        return stored(plans.plan(values)), source, str(predicates)


def live_in(data: Any) -> Iterator[object]:
    """What is no data in data."""
    kind = type(data)
    if kind in PLAIN or isinstance(data, Enum | TensorData) or isinstance(data, OPERATORS):
        return
    if is_function(data):
        if name_of(data) is None:
            yield data
    elif isinstance(data, dict):
        for key, item in data.items():
            yield from (*live_in(key), *live_in(item))
    elif isinstance(data, tuple | list | set | frozenset):
        for item in data:
            yield from live_in(item)
    elif isinstance(data, slice):
        yield from live_in((data.start, data.stop, data.step))
    elif is_dataclass(data):
        if not data.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            yield data
        yield from live_in(tuple(getattr(data, one.name) for one in fields(data)))
    else:
        yield data


def at_hints(parts: Partition, predicates: Predicates | None) -> Partition:
    """The partition at the sizes of the traced call."""
    if predicates is None:
        return parts
    known = dict(zip(predicates.symbols, hints(predicates), strict=True))
    backward = parts.backward and graph_at(parts.backward, known)
    return replace(parts, forward=graph_at(parts.forward, known), backward=backward)


def hints(predicates: Predicates) -> tuple[int, ...]:
    return tuple(predicates.context.hint_of(symbol) for symbol in predicates.symbols)


def graphs_of(parts: Partition) -> list[GraphModule]:
    return [parts.forward] if parts.backward is None else [parts.forward, parts.backward]


def run_alike(one: Partition, two: Partition) -> None:
    inputs = examples([node_spec(node) for node in placeholders(one.forward)])
    same(outcome(one.forward, inputs), outcome(two.forward, inputs))
    if one.backward is not None and two.backward is not None:
        given = inputs_of_backward(one, inputs)
        same(outcome(one.backward, given), outcome(two.backward, given))


def test_partitions(graphs: Compiled) -> None:
    for parts, predicates in graphs.parts:
        data = stored((parts, predicates))
        assert not list(live_in(data))
        again, others = restored(data)
        assert stored((again, others)) == data
        run_alike(at_hints(parts, predicates), at_hints(again, others))
        for one, two in zip(graphs_of(parts), graphs_of(again), strict=True):
            assert [n.name for n in one.graph.nodes] == [n.name for n in two.graph.nodes]
            if predicates is None:
                assert kernels(one) == kernels(two)
            else:
                values = hints(predicates)
                assert sized_kernels(one, predicates, values) == sized_kernels(two, others, values)


@pytest.mark.parametrize("with_values", [True, False])
def test_torch_level_graphs(graphs: Compiled, with_values: bool) -> None:
    if graphs.case.checks:
        with pytest.raises(CannotKeep, match="state"):
            graph_data(graphs.traced[0])
        return
    for gm in graphs.traced:
        data = graph_data(gm, with_values=with_values)
        assert not list(live_in(data))
        again = graph_of(data)
        assert graph_data(again, with_values=with_values) == data
        if with_values:
            verify(again)
