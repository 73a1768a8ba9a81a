"""Programs without Python: what `save_cxx` writes, read and run by extensions/deploy."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.errors import CompileFailed, JitmagicError, Unsupported, UsageError
from jitmagic.packaging.cxx import save_cxx
from jitmagic.packaging.cxx_file import CxxWriter
from jitmagic.platforms import instruction_sets
from tests.processes import ROOT, child_environment, run_python

from .c_library import Program, build, installed


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("deploy"))


@pytest.fixture(scope="module")
def demo(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    build(ROOT / "demos" / "cpp", folder, prefix)
    return folder


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def compiled(fn: Callable[..., Any], *args: Any) -> list[torch.Tensor]:
    """The tensors of a compiled call, whose kernels a file has."""
    run = jitmagic.jit(lambda *given: fn(*given), fullgraph=True, dynamic=False)
    with torch.no_grad():
        leaves = torch.utils._pytree.tree_leaves(run(*args))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def same(made: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(made) == len(wanted)
    for one, other in zip(made, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


# ------------------------------------------------------------------------------------ it runs


def test_the_demo_runs_from_cpp_and_c(demo: Path, tmp_path: Path) -> None:
    saved_at = tmp_path / "model.jmc"
    saved = subprocess.run(
        [sys.executable, ROOT / "demos" / "cpp" / "save.py", saved_at],
        env=child_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    wanted = float(saved.stdout.rpartition(":")[2])

    def output(*command: object) -> str:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    lines = output(demo / "run", saved_at, 8).splitlines()
    assert "8 at once" in lines[3]
    assert float(lines[2].rpartition("sum")[2]) == pytest.approx(wanted, rel=1e-4)
    transformer = tmp_path / "transformer.jmc"
    save_cxx(model := encoder(), transformer, (torch.ones(2, 16, 64),), (torch.ones(4, 8, 64),))
    lines = output(demo / "run", transformer, 8).splitlines()
    for line, x in zip(lines[::2], (torch.ones(2, 16, 64), torch.ones(4, 8, 64)), strict=True):
        assert float(line.rpartition("sum")[2]) == pytest.approx(
            float(model(x).sum().detach()), abs=1e-2
        )
    from_c = output(demo / "run_from_c", saved_at, 32, 64)
    assert float(from_c.rpartition("sum")[2]) == pytest.approx(wanted, rel=1e-4)
    refused = subprocess.run(
        [demo / "run_from_c", saved_at, "31", "64"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "Float[31, 64]" in refused.stderr


Pair = namedtuple("Pair", "first second")
PROGRAMS: dict[str, tuple[Callable[[], Callable[..., Any]], tuple[Any, ...]]] = {
    "mlp": (mlp, (torch.randn(3, 8),)),
    "encoder": (encoder, (torch.randn(2, 16, 64),)),
    "lstm": (lambda: nn.LSTM(8, 16, batch_first=True).eval(), (torch.randn(2, 5, 8),)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval(),
        (torch.randn(2, 3, 9, 9),),
    ),
    "views": (lambda: lambda x: (x.t(), x[0], (x + 1).view(-1), x.split(2)), (torch.randn(4, 6),)),
    "structures": (
        lambda: lambda d, y: {"a": d["x"] * 2, "b": [y.sum(), None, Pair(d["x"], y + 1)]},
        ({"x": torch.randn(3)}, torch.arange(4)),
    ),
    "topk": (lambda: lambda x: torch.topk(x, 3), (torch.randn(4, 10),)),
    "sort": (lambda: lambda x: torch.sort(x.bfloat16(), descending=True), (torch.randn(4, 10),)),
    "attention": (
        lambda: lambda q: nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True),
        (torch.randn(2, 4, 32, 16),),
    ),
    "constants": (lambda: lambda x: x + torch.arange(3), (torch.randn(3),)),
    "unused": (lambda: lambda x, y: x * 2, (torch.randn(3), torch.randn(2))),
    "transposed": (lambda: lambda x: x.sin(), (torch.randn(6, 4).t(),)),
    "empty": (lambda: lambda x: (x.sum(0), x * 2), (torch.randn(0, 4),)),
    "bools": (lambda: lambda x: (x > 0, (x > 0).all(), x.to(torch.int8)), (torch.randn(7),)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_the_compiled_call(name: str, prefix: Path, tmp_path: Path) -> None:
    make, args = PROGRAMS[name]
    fn = make()
    save_cxx(fn, tmp_path / "program.jmc", args)
    leaves = [t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    same(Program(prefix, tmp_path / "program.jmc")(*leaves), compiled(fn, *args))


@pytest.mark.skipif("avx2" not in instruction_sets(), reason="this processor has no AVX2")
def test_a_file_for_avx2_runs(prefix: Path, tmp_path: Path) -> None:
    fn, x = encoder(), torch.randn(2, 16, 64)
    jitmagic.save(fn, tmp_path / "program.jmc", x, cxx=True, target="avx2")
    with torch.no_grad():
        torch.testing.assert_close(Program(prefix, tmp_path / "program.jmc")(x), [fn(x)])


def test_each_example_has_an_entry(prefix: Path, tmp_path: Path) -> None:
    fn, small, large = encoder(), torch.randn(2, 16, 64), torch.randn(5, 7, 64)
    save_cxx(fn, tmp_path / "program.jmc", (small,), (large,))
    program = Program(prefix, tmp_path / "program.jmc")
    for x in (small, large):
        same(program(x), compiled(fn, x))


@pytest.mark.parametrize(
    ("make", "example", "varies", "others"),
    [
        (mlp, (3, 8), (0,), [(2, 8), (100, 8)]),
        (encoder, (3, 16, 64), (0, 1), [(2, 5, 64), (7, 33, 64)]),
        (lambda: lambda x: x.sum(0) / x.shape[0] + x.shape[0] ** 0.5, (4, 6), (0,), [(9, 6)]),
        (lambda: lambda x: x[:, : x.shape[1] // 2].t() * 2, (4, 6), (0, 1), [(5, 9)]),
    ],
)
def test_sizes_may_vary(
    make: Callable[[], Callable[..., Any]],
    example: tuple[int, ...],
    varies: tuple[int, ...],
    others: list[tuple[int, ...]],
    prefix: Path,
    tmp_path: Path,
) -> None:
    fn, first = make(), torch.randn(example)
    for dim in varies:
        jitmagic.mark_dynamic(first, dim, max=256)
    save_cxx(fn, tmp_path / "program.jmc", first)
    program = Program(prefix, tmp_path / "program.jmc")
    for x in (first, *map(torch.randn, others)):
        with torch.no_grad():
            torch.testing.assert_close(program(x), [fn(x)], check_stride=True)
    with pytest.raises(RuntimeError, match="no entry accepts"):
        program(torch.randn(257, *example[1:]))


def test_save_writes_it_with_sizes_by_name(prefix: Path, tmp_path: Path) -> None:
    fn = jitmagic.jit(lambda x, mask, scale: (x * scale).masked_fill(mask, 0.0))
    args = {"x": torch.randn(4, 6), "mask": torch.rand(4, 6) > 0.5, "scale": 2.0}
    dynamic = {"x": {0: (2, 64)}, "mask": {0: None}}
    jitmagic.save(fn, tmp_path / "program.jmc", args, dynamic=dynamic, cxx=True)
    program = Program(prefix, tmp_path / "program.jmc")
    x, mask = torch.randn(9, 6), torch.rand(9, 6) > 0.5
    torch.testing.assert_close(program(x, mask), [(x * 2).masked_fill(mask, 0.0)])
    with pytest.raises(UsageError, match="'other', which is no tensor"):
        jitmagic.save(fn, tmp_path / "p", args, dynamic={"other": ...}, cxx=True)
    with pytest.raises(UsageError, match="needs its weights"):
        jitmagic.save(fn, tmp_path / "p", args, weights=False, cxx=True)


def test_inputs_in_other_strides_are_copied(prefix: Path, tmp_path: Path) -> None:
    save_cxx(lambda x: x.cumsum(0), tmp_path / "program.jmc", torch.randn(4, 6))
    x = torch.randn(6, 4).t()
    torch.testing.assert_close(Program(prefix, tmp_path / "program.jmc")(x), [x.cumsum(0)])


def test_inputs_can_be_written_to(prefix: Path, tmp_path: Path) -> None:
    save_cxx(lambda x, y: x.add_(y), tmp_path / "p.jmc", (torch.zeros(4), torch.zeros(4)))
    program = Program(prefix, tmp_path / "p.jmc")
    x, y = torch.ones(4), torch.full((4,), 2.0)
    program(x, y)
    assert x.tolist() == [3.0] * 4
    with pytest.raises(
        RuntimeError, match=r"\[0\] is written to, so it must have the strides \[1\]"
    ):
        program(torch.ones(8)[::2], y)


def test_threads_share_a_program(prefix: Path, tmp_path: Path) -> None:
    fn, x = encoder(), torch.randn(3, 16, 64)
    jitmagic.mark_dynamic(x, 0, max=64)
    save_cxx(fn, tmp_path / "program.jmc", x)
    program = Program(prefix, tmp_path / "program.jmc")
    inputs = [torch.randn(2 + n, 16, 64) for n in range(8)]
    wanted, wrong = [program(one) for one in inputs], list[int]()

    def work(n: int) -> None:
        for _ in range(20):
            made = program(inputs[n])
            if not all(map(torch.equal, made, wanted[n])):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_library_needs_no_python(prefix: Path) -> None:
    (library,) = prefix.glob("lib*/libjitmagic_run.so")
    needed = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    assert "libtorch_cpu" in needed
    assert "python" not in re.sub(r"/\S*", "", needed)
    for path in (ROOT / "extensions" / "executor").iterdir():
        assert not re.search(r"Python\.h|torch/csrc|pybind", path.read_text()), path


# ------------------------------------------------------------------------------------- faults


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_cxx(mlp(), tmp_path / "program.jmc", torch.randn(3, 8))
    return tmp_path / "program.jmc"


def test_wrong_inputs_are_named(prefix: Path, saved: Path) -> None:
    program = Program(prefix, saved)
    for given, words in [
        ((torch.randn(4, 8),), r"Float\[4, 8\] on cpu\n  accepted: \[0\] as Float\[3, 8\]"),
        ((torch.randn(3, 8).double(),), r"Double\[3, 8\]"),
        ((), "no entry accepts"),
        ((torch.randn(3, 8), torch.randn(3, 8)), "no entry accepts"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            program(*given)


def test_an_index_out_of_range_is_an_error(prefix: Path, tmp_path: Path) -> None:
    save_cxx(lambda x, i: x[i] * 2, tmp_path / "p.jmc", (torch.randn(4), torch.tensor([1, 2])))
    with pytest.raises(RuntimeError, match="index out of range"):
        Program(prefix, tmp_path / "p.jmc")(torch.randn(4), torch.tensor([1, 9]))


def test_a_missing_or_truncated_file_is_refused(prefix: Path, saved: Path) -> None:
    with pytest.raises(RuntimeError, match="No such file"):
        Program(prefix, saved.with_name("other.jmc"))
    data = saved.read_bytes()
    for length in (0, 10, len(data) // 2, len(data) - 1):
        saved.write_bytes(data[:length])
        with pytest.raises(RuntimeError, match="truncated|empty"):
            Program(prefix, saved)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("torch", "2.1.0", "compiled with torch 2.1.0, this library with torch"),
        ("format", 99, "its format is 99, this library reads 1"),
        ("kind", "python", "it is for Python"),
        ("machine", "mips64", "its kernels are for mips64, this library for"),
        ("instructions", ["avx9"], "another processor, this one lacks: avx9"),
    ],
)
def test_a_file_for_another_machine_is_refused(
    field: str, value: object, words: str, prefix: Path, saved: Path
) -> None:
    with zipfile.ZipFile(saved) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    described = json.loads(files.pop("artifact.json")) | {field: value}
    del files["checksums.json"]
    writer = CxxWriter()
    writer._files.update(files)
    writer.finish(described, saved)
    with pytest.raises(RuntimeError, match=words):
        Program(prefix, saved)


def test_damaged_files_are_refused_or_right(prefix: Path, saved: Path) -> None:
    """In a process of its own, which must not crash."""
    done = run_python(
        """
        import random, sys, torch
        from pathlib import Path
        from tests.packaging.c_library import Program
        prefix, path = map(Path, sys.argv[1:])
        data, draw = path.read_bytes(), random.Random(0)
        x = torch.randn(3, 8)
        wanted, refused = Program(prefix, path)(x), 0
        directory = data.rindex(b"checksums.json") - 2000
        for n in range(500):
            damaged = bytearray(data)
            start = directory if n % 2 else 0
            for _ in range(draw.choice([1, 1, 4])):
                at = draw.randrange(start, len(data))
                damaged[at] ^= 1 << draw.randrange(8)
            if n % 7 == 0:
                at = draw.randrange(start, len(data))
                damaged[at:at + draw.randrange(40)] = draw.randbytes(draw.randrange(40))
            path.write_bytes(damaged)
            try:
                made = Program(prefix, path)(x)
            except RuntimeError:
                refused += 1
            else:
                assert all(map(torch.equal, made, wanted))
        print(refused)
        """,
        str(prefix),
        str(saved),
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 400


# -------------------------------------------------------------------------- what cannot be saved


def breaks(x: torch.Tensor) -> torch.Tensor:
    print("x")
    return x + 1


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + 1


@pytest.mark.parametrize(
    ("fn", "args", "error", "words"),
    [
        (breaks, (torch.randn(3),), Unsupported, "print"),
        (Counting(), (torch.randn(3),), UsageError, "changes Python objects"),
        (nn.BatchNorm1d(4).train(), (torch.randn(5, 4),), UsageError, r"call \.eval\(\)"),
        (lambda x: x.nonzero(), (torch.randn(3),), JitmagicError, "data"),
        (lambda x: (x + 1, 3), (torch.randn(3),), UsageError, r"the result\[1\]"),
        (lambda x, y: x + y, (t := torch.randn(3), t), UsageError, "one tensor twice"),
        (lambda x: x + random.random(), (torch.randn(3),), UsageError, "random numbers of Python"),
        (lambda x: x + 1, (torch.randn(3).to_sparse(),), UsageError, "not a plain strided"),
        (lambda x: x + 1, (torch.empty(3, device="meta"),), UsageError, "on meta"),
        (lambda x: x, (torch.randn(3),), UsageError, "no operation"),
    ],
)
def test_what_cannot_be_saved_is_refused(
    fn: Callable[..., Any], args: tuple[Any, ...], error: type, words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        save_cxx(fn, tmp_path / "p.jmc", args)
    assert not list(tmp_path.iterdir())


def test_kernels_of_other_tiers_cannot_be_saved(tmp_path: Path) -> None:
    options = {"cpu_tier": "aten"}
    with pytest.raises(CompileFailed, match="tier 'aten'"):
        save_cxx(lambda x: x + 1, tmp_path / "p.jmc", torch.randn(3), options=options)


def test_an_example_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no arguments of a call"):
        save_cxx(mlp(), tmp_path / "p.jmc")
