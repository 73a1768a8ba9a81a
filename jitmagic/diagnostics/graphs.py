"""graphs: `jitmagic.graphs`, the graphs of a compile as values.

    found = jitmagic.graphs(fn)(*args)
    found[0].captured      a torch.fx.GraphModule; .joint, .forward and .backward likewise
    print(found)           all of them, with the user's lines
    found.save(folder)     the same, a file for each

Input: a function or module, and arguments; the call is made. Output: `Graphs`, with one
`StageGraphs` for each graph of the program; there are several if the frame breaks. The modules are
copies, at the sizes of the first call: they can be run, edited and given to `jit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import overload

import torch
from torch.fx import Graph, GraphModule, Node

from ..api import tagged_copy, tagged_handle
from ..autograd.result import Joint, Partition
from ..errors import UsageError, UserLine
from ..graph.node_meta import lines_of
from ..lazy_dataclass import dataclass
from ..records import CompileRecord
from ..runtime.examples import examples
from ..torch_types import AnyFunction
from ..trace.result import Trace
from .builds import bodies_of, inputs_of, newest_variants, operations_of, parts_of
from .folder import write_folder
from .whole_call import whole
from .words import Question, count, refuse_arguments

__all__ = ["STAGES", "Graphs", "StageGraphs", "graphs"]

STAGES = ("captured", "joint", "forward", "backward")
_HEAD = "import torch\nfrom torch import device, inf, nan\n\n"


def graphs(fn: AnyFunction, /, *arguments: object, **options: object) -> Question[Graphs]:
    """`graphs(fn)(*args)`: run `fn` once, compiled, and return the graphs of each stage.

    `fn` may be plain or tagged and is not changed; `options` are keywords of `jit`.
    """
    refuse_arguments("graphs", arguments)
    return Question("graphs", fn, partial(_graphs_of_call, fn, tagged_copy(fn, options)))


def _graphs_of_call(fn: object, copy: AnyFunction, /, *args: object, **kwargs: object) -> Graphs:
    handle = tagged_handle(copy)
    handle.family.reported.add("notice")  # breaks are seen in what is returned
    whole(copy(*args, **kwargs))
    found = [one for frame in newest_variants(handle.journal) for one in _of_frame(frame[0])]
    return Graphs(handle.label, tuple(found))


@dataclass(frozen=True, slots=True, repr=False)
class StageGraphs:
    """One graph of the program at each stage.

    captured: calls of torch functions and methods, as the program makes them
    joint: the ATen calls of forward and backward; its inputs are those of `captured`, then tangents
    forward, backward: the halves that calls run; `backward` is None if nothing requires grad

    The ATen graphs are None if the backend does not use them. They write to inputs by final copies,
    `captured` in place, as the program does.
    """

    name: str
    captured: GraphModule
    joint: GraphModule | None
    forward: GraphModule | None
    backward: GraphModule | None

    def modules(self) -> dict[str, GraphModule]:
        """Return the graphs by stage."""
        found = {stage: getattr(self, stage) for stage in STAGES}
        return {stage: gm for stage, gm in found.items() if gm is not None}

    def example_inputs(self, stage: str = "captured") -> list[torch.Tensor]:
        """Return random tensors like the inputs of a stage's graph."""
        if stage not in self.modules():
            raise UsageError.unknown("graph of the stage", stage, self.modules())
        return examples(inputs_of(self.modules()[stage]))

    def __str__(self) -> str:
        return "\n\n".join(
            f"# {self.name}, {stage}\n{_text_of(gm)}" for stage, gm in self.modules().items()
        )

    __repr__ = __str__


@dataclass(frozen=True, slots=True, repr=False)
class Graphs(Sequence[StageGraphs]):
    """The graphs of a call, in the order in which they run."""

    name: str
    found: tuple[StageGraphs, ...]

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, index: int) -> StageGraphs: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[StageGraphs, ...]: ...
    def __getitem__(self, index: int | slice) -> StageGraphs | tuple[StageGraphs, ...]:
        return self.found[index]

    @property
    def captured(self) -> GraphModule:
        """The captured graph; UsageError unless there is exactly one graph."""
        return self._only.captured

    @property
    def joint(self) -> GraphModule | None:
        """The joint graph, as `captured`."""
        return self._only.joint

    @property
    def forward(self) -> GraphModule | None:
        """The forward graph, as `captured`."""
        return self._only.forward

    @property
    def backward(self) -> GraphModule | None:
        """The backward graph, as `captured`."""
        return self._only.backward

    @property
    def _only(self) -> StageGraphs:
        if len(self.found) != 1:
            raise UsageError(
                f"{self.name} has {count(len(self.found), 'graph')}: choose one by [0]"
            )
        return self.found[0]

    def save(self, folder: str | Path) -> Path:
        """Write each graph to `folder` as `0_captured.py`, ...; return the folder.

        Raises ReportError if the folder holds other files.
        """
        texts = {
            f"{at}_{stage}.py": f"{_HEAD}{_text_of(gm)}\n"
            for at, one in enumerate(self.found)
            for stage, gm in one.modules().items()
        }
        return write_folder(folder, texts)

    def __str__(self) -> str:
        head = f"{self.name}: {count(len(self.found), 'graph')}"
        return "\n\n".join((head, *map(str, self.found)))

    __repr__ = __str__


# -- from records ----------------------------------------------------------------------------------


def _of_frame(record: CompileRecord) -> Iterator[StageGraphs]:
    """Yield the graphs of a compile: one, or one for each part that it was split into. Those of
    branches and loop bodies follow.
    """
    traced = record.result("trace")
    if not isinstance(traced, Trace) or not operations_of(traced.graph.graph):
        return
    own = list(parts_of(traced))
    named = [f"{record.name}, part {n}" for n in range(len(own))] if own[1:] else [record.name]
    parts = [(name, *part) for name, part in zip(named, own, strict=True)]
    bodies = bodies_of(traced)
    parts += [(f"{record.name}, {name}", part, is_eager) for name, part, is_eager in bodies]
    compiled = [part for _, part, is_eager in parts if not is_eager]
    results = [stage.result for stage in record.stages]
    # A stage that failed with symbolic sizes ran again: the last results are those in use.
    joints = [found for found in results if isinstance(found, Joint)][-len(compiled) :]
    halves = [found for found in results if isinstance(found, Partition)][-len(compiled) :]
    aten = iter(zip(joints, halves, strict=True))
    for name, part, is_eager in parts:
        joint, half = (None, None) if is_eager else next(aten, (None, None))
        yield StageGraphs(
            name,
            _copy_of(part.graph),
            None if joint is None else _copy_of(joint.module),
            None if half is None else _copy_of(half.forward),
            None if half is None or half.backward is None else _copy_of(half.backward),
        )


def _copy_of(gm: GraphModule) -> GraphModule:
    """Return an ordinary GraphModule, whose nodes carry their line as torch's tools expect it."""
    graph, known = Graph(), dict[Node, Node]()
    graph.output(graph.graph_copy(gm.graph, known))
    for node, copy in known.items():
        if lines := lines_of(node):
            copy.stack_trace = "\n".join(map(_as_traceback, reversed(lines)))
    return GraphModule(gm, graph, class_name=type(gm).__name__)


def _as_traceback(line: UserLine) -> str:
    text = f'File "{line.filename}", line {line.lineno}, in {line.function or "<module>"}'
    return f"{text}\n    {line.text}"


def _text_of(gm: GraphModule) -> str:
    """Return the code of a graph with the user's line above the calls that come from it."""
    body = gm.graph.python_code("self", verbose=True).src
    return body.strip()
