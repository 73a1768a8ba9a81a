"""Graphs as data: what is read back is equal, runs alike and gives the same kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

import jitmagic
from jitmagic.artifact.codec import Writer
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.nodes import node_spec, placeholders
from jitmagic.autograd.result import Partition
from jitmagic.codegen import render, render_template
from jitmagic.compile import pipeline, sized_joint
from jitmagic.devices import find_target
from jitmagic.errors import CannotKeep, CompileFailed
from jitmagic.graph.autocast_mode import restoring_modes
from jitmagic.graph.data.forms import NamedObject, ObjectData, OperatorData, TensorData
from jitmagic.graph.data.names import is_function, name_of
from jitmagic.graph.data.reading import graph_of, restored
from jitmagic.graph.data.writing import PLAIN, graph_data, stored
from jitmagic.graph.lazy_module import LazyModule
from jitmagic.graph.memory import storage_under
from jitmagic.graph.node_meta import specs_in, symbols_in, tensors_in
from jitmagic.graph.symbolic.concrete import graph_at, sized_graph
from jitmagic.graph.targets.attention_operators import FLEX_OPERATORS
from jitmagic.graph.verify import verify
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.examples import examples
from jitmagic.schedule import schedule
from jitmagic.symbols.predicates import Predicates, fresh_sizes, read_as_ints
from jitmagic.symbols.size import Size
from jitmagic.symbols.symbolic_numbers import Symbol
from jitmagic.torch_types import OpOverload
from jitmagic.trace.values.numpy.numpy_operators import ArrayLayout, numpy_operator

from ..processes import run_python
from .data_files import written
from .stored_programs import PROGRAMS, Case

D = torch.float64
OPERATORS = (OpOverload, type(torch.ops.aten.add))


@dataclass
class Compiled:
    """What the stages made of a program."""

    case: Case
    traced: list[GraphModule] = field(default_factory=list)
    parts: list[tuple[Partition, Predicates | None]] = field(default_factory=list)


@cache
def compiled(case: Case) -> Compiled:
    """Compile and run a program, without kernels, and return its graphs."""
    seen = Compiled(case)

    def noting(module: Any, name: str, note: Callable[..., None]) -> None:
        original = getattr(module, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            note(made, *args)
            return made

        patch.setattr(module, name, run)

    def with_predicates(made: Any, gm: GraphModule, name: str, within: Any, *rest: Any) -> None:
        last = seen.parts[-1][0]
        if gm is last.forward:
            seen.parts[-1] = last, within

    with pytest.MonkeyPatch.context() as patch:
        noting(pipeline, "edit_captured", lambda _, traced, *rest: seen.traced.append(traced.graph))
        noting(pipeline, "edit_parts", lambda made, *rest: seen.parts.append((made, None)))
        noting(sized_joint, "edit_parts", lambda made, *rest: seen.parts.append((made, None)))
        noting(sized_joint, "Templates", with_predicates)
        tagged = jitmagic.jit(case.build(), options={"cpu_tier": "aten"}, dynamic=case.dynamic)
        for arguments in case.calls():
            with contextlib.suppress(*case.raises):
                tagged(*arguments)
    return seen


@pytest.fixture(params=PROGRAMS, ids=str)
def graphs(request: pytest.FixtureRequest) -> Compiled:
    return compiled(request.param)


def outcome(gm: GraphModule, inputs: Sequence[Tensor], grad: bool = False) -> list[Any]:
    """The results of a graph, and its inputs afterwards, which it may write to."""
    torch.manual_seed(7)
    given = [one.detach().clone(memory_format=torch.preserve_format) for one in inputs]
    for one, node in zip(given, placeholders(gm), strict=True):
        one.requires_grad_(grad and node_spec(node).requires_grad)
    with torch.set_grad_enabled(grad):
        return [*restoring_modes(gm, gm.forward)(*given), *given]


def inputs_of_backward(parts: Partition, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What the forward saves, and gradients."""
    assert parts.backward is not None
    made = outcome(parts.forward, inputs)
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
    """The kernels for all sizes, with the symbols that a stage needs as ints as constants."""
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
        data = stored((plans, source, predicates))  # what a Template is made of
        assert stored(restored(data)) == data
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


def at_traced_sizes(gm: GraphModule) -> GraphModule:
    """A torch-level graph with the sizes of the traced call."""
    nodes = list(gm.graph.nodes)
    found = {symbol for node in nodes for symbol in symbols_in(node)}
    contexts = [
        size.context
        for node in nodes
        for spec in specs_in(node)
        for size in (*spec.shape, *spec.stride)
        if isinstance(size, Size)
    ]
    return sized_graph(gm, {s: contexts[0].hint_of(s) for s in found})[0] if found else gm


