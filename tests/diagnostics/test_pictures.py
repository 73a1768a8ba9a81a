"""Pictures of what was compiled: every operation, second and byte of it is drawn, nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.diagnostics.builds import builds_in_use, newest_variants, nodes_of
from jitmagic.diagnostics.explanation.footprint import footprint_of
from jitmagic.diagnostics.explanation.pictures import PICTURES
from jitmagic.loops.ir import Nest

SVG = "{http://www.w3.org/2000/svg}"
ROWS = 1 << 18  # of float32: 1 MiB


def chain(x: Tensor) -> Tensor:
    y = x + 1
    z = y * 2
    return z.sum()


def breaks(x: Tensor) -> Tensor:
    y = x.sin() * 2
    print("between")
    return y.cos().sum()


def untraceable(x: Tensor) -> Tensor:
    return x + len(globals().copy())


def data(x: Tensor) -> Tensor:
    return x[x > 0].sum()


MLP = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
PROGRAMS: dict[str, tuple[Any, Tensor, dict[str, Any]]] = {
    "chain": (chain, torch.randn(64), {}),
    "training": (chain, torch.randn(64, requires_grad=True), {}),
    "model": (MLP, torch.randn(8, 16), {}),
    "break": (breaks, torch.randn(64, requires_grad=True), {}),
    "sizes": (MLP, torch.randn(8, 16), {"dynamic": True}),
    "data": (data, torch.randn(64), {}),
    "no kernels": (chain, torch.randn(64), {"backend": "eager"}),
    "no graph": (untraceable, torch.randn(64), {}),
}


def texts(svg: str) -> list[str]:
    return ["".join(part.itertext()) for part in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_picture_of_every_program_is_sound(name: str, kind: str, tmp_path: Path) -> None:
    fn, x, options = PROGRAMS[name]
    found = jitmagic.explain(fn, **options)(x)
    made = found.picture(kind)
    root = ElementTree.fromstring(made.svg)
    assert root.tag == f"{SVG}svg"
    assert made.save(tmp_path / "a.svg").read_text() == made._repr_svg_() == made.svg
    assert "nan" not in re.sub(r">[^<]*<", "", made.svg)
    assert not {"script", "image", "foreignObject"} & {part.tag for part in root.iter()}
    reach = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter(f"{SVG}rect"):
        assert 0 <= float(box.attrib["x"]) <= reach[0]
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= reach[1]


def test_a_graph_has_a_row_for_each_operation_and_a_box_for_each_kernel() -> None:
    found = jitmagic.explain(chain)(torch.randn(64, requires_grad=True))
    svg = found.picture("graph").svg
    told = texts(svg)
    assert {"add", "mul", "sum"} <= set(told)
    for kernel in found.kernels:
        assert kernel.name in told
    assert sum("line" in text and "+ 1" in text for text in told) >= 1
    boxes = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    assert len(list(boxes)) == len(found.kernels) + len(found.externs)


def test_a_large_graph_has_a_row_for_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitmagic.diagnostics.explanation.pictures.MOST_ROWS", 2)
    assert "add, mul, sum" in texts(jitmagic.explain(chain)(torch.randn(64)).picture().svg)


def test_compile_time_is_divided_without_rest() -> None:
    found = jitmagic.explain(chain)(torch.randn(64))
    boxes = ElementTree.fromstring(found.picture("compile").svg).iter(f"{SVG}rect")
    wide = [(float(b.attrib["y"]), float(b.attrib["width"])) for b in boxes]
    top = min(y for y, _ in wide)
    assert sum(w for y, w in wide if y == top) == pytest.approx(640, abs=len(wide))


@pytest.mark.parametrize("dynamic", [None, True])
def test_bytes_are_those_of_the_tensors(dynamic: bool | None) -> None:
    found = jitmagic.explain(chain, dynamic=dynamic)(torch.randn(ROWS))
    (frame,) = newest_variants(found.records)
    bytes_ = footprint_of(frame)
    assert bytes_ is not None
    mib = 1 << 20
    assert bytes_.eager == (mib, 2 * mib, mib + 4)  # y; y and z; z and the sum
    assert max(bytes_.compiled) <= 4 + 64
    assert "2 MiB" in found.picture("memory").svg


def test_a_backwards_bytes_are_counted_where_it_begins() -> None:
    def squares(x: Tensor) -> Tensor:
        return (x.sin() * x.cos()).sum()

    found = jitmagic.explain(squares)(torch.randn(ROWS, requires_grad=True))
    bytes_ = footprint_of(newest_variants(found.records)[0])
    assert bytes_ is not None
    mib = 1 << 20
    eager_at, compiled_at = bytes_.backward_at
    # sin and cos are saved; the product is being read
    assert bytes_.eager[eager_at - 1] == 3 * mib + 4
    assert 0 < compiled_at < len(bytes_.compiled)
    assert bytes_.compiled[compiled_at - 1] < mib  # recomputed: only x is saved
    assert bytes_.compiled[-1] >= mib  # the gradient


def test_names_are_escaped_in_pictures() -> None:
    def hostile(x: Tensor) -> Tensor:
        return x + 1  # </text><script>alert(1)</script>

    hostile.__name__ = hostile.__qualname__ = "<script>alert('1')</script>&\""
    found = jitmagic.explain(hostile)(torch.randn(4))
    for kind in PICTURES:
        assert "<script" not in found.picture(kind).svg
        ElementTree.fromstring(found.picture(kind).svg)


def test_unknown_picture_error_lists_the_kinds() -> None:
    found = jitmagic.explain(chain)(torch.randn(4))
    with pytest.raises(ValueError, match="known: graph, compile, memory"):
        found.picture("kernels")
    with pytest.raises(ValueError, match=r"saved as \.svg"):
        found.picture().save("graph.png")


def test_drawing_changes_nothing() -> None:
    x = torch.randn(64)
    run = jitmagic.jit(breaks)
    run(x)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    found = jitmagic.explain(run).now
    assert found is not None
    for kind in PICTURES:
        found.picture(kind)
    assert torch.equal(torch.get_rng_state(), before)


def saves(x: Tensor) -> Tensor:
    y = x.exp()
    z = y.sigmoid() + y
    return z.tanh().sum()


def test_saved_tensors_are_not_computed_by_the_backward() -> None:
    """An input of the backward has the name of the forward's node."""
    found = jitmagic.explain(saves)(torch.randn(4, requires_grad=True))
    (frame,) = newest_variants(found.records)
    for build in builds_in_use(frame):
        nodes = nodes_of(build)
        made = [n for step in build.schedule.program.steps if isinstance(step, Nest)
                for n in step.origins]  # fmt: skip
        assert made
        assert all(nodes[name].op == "call_function" for name in made)
    first = saves.__code__.co_firstlineno
    forward = [kernel for kernel in found.kernels if kernel.graph == "forward"]
    lines = {line.lineno - first for kernel in forward for line in kernel.lines}
    assert lines == {1, 2, 3}
    assert all(kernel.lines for kernel in found.kernels)
    assert f"{first + 1}, {first + 2}, {first + 3}" in str(found)
