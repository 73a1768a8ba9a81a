"""Generated Triton compiled for sm_90 and sm_100 with no GPU: kernels, the cache, refusals."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.plan import Alloc, Call, KernelSource, Launch, Plan, Pool, View
from jitmagic.devices import Target
from jitmagic.errors import ToolchainError
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime import triton_kernels
from jitmagic.runtime.alignment import aligned_arguments, inputs_of_kernels
from jitmagic.runtime.native import make_executable
from jitmagic.runtime.store import Store
from jitmagic.runtime.triton_kernels import _without_names, build_cubins
from jitmagic.schedule import schedule
from tests.loops.recording import record
from tests.processes import run_forked
from tests.schedule.programs import PROGRAMS, made_inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "loops"))  # as its conftest does

from tests.loops.test_fuzz import chain  # noqa: E402

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
H200 = Target("cuda", "triton", "for tests", "sm_90", 1, 0, 50 << 20, "", 132)
B200 = replace(H200, isa="sm_100", multiprocessors=148)
CPU = torch.device("cpu")


def made(name: str, target: Target = H200) -> tuple[Plan, KernelSource]:
    program = PROGRAMS[name]
    graph, _ = record(program.fn, *made_inputs(program))
    plan, source = render(schedule(lower(graph, name), target, Options()), target)
    assert source is not None
    return plan, source


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("cubins"))


@needs_triton
@pytest.mark.parametrize("target", [H200, B200], ids=lambda target: target.isa)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kernel_compiles(name, target, store, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if (name, target.isa) == ("mlp_inference", "sm_90"):
        pytest.skip("cuBLAS computes its ReLUs too: it has no kernels")
    plan, source = made(name, target)
    cubins, _ = build_cubins(source, aligned_arguments(plan, True), target, store)
    assert set(cubins) == set(source.symbols)
    for name, cubin in cubins.items():
        assert cubin.image[:4] == b"\x7fELF"
        assert cubin.warps == source.grids[name].num_warps
        assert cubin.scratch == 2
        assert cubin.shared_bytes <= 227 << 10


AT_ONE_PLACE = {  # every lane reads the place 0, which lies 31 elements before the second part
    "part": lambda both, x: torch.slice_scatter(x, x[:1] + both[:1], 0, 0, 1),
    "element": lambda both, x: torch.select_scatter(x, both[0] * 2, 0, 3),
    "last": lambda both, x: torch.select_scatter(x, both[-1] * 2, 0, 3),
    "added": lambda both, x: x.index_add(0, x[:1].long() * 0, both[:1]),
}


@needs_triton
@pytest.mark.parametrize("name", AT_ONE_PLACE)
def test_masked_reads_of_one_place_compile(name, store, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def fn(a, b, x):
        return AT_ONE_PLACE[name](torch.cat([a, b]), x)

    graph, _ = record(fn, torch.randn(31), torch.randn(2), torch.randn(33))
    plan, source = render(schedule(lower(graph, name), H200, Options()), H200)
    assert source is not None
    cubins, _ = build_cubins(source, aligned_arguments(plan, True), H200, store)
    assert set(cubins) == set(source.symbols)


@needs_triton
def test_a_second_process_does_not_import_triton(tmp_path):
    script = """if True:
        import pickle, sys
        from pathlib import Path
        from jitmagic.runtime.store import Store
        from jitmagic.runtime.triton_kernels import build_cubins
        folder = Path(sys.argv[1])
        request = pickle.loads((folder / "request").read_bytes())
        cubins, cached = build_cubins(*request, Store(folder))
        print(cached, "triton" in sys.modules, [len(cubin.image) for cubin in cubins.values()])
    """
    plan, source = made("softmax_parts")
    request = (source, aligned_arguments(plan, True), H200)
    (tmp_path / "request").write_bytes(pickle.dumps(request))
    first, second = (run_forked(script, str(tmp_path)).stdout.split() for _ in range(2))
    assert (first[:2], second[:2]) == (["False", "True"], ["True", "False"])
    assert first[2:] == second[2:]


def of_chain(*names: str) -> tuple[Plan, KernelSource]:
    """Render a graph whose nodes, and so the kernel and its buffers, have these names."""
    graph, _ = record(lambda x, y: (x * y).sin() + 1, torch.randn(64, 32), torch.randn(64, 32))
    for node, name in zip(graph.graph.nodes, names, strict=False):
        node.name = name
    plan, source = render(schedule(lower(graph, "chain"), H200, Options()), H200)
    assert source is not None
    return plan, source


@needs_triton
def test_kernels_that_differ_in_names_are_built_once(tmp_path):
    store = Store(tmp_path)
    for names, cached in ((("x", "y", "first"), False), (("mask", "other", "second"), True)):
        plan, source = of_chain(*names)
        (symbol,) = source.symbols
        assert all(name in source.text for name in names[:2])
        cubins, known = build_cubins(source, aligned_arguments(plan, True), H200, store)
        assert (set(cubins), known) == ({symbol}, cached)


def test_keywords_are_no_names_of_arguments():
    first = "def f(axis, x):\n    # a comment\n    return tl.sum(x, axis=0) + axis\n"
    second = first.replace("axis=0", "other=0")
    assert _without_names(first, "f") == "def #0(#1, #2):\n    return tl.sum(#2, axis=0) + #1\n"
    assert _without_names(first, "f") != _without_names(second, "f")


@needs_triton
def test_facts_that_change_the_machine_code_change_the_key(tmp_path):
    plan, source = made("relu_sum")
    store = Store(tmp_path)
    aligned, anywhere = aligned_arguments(plan, True), aligned_arguments(plan, False)
    assert build_cubins(source, aligned, H200, store)[1] is False
    assert build_cubins(source, aligned, H200, store)[1] is True
    assert build_cubins(source, anywhere, H200, store)[1] is False
    assert build_cubins(source, aligned, replace(H200, isa="sm_80"), store)[1] is False
    wider = {name: replace(grid, num_warps=8) for name, grid in source.grids.items()}
    assert build_cubins(replace(source, grids=wider), aligned, H200, store)[1] is False


@needs_triton
def test_triton_compile_error_carries_the_text(tmp_path):
    head = "import triton\nimport triton.language as tl\n\n\n"
    text = f"{head}@triton.jit\ndef bad(x):\n    tl.no_such(x)\n"
    _, source = made("relu_sum")
    (grid,) = source.grids.values()
    broken = KernelSource("triton", text, {"bad": (torch.float32,)}, {"bad": grid})
    with pytest.raises(ToolchainError, match=r"tl\.no_such"):
        build_cubins(broken, {"bad": (True,)}, H200, Store(tmp_path))
    assert not list(tmp_path.glob("*.cubin"))


def test_alignment_follows_the_plan():
    aten = torch.ops.aten
    steps = (
        Alloc(2, (8,), (1,), torch.float32, CPU),
        Pool(3, 64, (8,), (1,), torch.float32, CPU),
        View(4, 2, (4,), (1,), 16, torch.float32),
        View(5, 2, (4,), (1,), 3, torch.float32),
        View(6, 0, (4,), (1,), 0, torch.float32),
        Call(aten.mm.default, (), {}, (7,)),
        Call(aten.sort.default, (), {}, (8, None)),
        Launch("k", (0, 1, 2, 3, 4, 5, 6, 7, 8)),
        Launch("twice", (2, 2)),
        Launch("twice", (2, 5)),
    )
    plan = Plan("p", 1, (torch.zeros(4),), steps, (2,))
    flags = aligned_arguments(plan, True)
    assert flags["k"] == (True, True, True, True, True, False, True, True, False)
    assert aligned_arguments(plan, False)["k"][0] is False
    assert aligned_arguments(plan, False)["k"][6] is False
    assert flags["twice"] == (True, False)
    assert inputs_of_kernels(plan) == (0,)


def test_only_inputs_that_kernels_read_matter():
    plan = Plan("p", 2, (), (View(2, 1, (4,), (1,), 1, torch.float32), Launch("k", (2,))), (2,))
    assert inputs_of_kernels(plan) == (1,)


def test_the_native_executor_looks_at_its_inputs_first():
    steps = (View(1, 0, (4,), (1,), 0, torch.float32),)
    plan = Plan("p", 1, (), steps, (1,))
    seen = []

    def otherwise(x):
        seen.append(x)
        return (x,)

    run = make_executable(plan, {}, (0,), otherwise)
    memory = torch.arange(20.0)
    assert torch.equal(run(memory[4:8])[0], memory[4:8])
    assert not seen
    odd = memory[5:9]
    assert run(odd)[0] is odd
    assert len(seen) == 1
    with pytest.raises(TypeError, match="takes 1 tensors"):
        run(odd, odd)


@needs_triton
@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_random_chains_compile(seed, store, monkeypatch, tmp_path):
    """Reductions inside passes, masks, gathers: code that the programs above do not have."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    torch.manual_seed(seed)
    x = torch.randn(3, 4, 5)
    graph, _ = record(chain(seed, x), x)
    plan, source = render(schedule(lower(graph, "test"), H200, Options()), H200)
    if source is not None:
        build_cubins(source, aligned_arguments(plan, True), H200, store)


@needs_triton
def test_parser_error_from_thread_interference_is_retried(monkeypatch, tmp_path):
    """ "AST constructor recursion depth mismatch": seen about once in a thousand compiles."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    plan, source = made("product_of_products")
    assert len(source.symbols) > 1
    compile_one, seen = triton_kernels._compile, []

    def interrupted(request, to):
        seen.append(request.symbol)
        if seen.count(request.symbol) == 1:
            try:
                raise SystemError(
                    "AST constructor recursion depth mismatch (before=150, after=148)"
                )
            except SystemError as error:
                raise ToolchainError("triton", "triton.compile", "") from error
        return compile_one(request, to)

    monkeypatch.setattr(triton_kernels, "_compile", interrupted)
    cubins, _ = build_cubins(source, aligned_arguments(plan, True), H200, Store(tmp_path))
    assert set(cubins) == set(source.symbols)
    assert sorted(seen) == sorted(list(source.symbols) * 2)