def joint_of(gm: GraphModule) -> str:
    """The joint graph of a torch-level one, if it has one; as text, for nan is not nan."""
    try:
        joint = trace_joint(gm, [node_spec(node) for node in placeholders(gm)])
    except CompileFailed:
        return ""
    return repr(graph_data(joint.module, live=lambda _: 0))


@pytest.mark.parametrize("with_values", [True, False])
def test_torch_level_graphs(graphs: Compiled, with_values: bool) -> None:
    if graphs.case.checks:
        with pytest.raises(CannotKeep, match="a backward of the program"):
            graph_data(graphs.traced[0])
    for gm in graphs.traced:
        live: list[object] = []

        def place_of(one: object, live: Any = live) -> int:
            live.append(one)
            return len(live) - 1

        data = graph_data(gm, with_values=with_values, live=place_of)
        assert not list(live_in(data))
        again = graph_of(data, live.__getitem__)
        assert bool(live) == graphs.case.checks
        numbers = iter(range(len(live)))
        others = graph_data(again, with_values=with_values, live=lambda _: next(numbers))  # noqa: B023
        assert others == data
        if with_values:
            verify(again)
            one, two = at_traced_sizes(gm), at_traced_sizes(again)
            assert joint_of(one) == joint_of(two)
        else:
            one, two = at_traced_sizes(gm), at_traced_sizes(again)
            inputs = examples([node_spec(node) for node in placeholders(one)])
            same(outcome(one, inputs, True), outcome(two, inputs, True))


def test_another_process_reads_them(tmp_path: Path) -> None:
    """Operators, forms and symbols have other numbers there: graphs are read in another order."""
    cases = []
    for case in PROGRAMS:
        for parts, predicates in compiled(case).parts:
            whole = at_hints(parts, predicates)
            inputs = examples([node_spec(node) for node in placeholders(whole.forward)])
            results = outcome(whole.forward, inputs)
            cases.append((str(case), stored((parts, predicates)), inputs, results))
    file = tmp_path / "cases"
    file.write_bytes(written(cases[::-1]))
    code = """
        import sys
        from pathlib import Path
        from tests.graph.data_files import read
        from tests.graph.test_graph_data import run_as_stored
        print(run_as_stored(read(Path(sys.argv[1]).read_bytes())))
    """
    done = run_python(code, str(file))
    assert done.stdout.split() == [str(len(cases))], done.stderr


def run_as_stored(cases: list[Any]) -> int:
    """Run graphs of another process, and return how many there were."""
    for name, data, inputs, results in cases:
        parts, predicates = restored(data)
        assert stored((parts, predicates)) == data, name
        same(results, outcome(at_hints(parts, predicates).forward, inputs))
    return len(cases)


def _closure() -> Callable[..., Any]:
    factor = 2
    return lambda x: x * factor


REFUSED: dict[str, tuple[Callable[[], Any], tuple[object, ...], str]] = {
    "a closure": (_closure, (), "no module has the function"),
    "an object": (lambda: torch.add, (object(),), "builtins.object is no data"),
    "a generator": (lambda: torch.rand, (torch.Generator(),), "Generator is no data"),
    "an operator of a process": (
        lambda: numpy_operator("sort", lambda x: [x.sort()[0]], 1, [ArrayLayout((3,), (1,), D)]),
        (),
        "operator of this process",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_live_objects_are_refused(name: str) -> None:
    target, args, why = REFUSED[name]
    graph = Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(target(), (x, *args)),))
    with pytest.raises(CannotKeep, match=why):
        graph_data(LazyModule({}, graph))


@pytest.mark.parametrize(
    "op", [*sorted(FLEX_OPERATORS, key=str), numpy_operator("abs", abs, 1, ())], ids=str
)
def test_plans_with_such_operators_are_not_written(op: OpOverload) -> None:
    with pytest.raises(CannotKeep, match="of this process"):
        Writer({}).write((op,))


def test_reading_calls_nothing_but_known_classes() -> None:
    empty = GraphModule({}, Graph())
    for wrong in (
        ObjectData(Popen, (("true",),)),
        OperatorData(print, ("called",)),
        NamedObject("torch", "no_such_name"),
    ):
        data = replace(graph_data(empty), constants=(("x", wrong),))
        with pytest.raises(CannotKeep):
            graph_of(data)


def test_memory_and_history_of_values() -> None:
    """Meta tensors share storages as before, and require grad as before."""
    gm = compiled(next(case for case in PROGRAMS if str(case) == "views")).traced[0]
    again = graph_of(graph_data(gm))

    def facts(gm: GraphModule) -> list[object]:
        found, numbers = list[object](), dict[int, int]()
        for node in gm.graph.nodes:
            for tensor in tensors_in(node.meta.get("val")):
                place = numbers.setdefault(storage_under(tensor), len(numbers))
                layout = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
                found.append((place, tensor.requires_grad, *layout))
        return found

    assert facts(again) == facts(gm)
    assert len({fact[0] for fact in facts(gm)}) < len(facts(gm))
