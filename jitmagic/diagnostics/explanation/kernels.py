"""kernels: the steps of an executable in words: what each computes, for which lines, of how much.

Comes in: a Build. Goes out: a `KernelReport` for each launch and each call of torch's own kernels,
in the order in which the plan runs, and a `Refusal` for each fusion that was not made although it
would have saved memory traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from ...errors import UserLine
from ...graph.node_meta import lines_of
from ...loops.ir import Extern, Load, LoopProgram, Nest
from ...schedule.deps import loads_of, reads_of, run_time_values, writes_of
from ...schedule.score import buffer_bytes, extent_product, value_cost
from ..checking.builds import Build, nodes_of

__all__ = ["KernelReport", "Refusal", "kernels_of", "operations_in_words", "refusals_of"]

_MOST_OPERATIONS = 5  # that a title names
# Units of one addition for each byte that is read or written: above it arithmetic takes longer.
_ARITHMETIC = 16
# Names that torch gives to what people call otherwise.
_WORDS = {
    **dict.fromkeys(("linear", "matmul", "mm", "addmm", "bmm", "baddbmm"), "matrix product"),
    "scaled_dot_product_attention": "attention",
    "cross_entropy_loss": "cross entropy",
    "truediv": "div",
    "getitem": "index",
    "native_dropout": "dropout",
    "to_copy": "cast",
    "to": "cast",
    "copy": "store",
    "ones_like": "fill",
    "zeros_like": "fill",
    "full": "fill",
    "zeros": "fill",
    "ones": "fill",
    "first_gradient": "store of a gradient",
}


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One launch of a generated kernel, or one call of a kernel of torch's own.

    computes: the ATen operations; operations: the user's calls that they are of, in words
    lines: the user's lines, the innermost ones; text: generated code, "" of a call of torch's
    nbytes: read and written; is_arithmetic: computing takes longer than reading and writing
    why: why it is left to torch, "" of a generated kernel
    """

    name: str
    graph: str
    language: str
    computes: tuple[str, ...]
    text: str
    lines: tuple[UserLine, ...] = ()
    variant: int = 1
    operations: tuple[str, ...] = ()
    nbytes: int = 0
    is_arithmetic: bool = False
    why: str = ""

    @property
    def is_generated(self) -> bool:
        """Return whether it is a kernel of jitmagic's."""
        return bool(self.language)

    @property
    def title(self) -> str:
        """Return what the kernel computes: `layer norm, add`."""
        told = ", ".join(self.operations[:_MOST_OPERATIONS]) or self.name
        told += ", ..." if len(self.operations) > _MOST_OPERATIONS else ""
        return f"backward of {told}" if self.graph == "backward" else told


@dataclass(frozen=True, slots=True)
class Refusal:
    """Two operations that are not in one kernel, and the bytes that it would have saved."""

    producer: str
    consumer: str
    reason: str
    saves: int


def kernels_of(build: Build, variant: int = 1) -> list[KernelReport]:
    """All launches and calls of an executable, in the order of its plan."""
    nodes, program = nodes_of(build), build.schedule.program
    texts = _texts(build)
    language = build.source.language if build.source is not None else ""
    steps = [step for step in program.steps if isinstance(step, Nest | Extern)]
    reports = []
    for step in steps:
        origins = origins_of(step)
        owned = [nodes[name] for name in origins if name in nodes]
        told = KernelReport(
            name=step.name,
            graph=build.name,
            language=language,
            computes=origins,
            text=texts.get(step.name, ""),
            lines=tuple(dict.fromkeys(line for node in owned for line in lines_of(node)[:1])),
            variant=variant,
            operations=operations_in_words(owned),
            nbytes=bytes_of(step, program),
        )
        if isinstance(step, Nest):
            told = replace(told, is_arithmetic=_is_arithmetic(step, program))
        else:
            told = replace(told, name=str(step.op), language="", text="", why=step.reason)
        reports.append(told)
    return reports


def origins_of(step: Nest | Extern) -> tuple[str, ...]:
    """Names of the ATen nodes that a step computes."""
    return step.origins if isinstance(step, Nest) else (step.name,)


def operations_in_words(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The user's calls that ATen nodes are of, each once, in order."""
    return tuple(dict.fromkeys(map(_operation, nodes)))


def _operation(node: Node) -> str:
    lines = lines_of(node)
    packet = getattr(node.target, "overloadpacket", None)
    name = (lines[0].operation if lines else "") or getattr(packet, "__name__", node.name)
    name = name.rpartition("::")[2].strip("_")
    if name == "gradients":  # the engine's own sums; a formula carries the operation it is of
        name = getattr(packet, "__name__", node.name).strip("_")
    return _WORDS.get(name, name.replace("_", " "))


def bytes_of(step: Nest | Extern, program: LoopProgram) -> int:
    """Bytes that a step reads and writes, each buffer once; of a table that it looks things up in,
    as much as it takes.
    """
    known = program.buffers
    total = sum(buffer_bytes(known[name]) for name in writes_of(step) if name in known)
    taken = _looked_up(step, program) if isinstance(step, Nest) else {}
    for name in reads_of(step):
        if name in known:
            total += min(buffer_bytes(known[name]), taken.get(name, buffer_bytes(known[name])))
    return total


def _looked_up(nest: Nest, program: LoopProgram) -> Mapping[str, int]:
    """By buffer, the bytes that are read at places which data decide."""
    points = extent_product(nest.outer)
    return {
        load.buffer: points * program.buffers[load.buffer].dtype.itemsize
        for load in loads_of(nest.stores)
        if _has_run_time_index(load)
    }


def _has_run_time_index(load: Load) -> bool:
    return any(run_time_values(part) for part in load.index)


def _is_arithmetic(nest: Nest, program: LoopProgram) -> bool:
    points = extent_product(nest.outer)
    work = sum(points * value_cost(store.value) for store in nest.stores)
    return work > _ARITHMETIC * max(1, bytes_of(nest, program))


def _texts(build: Build) -> dict[str, str]:
    """Generated code by kernel: the translation unit that it stands in."""
    source = build.source
    if source is None:
        return {}
    alone = {name: unit.text for unit in source.units for name in unit.symbols}
    return {name: alone.get(name, source.text) for name in source.symbols}


def refusals_of(build: Build) -> Iterator[Refusal]:
    """Fusions that were refused and would have saved memory traffic, each pair once: a temporary is
    written and read again, a result only read.
    """
    program, nodes = build.schedule.program, nodes_of(build)
    made_by = {name: step for step in program.steps for name in writes_of(step)}
    seen: set[tuple[str, str]] = set()
    for each in build.schedule.decisions:
        buffer = program.buffers.get(each.producer)
        pair = each.producer, each.consumer
        if each.fused or buffer is None or buffer.name not in made_by or pair in seen:
            continue
        seen.add(pair)
        times = 2 if buffer.role == "temp" else 1
        words = [_in_words(name, nodes) for name in pair]
        yield Refusal(words[0], words[1], each.reason, times * buffer_bytes(buffer))


def _in_words(name: str, nodes: Mapping[str, Node]) -> str:
    words: Sequence[str] = operations_in_words([nodes[name]]) if name in nodes else (name,)
    return words[0]
