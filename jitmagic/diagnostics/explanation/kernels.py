"""kernels: describes each step of an executable: operations, source lines, bytes.

Input: a Build. Output: a `KernelReport` for each kernel launch and each ATen call, in the order of
the plan, and a `Refusal` for each fusion that would have saved memory traffic but was not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch.fx import Node

from ...codegen.plan import Call
from ...errors import UserLine
from ...graph.node_meta import lines_of
from ...graph.triton.launches import kernel_name
from ...lazy_dataclass import dataclass, replace
from ...loops.ir import Extern, Load, LoopProgram, Nest, run_time_values
from ...runtime.step_timing import timed_calls
from ...schedule.dependencies import loads_of, reads_of, writes_of
from ...schedule.score import buffer_bytes, extent_product, value_cost
from ..builds import Build, nodes_of

__all__ = ["KernelReport", "Refusal", "kernels_of", "operations_in_words", "refusals_of"]

_MOST_OPERATIONS = 5  # that a title names
# Additions per byte of memory traffic above which a kernel is bound by arithmetic.
_ARITHMETIC = 16
# Common names of operators whose names in torch are less familiar.
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
    """One launch of a generated kernel, or one ATen call.

    computes: names of ATen nodes; operations: the user's calls that they come from, in words
    lines: the user's innermost lines; text: generated code, "" for an ATen call
    nbytes: read and written; is_arithmetic: bound by arithmetic rather than memory
    why: the reason for an ATen call, "" for a generated kernel
    state: says of an interpreted kernel what replaces it
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
    user: str = ""  # the language of a kernel that the user has written
    state: str = ""

    @property
    def is_generated(self) -> bool:
        """True for a generated kernel, false for an ATen call."""
        return bool(self.language)

    @property
    def title(self) -> str:
        """The operations that the kernel computes: `layer norm, add`."""
        words = ", ".join(self.operations[:_MOST_OPERATIONS]) or self.name
        words += ", ..." if len(self.operations) > _MOST_OPERATIONS else ""
        return f"backward of {words}" if self.graph == "backward" else words


@dataclass(frozen=True, slots=True)
class Refusal:
    """Two operations that were not fused, the reason, and the bytes that fusion would save."""

    producer: str
    consumer: str
    reason: str
    saves: int


def kernels_of(build: Build, variant: int = 1) -> list[KernelReport]:
    """Return all launches and ATen calls of an executable, in the order of its plan."""
    nodes, program = nodes_of(build), build.schedule.program
    texts = _texts(build)
    language = build.source.language if build.source is not None else ""
    steps = [step for step in program.steps if isinstance(step, Nest | Extern)]
    reports = []
    for step, made in zip(steps, timed_calls(build.plan), strict=True):
        origins = origins_of(step)
        owned = [nodes[name] for name in origins if name in nodes]
        report = KernelReport(
            name=step.name,
            graph=build.name,
            language=language,
            computes=origins,
            text=texts.get(step.name, ""),
            lines=tuple(dict.fromkeys(line for node in owned for line in lines_of(node)[:1])),
            variant=variant,
            operations=operations_in_words(owned),
            nbytes=bytes_of(step, program),
            state=_state(build) if isinstance(step, Nest) else "",
        )
        if isinstance(step, Nest):
            report = replace(report, is_arithmetic=_is_arithmetic(step, program))
        elif isinstance(made, Call):
            name = kernel_name(step.op) or str(step.op)
            user = "Triton" if kernel_name(step.op) else ""
            report = replace(report, name=name, language="", text="", why=step.reason, user=user)
        reports.append(report)
    return reports


def _state(build: Build) -> str:
    if build.meanwhile is not None:
        return str(build.meanwhile)
    is_interpreted = build.source is not None and build.source.language == "blocks"
    return "interpreted" if is_interpreted else ""


def origins_of(step: Nest | Extern) -> tuple[str, ...]:
    """Return the names of the ATen nodes that a step computes."""
    return step.origins if isinstance(step, Nest) else (step.name,)


def operations_in_words(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the user's calls that ATen nodes come from, each once, in order."""
    return tuple(dict.fromkeys(map(_operation, nodes)))


def _operation(node: Node) -> str:
    if (kernel := kernel_name(node.target)) is not None:
        return kernel
    lines = lines_of(node)
    packet = getattr(node.target, "overloadpacket", None)
    name = (lines[0].operation if lines else "") or getattr(packet, "__name__", node.name)
    name = name.rpartition("::")[2].strip("_")
    if name == "gradients":  # sums of gradients; derivative formulas carry their forward operation
        name = getattr(packet, "__name__", node.name).strip("_")
    return _WORDS.get(name, name.replace("_", " "))


def bytes_of(step: Nest | Extern, program: LoopProgram) -> int:
    """Return the bytes that a step reads and writes, each buffer once.

    A table that is indexed by data (an embedding) counts only as many elements as are looked up.
    """
    known = program.buffers
    total = sum(buffer_bytes(known[name]) for name in writes_of(step) if name in known)
    taken = _looked_up(step, program) if isinstance(step, Nest) else {}
    for name in reads_of(step):
        if name in known:
            total += min(buffer_bytes(known[name]), taken.get(name, buffer_bytes(known[name])))
    return total


def _looked_up(nest: Nest, program: LoopProgram) -> Mapping[str, int]:
    """Return by buffer the bytes that are read at data-dependent indices."""
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
    """Return by kernel the text of its translation unit."""
    source = build.source
    if source is None:
        return {}
    alone = {name: unit.text for unit in source.units for name in unit.symbols}
    return {name: alone.get(name, source.text) for name in source.symbols}


def refusals_of(build: Build) -> Iterator[Refusal]:
    """Yield fusions that were refused although they would have saved memory traffic, each once.

    Fusing saves a write and a read of a temporary, but only the read of a graph result.
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
