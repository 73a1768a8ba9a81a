"""Each decomposition against the operation it replaces: values, dtypes, strides."""

from __future__ import annotations

import operator

import pytest
import torch

import jitmagic
from jitmagic.autograd.autograd_function import fx_executable
from jitmagic.autograd.decompose import TABLE
from jitmagic.autograd.joint import trace_joint
from jitmagic.spec import spec_of

aten = torch.ops.aten


def data(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def through(op, args, kwargs):
    """The operation recorded (and so decomposed), then fx_executable."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    graph = torch.fx.Graph()
    holders = iter([graph.placeholder(f"x{i}") for i in range(len(tensors))])
    plugged = tuple(next(holders) if isinstance(a, torch.Tensor) else a for a in args)
    node = graph.call_function(op, plugged, kwargs)
    count = len(op._schema.returns)
    parts = [node]
    if count > 1:
        parts = [graph.call_function(operator.getitem, (node, i)) for i in range(count)]
    graph.output(tuple(parts))
    joint = trace_joint(
        torch.fx.GraphModule(torch.nn.Module(), graph), [spec_of(t) for t in tensors]
    )
    targets = {n.target for n in joint.module.graph.nodes}
    return fx_executable(joint.module)(*tensors), targets


x, g = data(3, 4), data(3, 4)
corner = torch.tensor([-4.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0, 30.0])
UNARY_BACKWARD = [
    (aten.gelu_backward.default, {"approximate": "none"}),
    (aten.gelu_backward.default, {"approximate": "tanh"}),
    (aten.silu_backward.default, {}),
    (aten.mish_backward.default, {}),
    (aten.hardswish_backward.default, {}),
    (aten.hardsigmoid_backward.default, {}),
    (aten.tanh_backward.default, {}),
    (aten.sigmoid_backward.default, {}),
]
# So small that an epsilon tells: one not given is that of the dtype it is computed in.
KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SMALL = [(v, kind) for v in (x, x * 1e-2, x * 1e-4) for kind in KINDS]
CASES = [
    *[(op, (g, x), kwargs) for op, kwargs in UNARY_BACKWARD],
    *[(op, (torch.ones(10), corner), kwargs) for op, kwargs in UNARY_BACKWARD],
    *[(op, (g.half(), x.half()), kwargs) for op, kwargs in UNARY_BACKWARD[:4]],
    *[(op, (g.double(), x.double()), kwargs) for op, kwargs in UNARY_BACKWARD],
    (aten.elu_backward.default, (g, 1.5, 1.1, 0.7, False, x), {}),
    (aten.elu_backward.default, (g, 1.5, 1.1, 0.7, True, x), {}),
    (aten.leaky_relu_backward.default, (g, x, 0.1, False), {}),
    (aten.softplus_backward.default, (g, x * 4, 2.0, 3.0), {}),
    (aten.hardtanh_backward.default, (torch.ones(10), corner, -1, 1), {}),
    (aten.threshold_backward.default, (torch.ones(10), corner, 0.5), {}),
    (aten.log_sigmoid_forward.default, (x,), {}),
    (aten.log_sigmoid_backward.default, (g, x, (-x.abs()).exp()), {}),
    (aten._softmax.default, (x, 1, False), {}),
    (aten._log_softmax.default, (x.bfloat16(), 0, False), {}),
    (aten._softmax_backward_data.default, (g, x.softmax(1), 1, torch.float32), {}),
    (aten._log_softmax_backward_data.default, (g, x.log_softmax(1), 1, torch.float32), {}),
    (aten.native_layer_norm.default, (x, [4], data(4), data(4), 1e-5), {}),
    (aten.native_layer_norm.default, (x, [3, 4], None, None, 1e-5), {}),
    (aten.native_group_norm.default, (data(2, 6, 5), data(6), None, 2, 6, 5, 3, 1e-5), {}),
    (
        aten._native_batch_norm_legit.no_stats,
        (data(5, 3, 2), data(3), data(3), True, 0.1, 1e-5),
        {},
    ),
    (aten.mse_loss_backward.default, (data(), x, g, 1), {}),
    (aten.smooth_l1_loss_backward.default, (data(), x, g, 1, 0.5), {}),
    (aten.huber_loss_backward.default, (data(), x, g, 2, 0.7), {}),
    (aten.huber_loss.default, (x, g, 0, 0.7), {}),
    (aten.binary_cross_entropy_backward.default, (data(), x.sigmoid(), g.sigmoid(), None, 1), {}),
    (aten.nll_loss_forward.default, (x, torch.tensor([1, 3, 2]), data(4), 1, 3), {}),
    (aten.nll_loss_forward.default, (x, torch.tensor([1, 3, 2]), None, 0, -100), {}),
    (
        aten.nll_loss2d_forward.default,
        (data(2, 4, 2, 2), torch.tensor([[[0, 1], [2, 3]]] * 2), None, 2, 1),
        {},
    ),
    (aten.var.correction, (data(2, 3, 4), [0, 2]), {"correction": 1, "keepdim": True}),
    (aten.std_mean.correction, (x,), {"correction": 0}),
    (aten.linalg_vector_norm.default, (x, 2, [1], True), {}),
    (aten.linalg_vector_norm.default, (x, 1), {}),
    (aten.linalg_vector_norm.default, (x, float("inf"), [0]), {}),
    (aten.logsumexp.default, (torch.full((2, 3), -float("inf")), [1]), {}),
    (aten.baddbmm.default, (data(2, 3, 3), data(2, 3, 4), data(2, 4, 3)), {"beta": 0, "alpha": 2}),
    (aten.addmv.default, (data(3), x, data(4)), {"beta": 0.5}),
    (aten.addr.default, (x, data(3), data(4)), {"alpha": 2}),
    (aten.masked_fill.Tensor, (x, g > 0, torch.tensor(2.0)), {}),
    (
        aten.nan_to_num.default,
        (torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0]),),
        {},
    ),
    (aten.repeat.default, (x, [2, 1, 3]), {}),
    (aten.triu.default, (data(2, 3, 4), 1), {}),
    (aten.tril.default, (torch.arange(12).view(3, 4), -1), {}),
    (aten.glu.default, (x, 1), {}),
    (aten.glu_backward.default, (data(3, 2), x, 1), {}),
    (aten.select_backward.default, (data(4), [3, 4], 0, 1), {}),
    (aten.slice_backward.default, (data(3, 2), [3, 4], 1, 0, 4, 2), {}),
    (aten.diagonal_backward.default, (data(3), [3, 4], 1, 0, 1), {}),
    (aten.native_dropout_backward.default, (g, x > 0, 2.0), {}),
    *[(aten._fused_rms_norm.default, (v.to(kind), [4], None, None), {}) for v, kind in SMALL],
    (aten.max.default, (x,), {}),
]


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_against_the_whole_operation(case):
    op, args, kwargs = CASES[case]
    compare(op, args, kwargs)


@pytest.mark.parametrize("case", [i for i, c in enumerate(CASES) if c[1][0] is g or c[1][0] is x])
def test_transposed_arguments_give_the_same_strides(case):
    op, args, kwargs = CASES[case]
    turned = tuple(
        a.t().contiguous().t() if isinstance(a, torch.Tensor) and a.shape == (3, 4) else a
        for a in args
    )
    compare(op, turned, kwargs)


def compare(op, args, kwargs):
    ours, targets = through(op, args, kwargs)
    assert op not in targets, "the operation was not decomposed"
    eager = op(*args, **kwargs)
    eager = eager if isinstance(eager, (tuple, list)) else (eager,)
    for a, e in zip(ours, eager, strict=True):
        assert a.shape == e.shape
        assert a.stride() == e.stride()
        assert a.dtype == e.dtype
        tolerance = 4 * torch.finfo(e.dtype).eps if e.dtype.is_floating_point else 0
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_every_entry_is_an_overload_with_a_rule():
    assert len(TABLE.load_all()) > 100
    for op, rule in TABLE.items():
        assert isinstance(op, torch._ops.OpOverload)
        assert callable(rule)


def test_empty_tensors():
    for op, args in [
        (aten._softmax.default, (torch.zeros(0, 3), 1, False)),
        (aten.native_layer_norm.default, (torch.zeros(0, 4), [4], None, None, 1e-5)),
    ]:
        ours, _ = through(op, args, {})
        eager = op(*args)
        assert ours[0].shape == (eager[0] if isinstance(eager, tuple) else eager).shape


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("formats", ["nn", "cn", "nc", "cc"])
def test_convolution_layouts(groups, kernel, transposed, formats):
    def laid_out(tensor, format):
        return tensor.to(memory_format=torch.channels_last) if format == "c" else tensor

    image = laid_out(data(2, 8, 6, 5), formats[0])
    weight = laid_out(data(8, 8 // groups, kernel, kernel), formats[1])
    settings = ([2, 1], [1, 0], [1, 1], transposed, [0, 0], groups)
    args = (image, weight, data(8), *settings)
    ours, _ = through(aten.convolution.default, args, {})
    eager = aten.convolution.default(*args)
    assert ours[0].stride() == eager.stride()
    tail = ([8], *settings, [True, True, True])
    back, _ = through(aten.convolution_backward.default, (eager, image, weight, *tail), {})
    for a, e in zip(
        back, aten.convolution_backward.default(eager, image, weight, *tail), strict=True
    ):
        assert (a.shape, a.stride()) == (e.shape, e.stride())


@pytest.mark.parametrize("op", [torch.tanh, torch.sigmoid])
def test_gradients_of_complex_numbers_take_the_conjugate(op):
    """The rules for real numbers are not asked: 1 - y * y would be the derivative."""

    def gradient(function, x):
        leaf = x.clone().requires_grad_()
        function(leaf).backward(torch.full_like(x, 1 - 2j))
        return leaf.grad

    x = torch.complex(data(5), data(5, 1)[:, 0])
    made, eager = gradient(jitmagic.jit(lambda x: op(x)), x), gradient(op, x)
    assert torch.equal(made, eager)
    exact = gradient(op, x.to(torch.complex128))
    torch.testing.assert_close(made.to(torch.complex128), exact, rtol=1e-5, atol=1e-6)


_NORMS = {
    "batch": lambda x, w, b: torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5),
    "layer": lambda x, w, b: torch.native_layer_norm(x, (x.shape[-1],), None, None, 1e-5),
    "group": lambda x, w, b: torch.native_group_norm(x, w, b, 4, 3, 5, 1, 1e-5),
}


@pytest.mark.parametrize("weights", [None, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("norm", _NORMS)
def test_statistics_that_the_program_sees_are_of_the_dtype_that_eager_gives(norm, dtype, weights):
    """Our formulas keep them in float32, which no program has asked for."""
    x = data(4, 3, 5, dtype=dtype).requires_grad_()
    w, b = data(3, dtype=weights or dtype), data(3, dtype=weights or dtype)
    tagged = jitmagic.jit(_NORMS[norm], fullgraph=True, backend="aot_eager")
    for ours, eager in zip(tagged(x, w, b), _NORMS[norm](x, w, b), strict=True):
        assert ours.dtype is eager.dtype
        torch.testing.assert_close(
            ours, eager, rtol=0.02, atol=0.02
        )  # eager normalises with rounded ones
