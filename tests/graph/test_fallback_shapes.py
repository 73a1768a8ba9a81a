"""Shape rules of ATen fallbacks agree with the kernels."""

from __future__ import annotations

import pytest
import torch

from jitmagic.graph.operators.shapes import infer

aten = torch.ops.aten
x = torch.randn(2, 3, 9, 8)
flat = torch.randn(4, 5)
rows = torch.tensor([0, 2, 2])
columns = torch.randint(4, (3, 5))
q = torch.randn(2, 5, 4, 8).transpose(1, 2)
pooled = aten.max_pool2d_with_indices.default(x, [2], [2])
GRADIENTS = {
    "threshold": (0,), "gelu": (), "silu": (), "mish": (), "leaky_relu": (0.1, False),
    "hardtanh": (-1, 1), "hardswish": (), "hardsigmoid": (), "softplus": (1, 20), "sigmoid": (),
    "tanh": (),
}  # fmt: skip
CASES = [
    *(
        (getattr(aten, f"{name}_backward").default, (grad, values, *numbers))
        for name, numbers in GRADIENTS.items()
        for grad in (flat, flat.t().contiguous().t(), torch.ones(()).expand(4, 5))
        for values in (flat, flat.t().contiguous().t())
    ),
    *((aten.cat.default, (parts, 1)) for parts in (
        [flat, flat[:, ::2]], [flat.t(), flat.t()], [x.mT, x.mT], [x[:, :1].contiguous(), x],
        [torch.randn(2, 3, 1, 1), torch.randn(2, 3, 1, 1)], [x.unsqueeze(2).mT] * 2,
    )),
    *((aten.isin.Tensor_Tensor, (t, torch.arange(n))) for t in (x, x.mT, flat[0, 0])
      for n in (2, 60)),
    (aten.isin.Tensor_Scalar, (x.mT, 1)),
    (aten.cumsum.default, (x, 1)),
    (aten.cumsum.default, (columns, -1)),
    (aten.cumprod.default, (flat, 0)),
    (aten.roll.default, (flat, [1], [0])),
    (aten.flip.default, (x, [1, -1])),
    (aten.sgn.default, (flat,)),
    (aten.softshrink.default, (flat, 0.5)),
    (aten.sort.default, (x, 2)),
    (aten.topk.default, (flat, 2, 0)),
    (aten.max.dim, (x, 1)),
    (aten.min.dim, (x, -1, True)),
    (aten.prod.dim_int, (flat, 1)),
    (aten.index.Tensor, (x, [torch.tensor([[0, 1, 1]])])),
    (aten.index.Tensor, (flat, [rows, rows])),
    (aten.index_put.default, (flat, [rows], torch.randn(3, 5), True)),
    (aten.index_select.default, (flat, 1, rows)),
    (aten.index_add.default, (flat, 0, rows, torch.randn(3, 5))),
    (aten.scatter.src, (flat, 0, columns, torch.randn(3, 5))),
    (aten.scatter.value, (flat, 0, columns, 2.0)),
    (aten.scatter_add.default, (flat, 0, columns, torch.randn(3, 5))),
    (aten.embedding_dense_backward.default, (torch.randn(3, 6), rows, 7, -1, False)),
    (aten.max_pool2d_with_indices.default, (x, [3, 2], [2, 2], [1, 1], [1, 1], True)),
    (aten.max_pool2d_with_indices.default, (x, [2])),
    (aten.avg_pool2d.default, (x, [3], [2], [1], True)),
    (aten.max_pool2d_with_indices_backward.default,
     (torch.randn_like(pooled[0]), x, [2], [2], [0], [1], False, pooled[1])),
    (aten.mv.default, (flat, torch.randn(5))),
    (aten.dot.default, (torch.randn(3), torch.randn(3))),
    (aten.binary_cross_entropy.default, (flat.sigmoid(), flat.sigmoid(), None, 1)),
    (aten.binary_cross_entropy.default, (flat.sigmoid(), flat.sigmoid(), None, 0)),
    (aten.native_dropout.default, (flat, 0.5, True)),
    (aten.randn_like.default, (flat,)),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, (q, q, q, 0.0, True)),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, (q.contiguous(),) * 3),
    (aten._softmax_backward_data.default, (flat.t(), flat.t().softmax(1), 1, torch.float32)),
    (aten.log_sigmoid_forward.default, (flat.t(),)),
    (aten.native_dropout_backward.default, (flat.t(), flat.t() > 0, 2.0)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_rule_agrees_with_kernel(case):
    op, args = CASES[case]
    made, real = infer(op, as_meta(args), {}), op(*args)
    assert made is not None
    real = real if isinstance(real, (tuple, list)) else (real,)
    made = made if isinstance(made, (tuple, list)) else (made,)
    for a, e in zip(made, real, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (e.shape, e.stride(), e.dtype)


def as_meta(value):
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return type(value)(map(as_meta, value)) if isinstance(value, (list, tuple)) else value
