"""Small tensor programs: the traced graph, replayed on real inputs, does what eager does."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from .replaying import check

R = torch.randn


def p_pointwise(x, y):
    return torch.relu(x * y + 2).sum(-1)


def p_reflected(x):
    return 1 - x, 2 / (x + 3), 2**x, 5 // (x.abs() + 1), 7 % (x.abs() + 1), 1 + x, 3 * x


def p_compare(x, y):
    return x < y, x >= 0.5, 1 < x, x == y, x != 3


def p_bits(x):
    i = (x * 10).int()
    b = x > 0
    return i & 3, i | 4, i ^ 5, ~i, i << 1, i >> 1, b & (x < 1), ~b, 6 & i


def p_unary(x):
    return -x, +x, abs(x)


def p_matmul(x, y):
    return x @ y.T, x.matmul(y.t()), torch.mm(x, y.mT), torch.einsum("ij,kj->ik", x, y)


def p_inplace_chain(x):
    y = x.clone()
    y += 1
    y *= 2
    y.sub_(0.5).div_(3).clamp_(-1, 1)
    y -= x
    y /= 2
    y **= 2
    return y


def p_mutates_input(x):
    x.add_(1)
    y = x * 2
    x.mul_(3)
    return y


def p_mutates_view_of_input(x):
    row = x[0]
    row.fill_(7.0)
    x.t()[1] = 3
    return x.sum()


def p_returns_input(x, y):
    x += y
    return x, x.add_(1) is x, y


def p_index(x):
    return (
        x[0], x[-1], x[1:3], x[:, 0], x[..., 1], x[None], x[:, None, 1:], x[::2], x[[0, 2]],
        x[torch.tensor([1, 0])], x[:, [0, 1]], x[(0, 1)],
    )  # fmt: skip


def p_index_set(x):
    y = x.clone()
    y[0] = 1.0
    y[1:3, 0] = x[0, 0]
    y[:, 1] += 2
    y[y > 0.5] = 0.25
    y[[0, 2]] = 9
    y[..., -1] = torch.arange(y.shape[0]).to(y.dtype)
    return y


def p_views(x):
    y = x.view(-1)
    z = y.reshape(x.shape).transpose(0, 1).contiguous()
    return z.unsqueeze(0).squeeze(), z.permute(1, 0), z.flatten(), x.expand(2, *x.shape), y


def p_view_mutation(x):
    base = torch.zeros_like(x)
    base.view(-1)[::2] = 1
    base[0].copy_(x[0])
    return base


def p_shapes(x):
    b, c = x.shape
    assert x.dim() == 2 and len(x) == b
    return x.view(c, b), x.size(), x.size(0), x.stride(), x.numel(), x.ndim, x.shape[-1]


def p_meta_facts(x):
    return (
        x.dtype, x.device, x.is_cuda, x.requires_grad, x.is_leaf, x.layout, x.is_contiguous(),
        x.element_size(), x.is_floating_point(), torch.is_tensor(x), torch.is_tensor(3), x.grad_fn,
        torch.overrides.is_tensor_like(x), torch.overrides.is_tensor_like(3.0),
        x.get_device(), x.itemsize, torch.numel(x), isinstance(x, torch.Tensor), x.grad,
    )  # fmt: skip


def p_branch_on_shape(x):
    if x.shape[0] > 2 and x.dtype is torch.float32 and not x.requires_grad:
        return x + 1
    return x - 1


def p_factories(x):
    a = torch.arange(4)
    z = torch.zeros(2, 3) + torch.ones(3)
    return (
        a, z, torch.full((2,), 1.5), torch.eye(3), torch.linspace(0, 1, 5), torch.zeros_like(x),
        x.new_zeros(3), x.new_full((2, 2), 4), torch.tensor([1, 2, 3]), torch.tensor(2.5),
        torch.tensor([[1.0, 2], [3, 4]]), torch.ones(2, dtype=torch.int64, device="cpu"),
        torch.empty(3).fill_(1), torch.ones(x.shape), torch.as_tensor(x) is x,
        torch.scalar_tensor(3),
    )  # fmt: skip


def p_random(x):
    a = torch.rand(3)
    b = torch.randn_like(x)
    c = F.dropout(x, 0.3, True)
    d = torch.bernoulli(torch.full((4,), 0.5))
    torch.rand(2)
    e = x.clone().normal_()
    return (
        a,
        b,
        c,
        d,
        e,
        torch.randint(0, 9, (3,)),
        torch.randperm(5),
        torch.multinomial(x.abs(), 2),
    )


def p_multi_results(x):
    v, i = torch.max(x, dim=1)
    m = x.min(0)
    s = x.sort()
    t = torch.topk(x, 2)
    return v, i, m.values, m.indices, s[0], t.values, x.aminmax(), x.chunk(2), x.split(1)[0]


def p_unpack(x):
    a, *rest = x
    for row in rest:
        a = a + row
    first, second = x.unbind(1)[:2]
    return a, first * second, [r.sum() for r in x]


def p_cat(xs):
    return torch.cat(xs), torch.stack(xs, 1), torch.cat([x * 2 for x in xs], dim=1)


def p_promotion(x):
    i = torch.arange(3)
    return (
        i + 1.5,
        i / 2,
        i * True,
        x.half() + x,
        x.double() + 1,
        (i > 1) + i,
        i + torch.tensor(1.5),
    )


def p_out(x):
    out = torch.empty_like(x)
    torch.add(x, 1, out=out)
    torch.mul(out, 2, out=out)
    return out


def p_where(x):
    return (
        torch.where(x > 0, x, 0.0),
        x.masked_fill(x < 0, -1),
        x.clamp(min=0),
        torch.maximum(x, -x),
    )


def p_reductions(x):
    return (
        x.mean(),
        x.std(0),
        x.var(1, keepdim=True),
        x.norm(),
        x.prod(0),
        x.argmax(1),
        x.any(),
        x.cumsum(1),
    )


def p_no_grad(x, w):
    with torch.no_grad():
        a = x * w
        off = torch.is_grad_enabled()
    b = x * w
    return a, b, off, torch.is_grad_enabled(), a.requires_grad, b.requires_grad


def p_nested_modes(x, w):
    with torch.no_grad():
        a = w * 2
        with torch.enable_grad():
            b = w * 3
            with torch.set_grad_enabled(False):
                c = w * 4
        d = w * 5
    return a, b, c, d, w * 6


@torch.no_grad()
def _decorated(x, w):
    return x * w


def p_decorated(x, w):
    return _decorated(x, w), x + w


def p_set_grad_call(x, w):
    torch.set_grad_enabled(False)
    a = x * w
    torch.set_grad_enabled(True)
    return a, x + w


def p_detach(x, w):
    y = (x * w).detach()
    z = w.data * 2
    return y, z, (w * 2).requires_grad, w.is_leaf


def p_functional(x):
    return (
        F.relu(x), F.gelu(x), F.softmax(x, dim=-1), F.log_softmax(x, 1),
        F.layer_norm(x, x.shape[1:]),
        F.silu(x), F.elu(x, 0.5), F.pad(x, (1, 1)), F.normalize(x), F.leaky_relu(x), F.softplus(x),
        torch.sigmoid(x), torch.tanh(x), torch.logsumexp(x, 1), F.one_hot(torch.tensor([0, 1]), 3),
    )  # fmt: skip


def p_losses(x, t):
    return (
        F.cross_entropy(x, t), F.nll_loss(F.log_softmax(x, 1), t), F.mse_loss(x, x * 2),
        F.binary_cross_entropy_with_logits(x, torch.sigmoid(x)), F.smooth_l1_loss(x, x + 1),
        F.kl_div(F.log_softmax(x, 1), F.softmax(x, 1), reduction="batchmean"), F.l1_loss(x, x + 2),
        F.cross_entropy(x, t, label_smoothing=0.1),
    )  # fmt: skip


def p_attention(q, k, v):
    scale = 1 / math.sqrt(q.size(-1))
    scores = (q @ k.transpose(-2, -1)) * scale
    mask = torch.tril(torch.ones(q.size(-2), q.size(-2))).bool()
    weights = F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    return weights @ v, F.scaled_dot_product_attention(q, k, v, is_causal=True)


def p_sdpa_dropout(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)


def p_embedding(ids, table):
    return F.embedding(ids, table), F.embedding(ids, table, padding_idx=0).sum(0), table[ids]


def p_embedding_max_norm(ids, table):
    return F.embedding(ids, table, max_norm=0.5)


def p_conv(x, w):
    return F.conv2d(x, w, padding=1), F.max_pool2d(F.conv2d(x, w), 2), F.adaptive_avg_pool2d(x, 1)


def p_channels_last(x, w):
    y = F.conv2d(x, w)
    return y, F.batch_norm(y, None, None, training=True), y * 2, y.contiguous(), y.flatten(1)


def p_batch_norm(x, mean, var):
    return F.batch_norm(x, mean, var, training=True, momentum=0.2)


def p_scatter(x):
    i = torch.tensor([[0, 1, 0]])
    y = torch.zeros(3, 3).scatter_(0, i, 1.0)
    y.index_add_(0, torch.tensor([0, 2]), torch.ones(2, 3))
    return y, x.gather(1, i), x.index_select(0, torch.tensor([1])), torch.take(x, torch.tensor([0]))


def p_complex(x):
    z = torch.complex(x, x * 2)
    return z.real, z.imag, z.abs(), z.conj() * z, torch.view_as_real(z), torch.fft.rfft(x)


def p_linalg(x):
    a = x @ x.T + 3 * torch.eye(x.shape[0])
    return torch.linalg.pinv(a), torch.linalg.det(a), torch.linalg.norm(a), a.diagonal(), a.trace()


def p_tensor_class_methods(x):
    return torch.Tensor.add(x, 1), torch.Tensor.sum(x, 0), torch.ops.aten.mul.Tensor(x, 2)


def p_dict_and_closure(x):
    def scale(t, by=2):
        return t * by

    parts = {"a": scale(x), "b": scale(x, by=3)}
    return sum(parts.values()), {k: v.mean() for k, v in parts.items()}, [*parts]


def p_dtype_constants(x):
    return x.to(torch.float64), x.to(dtype=torch.half), x.type(torch.int32), x.float() is x, x.to(x)


def p_finfo(x):
    big = torch.finfo(x.dtype).max
    return x.masked_fill(x > 0, -big), torch.iinfo(torch.int32).max, torch.get_default_dtype()


def p_device_objects(x):
    dev = torch.device("cpu")
    return torch.zeros(2, device=dev), x.to(dev) is x, x.cpu() is x, dev.type, torch.Size([1, 2])


def p_broadcast(x):
    return (
        torch.broadcast_shapes((3, 1), (1, 4)),
        torch.broadcast_tensors(x, x[:1]),
        torch.promote_types(torch.int32, torch.float16),
        torch.result_type(x, 1),
    )


def p_meshgrid(x):
    a, b = torch.meshgrid(torch.arange(3), torch.arange(2), indexing="ij")
    return a * b, torch.cartesian_prod(torch.arange(2), torch.arange(2)), torch.tensordot(x, x.T, 1)


def p_foreach(xs):
    torch._foreach_add_(xs, 1.0)
    return torch._foreach_mul(xs, 2.0)


def p_loop(x):
    for i in range(4):
        x = torch.tanh(x) + i
    return x


def p_python_types_as_dtypes(x):
    return torch.zeros(2, dtype=float), x.to(int), torch.ones(1, dtype=bool)


def p_named_tuple_attrs(x):
    r = torch.max(x, 0)
    s = torch.linalg.qr(x)
    return r.values + r.indices, s.Q.shape, s.R


def p_interpolate(x):
    return F.interpolate(x, scale_factor=2.0, mode="nearest"), F.interpolate(
        x, size=(4, 4), mode="bilinear"
    )


def p_unfold(x):
    return x.unfold(0, 2, 1), x.diff(), x.flip(0), x.roll(1, 0), x.repeat(2, 1), x.tile(2), x.tril()


def p_set_item_ellipsis(x):
    y = torch.zeros(2, *x.shape)
    y[0, ...] = x
    y[1][:, 0] = x[:, 1]
    return y


def p_data_update(x, w):
    y = w.detach().clone()
    y.mul_(0.9).add_(x, alpha=0.1)
    y.lerp_(x, 0.5)
    return y


def g(*shape, grad=False):
    return R(*shape, requires_grad=grad)


PROGRAMS = [
    (p_pointwise, lambda: (g(8, 64), g(8, 64, grad=True))),
    (p_reflected, lambda: (g(3, 4),)),
    (p_compare, lambda: (g(3, 4), g(3, 4))),
    (p_bits, lambda: (g(3, 4),)),
    (p_unary, lambda: (g(3, 4),)),
    (p_matmul, lambda: (g(3, 4), g(5, 4))),
    (p_inplace_chain, lambda: (g(3, 4),)),
    (p_mutates_input, lambda: (g(3, 4),)),
    (p_mutates_view_of_input, lambda: (g(3, 4),)),
    (p_returns_input, lambda: (g(3, 4), g(3, 4))),
    (p_index, lambda: (g(4, 5),)),
    (p_index_set, lambda: (g(4, 5),)),
    (p_views, lambda: (g(4, 5),)),
    (p_view_mutation, lambda: (g(4, 5),)),
    (p_shapes, lambda: (g(4, 5),)),
    (p_meta_facts, lambda: (g(4, 5),)),
    (p_branch_on_shape, lambda: (g(4, 5),)),
    (p_factories, lambda: (g(4, 5),)),
    (p_random, lambda: (g(4, 5),)),
    (p_multi_results, lambda: (g(4, 5),)),
    (p_unpack, lambda: (g(4, 3),)),
    (p_cat, lambda: ([g(2, 3), g(2, 3)],)),
    (p_promotion, lambda: (g(3),)),
    (p_out, lambda: (g(3),)),
    (p_where, lambda: (g(3, 4),)),
    (p_reductions, lambda: (g(3, 4),)),
    (p_no_grad, lambda: (g(3), g(3, grad=True))),
    (p_nested_modes, lambda: (g(3), g(3, grad=True))),
    (p_decorated, lambda: (g(3), g(3, grad=True))),
    (p_set_grad_call, lambda: (g(3), g(3, grad=True))),
    (p_detach, lambda: (g(3), g(3, grad=True))),
    (p_functional, lambda: (g(3, 4),)),
    (p_losses, lambda: (g(3, 4, grad=True), torch.tensor([0, 3, 1]))),
    (p_attention, lambda: (g(2, 5, 8), g(2, 5, 8), g(2, 5, 8))),
    (p_sdpa_dropout, lambda: (g(2, 2, 5, 8), g(2, 2, 5, 8), g(2, 2, 5, 8))),
    (p_embedding, lambda: (torch.tensor([1, 0, 4]), g(5, 3, grad=True))),
    (p_embedding_max_norm, lambda: (torch.tensor([1, 0, 4]), g(5, 3))),
    (p_conv, lambda: (g(2, 3, 8, 8), g(4, 3, 3, 3, grad=True))),
    (p_channels_last, lambda: (g(2, 3, 8, 8).to(memory_format=torch.channels_last), g(4, 3, 3, 3))),
    (p_batch_norm, lambda: (g(4, 3), torch.zeros(3), torch.ones(3))),
    (p_scatter, lambda: (g(3, 3),)),
    (p_complex, lambda: (g(3, 4),)),
    (p_linalg, lambda: (g(3, 3),)),
    (p_tensor_class_methods, lambda: (g(3, 3),)),
    (p_dict_and_closure, lambda: (g(3, 3),)),
    (p_dtype_constants, lambda: (g(3, 3),)),
    (p_finfo, lambda: (g(3, 3),)),
    (p_device_objects, lambda: (g(3, 3),)),
    (p_broadcast, lambda: (g(3, 4),)),
    (p_meshgrid, lambda: (g(3, 4),)),
    (p_foreach, lambda: ([g(3), g(4)],)),
    (p_loop, lambda: (g(3),)),
    (p_python_types_as_dtypes, lambda: (g(3),)),
    (p_named_tuple_attrs, lambda: (g(3, 3),)),
    (p_interpolate, lambda: (g(1, 2, 3, 3),)),
    (p_unfold, lambda: (g(3, 4),)),
    (p_set_item_ellipsis, lambda: (g(3, 4),)),
    (p_data_update, lambda: (g(3), g(3, grad=True))),
]


@pytest.mark.parametrize(("program", "arguments"), PROGRAMS, ids=[p.__name__ for p, _ in PROGRAMS])
def test_program(program, arguments):
    check(lambda: (program, arguments()))


@pytest.mark.skipif(not hasattr(torch, "foreach"), reason="new in torch 2.15")
@pytest.mark.parametrize("given", [{}, {"alpha": 2}], ids=["omitted", "given"])
@pytest.mark.parametrize("name", ["add", "add_", "sub", "sub_"])
def test_an_object_stands_for_an_omitted_argument_of_torch(name, given):
    def program(xs, ys):
        made = getattr(torch.foreach, name)(xs, ys, **given)
        return made, [x * 2 for x in xs]

    check(lambda: (program, ([g(3), g(4)], [g(3), g(4)])))
