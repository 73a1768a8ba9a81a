"""Captures an executable as a CUDA graph.

In: an executable and its inputs. Out: a graph that was not launched yet, its results, and the nodes
of the copies that begin and end it, whose addresses are set at each replay.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch

from ...compat.modules import end_allocation_to_pool, release_pool
from ...extension import runtime_module
from ...torch_types import Executable

__all__ = ["Captured", "CopyNodes", "Outputs", "capture"]

Outputs = tuple[torch.Tensor | None, ...]
CopyNodes = tuple[tuple[int, int, int], ...]  # as extensions/runtime/graph_copies.h has them


class Captured(NamedTuple):
    """Holds a graph, its CUgraphExec, memory to keep, its results, and the copies before and after
    its kernels.
    """

    graph: object
    exec: int
    kept: object
    outputs: Outputs
    head: CopyNodes
    tail: CopyNodes


def capture(
    run: Executable,
    inputs: Sequence[torch.Tensor],
    temporaries: int,
    head_sizes: tuple[int, ...],
    tail_sizes: Callable[[Outputs], tuple[int, ...]],
) -> Captured:
    """Capture on a side stream; nothing runs on the GPU yet. The graph begins with copies of
    `head_sizes` bytes and ends with copies of those that `tail_sizes` returns for its results. Its
    kernels need so many bytes for temporaries, which all graphs share: one of them runs at a time.
    """
    # The handles of the copies' nodes are those of the graph that the executable one is made from.
    graph, pool = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.graph_pool_handle()
    device, native = torch.cuda.current_device(), runtime_module()
    side = _capture_stream(device)
    side.wait_stream(torch.cuda.current_stream())
    _give_workspace(side)
    native.load_copies(device)
    shared = _shared_temporaries(device, temporaries)
    collecting = gc.isenabled()
    gc.disable()  # collecting a CUDA event or graph would invalidate the capture
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                head = native.captured_copies(device, head_sizes)
                native.share_temporaries(shared)
                outputs = run(*inputs)
                tail = native.captured_copies(device, tail_sizes(outputs))
            finally:
                native.share_temporaries(None)
                graph.capture_end()
            graph.instantiate()
    except RuntimeError:
        _recover(graph, pool, side)
        raise
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream().wait_stream(side)
    return Captured(graph, graph.raw_cuda_graph_exec(), shared, outputs, head, tail)


_temporaries: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
"""By device: the memory of temporaries that new graphs share."""


def _shared_temporaries(device: int, size: int) -> torch.Tensor | None:
    """Return memory of at least so many bytes. Graphs that need less keep the memory they have."""
    known = _temporaries.get(device)
    if not size or (known is not None and known.numel() >= size):
        return known
    made = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))
    _temporaries[device] = made
    return made


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return one stream for all recordings: cuBLAS keeps a workspace per stream (64 MB on H200)."""
    return torch.cuda.Stream(device)


@cache
def _workspaces(device: int) -> torch.cuda.MemPool:
    """Return the pool of library workspaces, which recordings access at every replay."""
    with torch.cuda.device(device):
        return torch.cuda.MemPool()


def _give_workspace(side: torch.cuda.Stream) -> None:
    """Allocate cuBLAS's workspace of the capture stream outside of any recording's memory.

    Allocated during a capture, it would come out of that recording's memory and keep that alive. In
    its own pool it keeps its address even if the workspaces are cleared, as torch.compile does.
    """
    pool = _workspaces(side.device_index)
    with torch.cuda.use_mem_pool(pool), torch.cuda.stream(side):
        torch.cuda.current_blas_handle()


_failed: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed, which must not be freed. torch's pinned-memory allocator queries
every graph that began a capture, and has no call to report a failed one."""


def _recover(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], side: torch.cuda.Stream) -> None:
    """Reset torch's allocator and random generator after a failed capture.

    Both still assume that the capture is running. The allocation to the pool has to be ended, and
    the pool released. Which call releases it depends on torch's version: if the graph considers its
    capture ended (`pool()` works), `reset()` releases the pool, and a second release would be an
    error. The generator leaves its capture state at the end of the next capture, so a tiny graph is
    captured.
    """
    _failed.append(graph)
    device = torch.cuda.current_device()
    with suppress(RuntimeError):
        end_allocation_to_pool(device, pool)  # type: ignore[attr-defined]
    try:
        graph.pool()
        graph.reset()
    except RuntimeError:
        with suppress(RuntimeError):
            release_pool(device, pool)  # type: ignore[attr-defined]
    with suppress(RuntimeError), torch.cuda.stream(side):
        small = torch.zeros(1, device="cuda")
        again = torch.cuda.CUDAGraph()
        again.capture_begin(capture_error_mode="thread_local")
        small.add_(1)
        again.capture_end()
