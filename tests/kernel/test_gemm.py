"""Matrix products against fp64 in every layout, size class and epilogue; thread ranges."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from math import nan
from pathlib import Path

import pytest
import torch

from jitmagic.runtime import toolchain

from .building import CXX, FLAGS, ISAS, compile_text, library, pointer

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")

SHAPES = [
    (1, 1, 1), (1, 10, 7), (3, 5, 2), (7, 33, 65), (8, 8, 8), (16, 16, 16), (17, 15, 31),
    (32, 10, 128), (10, 128, 32), (5, 300, 784), (33, 47, 100), (64, 64, 64), (100, 37, 129),
    (13, 200, 1), (130, 70, 300), (200, 7, 64), (4, 4, 0), (12, 32, 9), (25, 48, 40), (51, 112, 3),
]  # fmt: skip


def operands(layout: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make operands, a letter for each: rows (N), columns (T), sliding windows with both strides 1
    (W), one row for all (E). Parents are padded, so that the leading dimension differs from the
    width.
    """
    g = torch.Generator().manual_seed(m * 10000 + n * 100 + k)
    made = []
    for kind, (rows, columns) in zip(layout, ((m, k), (k, n)), strict=True):
        if kind == "W":
            made.append(
                torch.randn(rows + columns, generator=g).as_strided((rows, columns), (1, 1))
            )
        elif kind == "E":
            made.append(torch.randn(columns, generator=g).expand(rows, columns))
        elif kind == "T":
            made.append(torch.randn(columns, rows + 3, generator=g)[:, :rows].t())
        else:
            made.append(torch.randn(rows, columns + 5, generator=g)[:, :columns])
    return made[0], made[1]


def multiply(
    isa: str,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    bias: torch.Tensor,
    mode: int,
    threads: int,
) -> None:
    sizes = [a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), c.stride(0)]
    library("reductions.cpp", isa).matmul(
        *map(pointer, (a, b, bias, c)),
        (ctypes.c_int64 * 8)(*sizes),
        ctypes.c_int(mode),
        ctypes.c_int(threads),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", ["".join(pair) for pair in itertools.product("NTWE", repeat=2)])
def test_products(isa: str, layout: str) -> None:
    for m, n, k in SHAPES:
        a, b = operands(layout, m, n, k)
        exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        bias = torch.randn(n, generator=torch.Generator().manual_seed(n))
        before = torch.randn(m, n + 4, generator=torch.Generator().manual_seed(m))
        wants = [exact, exact + bias, exact + before[:, :n], (exact + bias).relu()]
        for mode, want in enumerate(wants):
            whole = before.clone()
            multiply(isa, a, b, whole[:, :n], bias, mode, 2)
            error = (whole[:, :n].double() - want).abs()
            assert (error <= 6e-8 * (scale + 4) * (4 + k**0.5)).all(), (m, n, k, mode)
            assert whole[:, n:].equal(before[:, n:]), "wrote beyond a row"


def test_result_does_not_depend_on_threads() -> None:
    for layout, (m, n) in itertools.product(("NN", "NT", "TN"), ((70, 130), (130, 70), (33, 64))):
        a, b = operands(layout, m, n, 200)
        results = []
        for threads in (1, 2, 3, 4):
            c = torch.full((m, n), nan)
            multiply("native", a, b, c, torch.empty(n), 0, threads)
            results.append(c)
        assert all(c.equal(results[0]) for c in results), (layout, m, n)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_scratch_ends_with_its_thread() -> None:
    a, b = operands("NT", 32, 32, 200_000)  # a panel of 25 MB
    c, bias = torch.empty(32, 32), torch.empty(32)

    def in_a_thread() -> None:
        thread = threading.Thread(target=multiply, args=("native", a, b, c, bias, 0, 1))
        thread.start()
        thread.join()

    in_a_thread()
    before = resident_bytes()
    for _ in range(8):
        in_a_thread()
    assert resident_bytes() - before < 50_000_000


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_parallel_for_covers_once(threads: int) -> None:
    lib = library("reductions.cpp", "native")
    lib.cover.restype = ctypes.c_int64
    for n in (0, 1, 7, 8, 9, 100, 1001):
        for grain in (1, 10, 10_000):
            hits, begins = torch.zeros(n + 1, dtype=torch.int32), torch.zeros(8, dtype=torch.int64)
            ranges = lib.cover(
                ctypes.c_int64(n), ctypes.c_int64(grain), threads, pointer(hits), pointer(begins)
            )
            assert hits[:n].eq(1).all()
            assert ranges <= threads
            assert begins[:ranges].remainder(8).eq(0).all()
            assert ranges == (n > 0) or n > grain


def test_threads_follow_torch() -> None:
    lib = library("reductions.cpp", "native")
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert lib.default_threads() == count
        assert lib.nested_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_dot_products_next_to_tiles_are_linked(tmp_path: Path) -> None:
    """Compiled again with each epilogue, they would take three times as long as the product."""
    source, out = tmp_path / "product.cpp", tmp_path / "product.s"
    for function, is_compiled in (("gemm<Way::Dots>", True), ("gemm_rows<Way::Swapped>", False)):
        source.write_text(
            "#include <jitmagic/gemm.h>\nnamespace jm {\n"
            "void product(int m, int n, int k, const float* a, const float* b, float* c) "
            f"{{ {function}(m, n, k, {{a, k, 1}}, {{b, 1, k}}, c, n, AddBias{{a}}); }}\n}}\n"
        )
        folder = f"-I{toolchain.header_folder()}"
        compile_text([str(CXX), *FLAGS, folder, "-S", str(source), "-o", str(out)])
        assert ("jm6detail4dots" in out.read_text()) is is_compiled
