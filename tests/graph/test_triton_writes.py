"""Which tensors a user-written Triton kernel writes is found from its code; unknown means all."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from jitmagic.graph.triton.writes import WriteAnalysis  # noqa: E402

TENSORS = frozenset(("x", "y", "out"))


@triton.jit
def through_arithmetic(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pointers = out + offsets
    pointers += n
    tl.store(pointers, tl.load(x + offsets) + tl.load(y + offsets), mask=offsets < n)


@triton.jit
def through_indices(x, y, out, n):
    """The loaded indices are data: only `out` is written."""
    places = tl.load(y + tl.arange(0, 16))
    tl.store(out + places, tl.load(x + places))


@triton.jit
def atomically(x, y, out, n):
    offsets = tl.arange(0, 16)
    tl.atomic_max(y + offsets, tl.atomic_add(out + offsets, tl.load(x + offsets)))


@triton.jit
def shifted(pointers, by):
    return pointers + by


@triton.jit
def stores(values, pointers, mask):
    tl.store(pointers, values, mask=mask)


@triton.jit
def through_helpers(x, y, out, n):
    offsets = tl.arange(0, 16)
    place = shifted(out, n)
    stores(tl.load(x + offsets), place + offsets, offsets < n)


@triton.jit
def in_a_branch_or_loop(x, y, out, n):
    chosen = y
    for step in range(n):
        if step > 2:
            chosen = out
        tl.store(chosen + step, 1.0)


@triton.jit
def through_a_block_pointer(x, y, out, n):
    block = tl.make_block_ptr(out, (n, n), (n, 1), (0, 0), (8, 8), (1, 0))
    tl.store(tl.advance(block, (0, 8)), tl.load(block))


@triton.jit
def through_a_descriptor(x, y, out, n):
    described = tl.make_tensor_descriptor(out, [n, n], [n, 1], [8, 8])
    described.store([0, 0], described.load([0, 0]))


@triton.jit
def through_a_constant(x, y, out, n, FUNCTION: tl.constexpr):
    FUNCTION(tl.load(x), y, n > 0)


@triton.jit
def nothing(x, y, out, n):
    tl.device_print("x", tl.sum(tl.load(x + tl.arange(0, 16)), axis=0))


@triton.jit
def through_a_loaded_address(x, y, out, n):
    tl.store(tl.load(x).to(tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def through_a_number(x, y, out, n):
    tl.store(n.to(tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def through_assembly(x, y, out, n):
    tl.inline_asm_elementwise("st $0, $1;", "=r,l", [y], tl.int32, False, 1)


@triton.jit
def recursive(x, y, out, n):
    recursive(x, y, out, n)


@pytest.mark.parametrize(
    ("kernel", "constants", "written"),
    [
        (through_arithmetic, {}, "out"),
        (through_indices, {}, "out"),
        (atomically, {}, "out y"),
        (through_helpers, {}, "out"),
        (in_a_branch_or_loop, {}, "out y"),
        (through_a_block_pointer, {}, "out"),
        (through_a_descriptor, {}, "out"),
        (through_a_constant, {"FUNCTION": stores}, "y"),
        (nothing, {}, ""),
        (through_assembly, {}, "y"),
        (through_a_constant, {}, "x y out"),
        (through_a_loaded_address, {}, "x y out"),
        (through_a_number, {}, "x y out"),
        (recursive, {}, "x y out"),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_written_tensors(kernel: Any, constants: dict[str, Any], written: str) -> None:
    found = WriteAnalysis().written(kernel, TENSORS, constants)
    assert found == frozenset(written.split())


def test_functions_that_the_code_names_are_reported() -> None:
    analysis = WriteAnalysis()
    analysis.written(through_helpers, TENSORS, {})
    assert {"shifted", "stores"} <= {name for _, name, _ in analysis.globals_read}
