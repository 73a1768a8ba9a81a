"""Renders C++: one function per fused nest, split into translation units that compile in parallel.

In: the nests of a schedule, the buffers, the target, configs. Out: KernelSource of language "cpp";
every function has the kernel ABI `extern "C" int NAME(void* const* args)` and returns 1 when a
run-time index was out of range, else 0. The text depends on nothing but the arguments: equal graphs
give equal text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from ...budget import check
from ...devices import Target
from ...lazy_dataclass import dataclass
from ...loops.ir import Buffer
from ...schedule.score import PARALLEL_WORK, extent_product, value_cost
from ..attention.cpp import attention_call
from ..attention.kernel import AttentionKernel
from ..attention.kernel import Kernel as Rendered
from ..config import CppConfig
from ..kernel import Call, Kernel
from ..kernel_walk import statements
from ..linearize import Style, linearize
from ..loop_structure import structure
from ..plan import Config, KernelSource, Unit
from ..products.cpp import product_kernel, products_in
from ..vector_lanes import choose_lanes
from .ops import functions_of
from .outer_loops import vector_kernel
from .printer import CppText
from .scan_rows import with_scan_rows
from .sums import in_blocks

__all__ = ["CppRenderer"]

# g++ 12 at -O3 on Zen 4 takes 0.1 s for the header and the link, 0.02 s (long straight lines) to
# 0.07 s per 1,000 characters of a kernel, and 0.03 s for a matrix product, whose tiles are compiled
# once. Split into units, a graph of 1,000 operations compiles in 2.5 s and one of 5,000 in 12.5 s;
# in a single unit they took 35 s and 224 s.
UNIT = 10_000  # target characters of a translation unit; a kernel is never split
LONGEST = 8  # operations of an expression without a variable


class CppRenderer:
    """Renders nests for the CPU; stateless."""

    language = "cpp"

    def candidates(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Return all combinations of one thread or all, where the work allows both, with 1, 2 or 4
        registers per step.
        """
        if isinstance(nest, AttentionKernel):
            return ()
        kernel = structure(nest, buffers)
        if products_in(kernel):
            return ()  # gemm.h chooses its own method
        costs = (extent_product(s.inner) * value_cost(s.value) for s in nest.stores)
        threads = _thread_counts(extent_product(nest.outer) * sum(costs), target)
        return tuple(CppConfig(t, r) for t in threads for r in (0, 1, 2, 4))

    def render(
        self,
        nests: Sequence[Rendered],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Mapping[str, Config] = MappingProxyType({}),
    ) -> KernelSource:
        """Return the text of all kernels, and the argument dtypes of each."""
        symbols: dict[str, tuple[torch.dtype, ...]] = {}
        functions: dict[str, _Function] = {}
        for nest in nests:
            check()
            kernel = self.kernel(nest, buffers, target, configs.get(nest.name))
            functions[kernel.name] = _printed(kernel)
            symbols[kernel.name] = kernel.argument_dtypes
        units = tuple(_unit(functions, names) for names in _balanced(functions))
        return KernelSource(self.language, _unit(functions, symbols).text, symbols, units=units)

    def kernel(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target, config: Config | None
    ) -> Kernel:
        """Return the kernel of a nest for vectors and threads, ready to print."""
        return _kernel(nest, buffers, target, config)


def _kernel(
    nest: Rendered, buffers: Mapping[str, Buffer], target: Target, config: Config | None
) -> Kernel:
    style = Style(LONGEST, divisors=True)
    if isinstance(nest, AttentionKernel):
        return linearize(attention_call(nest), style)
    overrides = config if isinstance(config, CppConfig) else CppConfig()
    one = structure(nest, buffers)
    style = replace(style, lane_bounds=bool(one.symbols))  # the compiler folds static bounds
    if products := products_in(one):
        return linearize(product_kernel(one, products, buffers), style)
    if overrides.threads == "one":
        target = replace(target, threads=1)
    lanes = choose_lanes(one, target, overrides.registers)
    if lanes.outer is None and (in_parts := with_scan_rows(one)) is not one:
        one, lanes = in_parts, choose_lanes(in_parts, target, overrides.registers)
    kernel = vector_kernel(one, lanes, buffers, target, overrides.threads == "all")
    return linearize(in_blocks(kernel, of_rows=bool(one.outer)), style)


def _thread_counts(work: int, target: Target) -> tuple[str, ...]:
    """Return the thread settings to try: both near the heuristic's threshold, else only the
    heuristic's choice.
    """
    if target.threads == 1 or not PARALLEL_WORK // 8 < work < PARALLEL_WORK * 64:
        return ("auto",)
    return ("one", "all")


@dataclass(frozen=True, slots=True)
class _Function:
    """Holds the text of a kernel, and what a unit needs above it."""

    text: str
    widths: frozenset[int]
    headers: frozenset[str]
    registered: frozenset[str]


def _printed(kernel: Kernel) -> _Function:
    printer = CppText(kernel)
    text = "\n".join(printer.function())
    calls = (each for each in statements(kernel.body) if isinstance(each, Call))
    headers = frozenset(call.header for call in calls)
    return _Function(text, frozenset(printer.widths), headers, frozenset(printer.registered))


def _balanced(functions: Mapping[str, _Function]) -> list[tuple[str, ...]]:
    """Split the kernels into runs of about equal compile time, one per compiler process."""
    total = sum(len(function.text) for function in functions.values())
    if total <= UNIT:
        return [tuple(functions)]
    count = -(-total // UNIT)
    runs: list[list[str]] = [[] for _ in range(count)]
    before = 0
    for name, function in functions.items():
        # A kernel goes to the unit in which the middle of its text falls.
        length = len(function.text)
        runs[(before + length // 2) * count // total].append(name)
        before += length
    return [tuple(run) for run in runs if run]


def _unit(functions: Mapping[str, _Function], names: Iterable[str]) -> Unit:
    parts = [functions[name] for name in names]
    text = "\n\n".join(part.text for part in parts)
    registered = functions_of(frozenset().union(*(part.registered for part in parts)))
    head = "\n".join([_head(parts), *registered])
    return Unit(f"{head}\n{text}\n", tuple(names))


def _head(parts: Sequence[_Function]) -> str:
    """Return the includes, and one alias per number of lanes."""
    lines = ["#include <jitmagic/loop.h>"]
    headers = frozenset().union(*(part.headers for part in parts))
    if headers:  # the others include gemm.h
        named = sorted(headers - {"gemm"} if len(headers) > 1 else headers)
        includes = [f"#include <jitmagic/{header}.h>" for header in named]
        lines += [*includes, "", "constexpr int L = jm::lanes<float>;"]
        lines.append("template <class T> using VL = jm::Vec<T, L>;")
    else:
        lines.append("")
    widths = sorted(frozenset().union(*(part.widths for part in parts)))
    lines += [f"template <class T> using V{n} = jm::Vec<T, {n}>;" for n in widths]
    return "\n".join([*lines, ""] if lines[-1] else lines)
