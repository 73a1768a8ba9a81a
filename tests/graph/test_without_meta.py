"""Shape rules of operators without a meta function in torch agree with their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.graph.operators import without_meta
from jitmagic.graph.operators.shape_rules import SHAPE_RULES
from jitmagic.graph.operators.shapes import infer

aten = torch.ops.aten
ROWS = torch.linspace(-1, 1, 20).reshape(4, 5)
CLASSES = torch.tensor([0, 3, 4, 1])
MANY = torch.tensor([[0, 2, -1, 0, 0]] * 4)
IMAGE = torch.linspace(-1, 1, 2 * 3 * 4 * 5 * 6).reshape(2, 3, 4, 5, 6)
POINTS = torch.linspace(0, 1, 20).reshape(10, 2)
EDGES = torch.tensor([-1.0, 0.0, 0.5, 1.0])


def _margins(x: torch.Tensor) -> tuple[Any, ...]:
    return aten.multi_margin_loss_backward.default, x.new_ones(()), x, CLASSES, 1, 1.0, None, 1


def _several(x: torch.Tensor) -> tuple[Any, ...]:
    _, is_target = aten.multilabel_margin_loss_forward(x, MANY, 1)
    return aten.multilabel_margin_loss_backward.default, x.new_ones(()), x, MANY, 1, is_target


def _pool(x: torch.Tensor) -> tuple[Any, ...]:
    made, indices = aten.fractional_max_pool3d(x, [2] * 3, [2] * 3, x.new_full((2, 3, 3), 0.5))
    op = aten.fractional_max_pool3d_backward.default
    return op, torch.ones_like(made), x, [2] * 3, [2] * 3, indices


def _ctc(x: torch.Tensor) -> tuple[Any, ...]:
    lengths = [len(x)] * x.shape[1], [2] * x.shape[1]
    targets = torch.ones(x.shape[1], 2, dtype=torch.int64)
    loss, alpha = aten._ctc_loss(x, targets, *lengths)
    op = aten._ctc_loss_backward.default
    return op, torch.ones_like(loss), x, targets, *lengths, loss, alpha, 0


def _ctc_of_tensors(x: torch.Tensor) -> tuple[Any, ...]:
    _, grad, x, targets, *lengths, loss, alpha, blank = _ctc(x)
    op = aten._ctc_loss_backward.Tensor
    return op, grad, x, targets, *map(torch.tensor, lengths), loss, alpha, blank


def _encoder_layer(x: torch.Tensor) -> tuple[Any, ...]:
    wide, narrow = torch.ones(2, 2, x.shape[-1], dtype=x.dtype)
    ones = torch.ones(3 * x.shape[-1], x.shape[-1], dtype=x.dtype)
    width = x.shape[-1]
    vector, square = ones[0], ones[:width]
    op = aten._transformer_encoder_layer_fwd.default
    mixed = (width, 1, ones, ones[:, 0].clone(), square, vector, True, True, 1e-5)
    return op, x, *mixed, *[vector] * 4, wide, vector[:1].expand(2), narrow.t(), vector


def _masked_layers(x: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    batch, length, _ = x.shape
    masks = (length, length), (batch, length), (batch, 1, length, length)
    for kind, shape in enumerate(masks):
        for mask in (torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)):
            yield *_encoder_layer(x), mask, kind


def _layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x
    yield x.transpose(0, -1).contiguous().transpose(0, -1)
    yield x.double()


def _cases() -> Iterator[tuple[Any, ...]]:
    yield from map(_margins, _layouts(ROWS))
    yield from map(_several, _layouts(ROWS))
    yield from map(_pool, _layouts(IMAGE))
    yield from map(_ctc, _layouts(IMAGE[0, 0].log_softmax(-1)))
    yield from map(_ctc_of_tensors, _layouts(IMAGE[0, 0].log_softmax(-1)))
    yield from map(_encoder_layer, _layouts(IMAGE[0, 0]))
    for x in _layouts(IMAGE[0, 0]):
        yield from _masked_layers(x)
    for x in (*_layouts(ROWS), ROWS[0, 0], ROWS[:0]):
        yield aten.histogram.bin_ct, x, 3
        yield aten.histogram.bins_tensor, x, EDGES.to(x.dtype)
    for x in (ROWS, ROWS.mT, ROWS.double(), ROWS + 1j, ROWS[None] * ROWS[:, :1, None]):
        for y in (x, x[..., :0], x[..., :0, :]):
            yield aten.geqrf.default, y
    offsets = torch.tensor([0, 2, 5, 9])
    yield aten._padded_dense_to_jagged_forward.default, torch.randn(3, 4, 8), [offsets], 9
    scale, zero = torch.tensor([0.1]), torch.tensor([0], dtype=torch.int32)
    for x in _layouts(ROWS):
        yield aten.fake_quantize_per_tensor_affine_cachemask.default, x, 0.1, 0, -5, 5
        op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
        yield op, x, scale, zero, torch.ones(1, dtype=torch.int64), -5, 5
    for x in _layouts(POINTS):
        yield aten._histogramdd_bin_edges.default, x, [2, 3]
        yield aten._histogramdd_from_bin_cts.default, x, [2, 3]
        yield aten._histogramdd_from_bin_tensors.default, x, [EDGES.to(x.dtype)] * 2


REFUSED: list[tuple[Any, ...]] = [
    (aten.histogram.bin_ct, ROWS, 0),
    (aten.histogram.bin_ct, CLASSES, 3),
    (aten.histogram.bins_tensor, ROWS, EDGES.double()),
    (aten.histogram.bins_tensor, ROWS, ROWS),
    (aten._histogramdd_bin_edges.default, POINTS, [2]),
    (aten._histogramdd_from_bin_cts.default, POINTS, [2, 0]),
    (aten._histogramdd_from_bin_tensors.default, POINTS, [EDGES]),
    (aten.geqrf.default, ROWS[0]),
    (aten._padded_dense_to_jagged_forward.default, ROWS[0], [torch.arange(3)]),
    (aten.geqrf.default, CLASSES[None]),
    _encoder_layer(IMAGE[0]),
    (*_encoder_layer(IMAGE[0, 0])[:-1], ROWS[0].double()),
    (*_encoder_layer(IMAGE[0, 0]), torch.zeros(3, 3, dtype=torch.bool), 1),
    (*_encoder_layer(IMAGE[0, 0]), torch.zeros(4, 5, dtype=torch.bool), 0),
]


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [_meta(part) for part in value] if isinstance(value, list) else value


def _facts(result: Any) -> list[tuple[Any, ...]]:
    results = result if isinstance(result, (tuple, list)) else (result,)
    return [(r.shape, r.stride(), r.dtype) for r in results]


def test_rules_agree_with_kernels() -> None:
    tried = set()
    for op, *args in _cases():
        tried.add(op)
        assert _facts(infer(op, _meta(args), {})) == _facts(op(*args)), (op, args)
    here = {
        op
        for op, rule in SHAPE_RULES.load_all().items()
        if rule.run.__module__ == without_meta.__name__
    }
    assert tried == here


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case[0]))
def test_none_where_the_kernel_refuses(case: tuple[Any, ...]) -> None:
    op, *args = case
    with pytest.raises((RuntimeError, ValueError)):
        op(*args)
    assert infer(op, _meta(args), {}) is None


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "margins": lambda x: torch.nn.functional.multi_margin_loss(x, CLASSES),
    "several margins": lambda x: torch.nn.functional.multilabel_margin_loss(x, MANY),
    "histogram": lambda x: torch.histogram(x, 4, range=(-1.0, 1.0), density=True).hist + x.sum(),
    "histogram of its own limits": lambda x: torch.histogram(x, 4).bin_edges,
    "points": lambda x: torch.histogramdd(x[:, :2], [2, 3])[0] * 2,
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_equals_eager(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = jitmagic.jit(program, fullgraph=True, backend=backend)
    for start in (ROWS, ROWS * 0.5):
        ours, eager = start.clone(), start.clone()
        if "margins" in name:
            ours.requires_grad_(), eager.requires_grad_()
        made, expected = compiled(ours), program(eager)
        torch.testing.assert_close(made, expected)
        if made.requires_grad:
            made.sum().backward(), expected.sum().backward()
            torch.testing.assert_close(ours.grad, eager.grad)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_non_finite_limits_raise_as_eager(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.histogram(x, 4).hist

    compiled = jitmagic.jit(f, backend=backend)
    assert torch.equal(compiled(ROWS), f(ROWS))
    for run in (f, compiled):
        with pytest.raises(RuntimeError, match="not finite"):
            run(ROWS.clone().fill_(float("nan")))
