"""Renders C++: one function per fused nest, split into translation units that compile in parallel.

In: the nests of a schedule, the buffers, the target, configs. Out: KernelSource of language "cpp";
every function has the kernel ABI `extern "C" int NAME(void* const* args)` and returns 1 when a
run-time index was out of range, else 0. The text depends on nothing but the arguments: equal graphs
give equal text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from ..budget import check
from ..devices import Target
from ..loops.ir import Buffer
from ..schedule.score import PARALLEL_WORK, extent_product, value_cost
from .attention.cpp import attention_function
from .attention.kernel import AttentionKernel, Kernel
from .config import CppConfig
from .cpp_kernel import KernelWriter
from .cpp_ops import functions_in
from .cpp_passes import PassWriter
from .cpp_text import is_reserved, renamed
from .cpp_values import CppBody
from .loop_structure import Structure, structure
from .plan import Config, KernelSource, Unit
from .products.cpp import products_in
from .text import argument_names
from .vector_lanes import Lanes, choose_lanes

__all__ = ["CppRenderer"]

# g++ 12 at -O3 on Zen 4 takes 0.1 s for the header and the link, 0.02 s (long straight lines) to
# 0.07 s per 1,000 characters of a kernel, and 0.03 s for a matrix product, whose tiles are compiled
# once. Split into units, a graph of 1,000 operations compiles in 2.5 s and one of 5,000 in 12.5 s;
# in a single unit they took 35 s and 224 s.
UNIT = 10_000  # target characters of a translation unit; a kernel is never split
# in gemm.h, chain.h, attention.h, dequantised.h
_PRODUCT_CALL = re.compile(r"\bjm::((?:gemm|chain)(?:_rows)?|attend|dequantised)[<(]")
_HEADERS = {"attend": "attention"}


class CppRenderer:
    """Renders nests for the CPU; stateless."""

    language = "cpp"

    def candidates(
        self, nest: Kernel, buffers: Mapping[str, Buffer], target: Target
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
        nests: Sequence[Kernel],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Mapping[str, Config] = MappingProxyType({}),
    ) -> KernelSource:
        """Return the text of all kernels, and the argument dtypes of each."""
        symbols: dict[str, tuple[torch.dtype, ...]] = {}
        functions: dict[str, str] = {}
        for nest in nests:
            check()
            if isinstance(nest, AttentionKernel):
                functions[nest.name] = "\n".join(attention_function(nest))
                dtypes = tuple(buffer.dtype for buffer in nest.buffers.values())
                symbols[nest.name] = (*dtypes, torch.int64) if nest.symbols else dtypes
                continue
            kernel = structure(nest, buffers)
            lines = _function(kernel, buffers, target, configs.get(nest.name))
            functions[kernel.name] = "\n".join(lines)
            dtypes = tuple(buffers[name].dtype for name in kernel.arguments)
            # Dynamic sizes are one more argument, so that a kernel serves all of them.
            symbols[kernel.name] = (*dtypes, torch.int64) if kernel.symbols else dtypes
        units = tuple(_unit(functions, names) for names in _balanced(functions))
        return KernelSource(self.language, _unit(functions, symbols).text, symbols, units=units)


def _thread_counts(work: int, target: Target) -> tuple[str, ...]:
    """Return the thread settings to try: both near the heuristic's threshold, else only the
    heuristic's choice.
    """
    if target.threads == 1 or not PARALLEL_WORK // 8 < work < PARALLEL_WORK * 64:
        return ("auto",)
    return ("one", "all")


def _function(
    kernel: Structure, buffers: Mapping[str, Buffer], target: Target, config: Config | None
) -> list[str]:
    overrides = config if isinstance(config, CppConfig) else CppConfig()
    if overrides.threads == "one":
        target = replace(target, threads=1)
    # Lambdas of kernels with dynamic sizes have parameters of these names.
    own = {"count", "some", *(s.name for s in kernel.symbols)} if kernel.symbols else set()
    names = argument_names(kernel.arguments, own, is_reserved, renamed)
    body = CppBody(kernel, names, buffers)
    products = products_in(kernel)
    # gemm has its own lanes, which assume nothing about sizes.
    none = Lanes(None, 1, ())
    lanes = none if products else choose_lanes(kernel, target, overrides.registers)
    passes = PassWriter(kernel, lanes, body)
    all_threads = overrides.threads == "all"
    return KernelWriter(
        kernel, products, lanes, target, buffers, names, body, passes, all_threads
    ).function()


def _balanced(functions: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Split the kernels into runs of about equal compile time, one per compiler process."""
    total = sum(map(len, functions.values()))
    if total <= UNIT:
        return [tuple(functions)]
    count = -(-total // UNIT)
    runs: list[list[str]] = [[] for _ in range(count)]
    before = 0
    for name, text in functions.items():
        # A kernel goes to the unit in which the middle of its text falls.
        runs[(before + len(text) // 2) * count // total].append(name)
        before += len(text)
    return [tuple(run) for run in runs if run]


def _unit(functions: Mapping[str, str], names: Iterable[str]) -> Unit:
    text = "\n\n".join(functions[name] for name in names)
    head = "\n".join([_head(text), *functions_in(text)])
    return Unit(f"{head}\n{text}\n", tuple(names))


def _head(text: str) -> str:
    """Return the includes, and one alias per number of lanes that the text uses."""
    widths = sorted({int(found) for found in re.findall(r"\bV(\d+)<", text)})
    lines = ["#include <jitmagic/loop.h>"]
    called = {found.split("_")[0] for found in _PRODUCT_CALL.findall(text)}
    if called:  # the others include gemm.h
        headers = {_HEADERS.get(name, name) for name in called}
        headers -= {"gemm"} if len(headers) > 1 else set()
        includes = [f"#include <jitmagic/{header}.h>" for header in sorted(headers)]
        lines += [*includes, "", "constexpr int L = jm::lanes<float>;"]
        lines.append("template <class T> using VL = jm::Vec<T, L>;")
    else:
        lines.append("")
    lines += [f"template <class T> using V{n} = jm::Vec<T, {n}>;" for n in widths]
    return "\n".join([*lines, ""] if lines[-1] else lines)
