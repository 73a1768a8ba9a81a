"""What torch offers besides operators on tensors: bodies of control flow, attention with chosen
kernels, checkpoints, hooks, transforms.

The answer of a training case has the loss and the gradients.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from .case import Tag, case
from .tensor_programs import called, heads, rows, square, trained, vector

LIBRARY = "torch"


# -- control flow ----------------------------------------------------------------------------------


@called(LIBRARY, "cond", vector)
def _cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,)) * 3


@called(LIBRARY, "cond over a closure", vector, square)
def _cond_of_closure(x: Tensor, w: Tensor) -> Tensor:
    return torch.cond(x.mean() > 0, lambda x: x @ w, lambda x: (x * 2) @ w.T, (x,))


@called(LIBRARY, "cond in cond", vector)
def _nested_cond(x: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return torch.cond(x[0] > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.exp(), (x,))


@called(LIBRARY, "cond with several results", vector)
def _cond_of_pairs(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x - 1, x + 1), lambda x: (x * 2, x.sin()), (x,))


@trained(LIBRARY, "cond, trained", vector, square)
def _trained_cond(x: Tensor, w: Tensor) -> Tensor:
    made = torch.cond(x.sum() > 0, lambda x, w: (x @ w).sin(), lambda x, w: (x @ w.T).exp(), (x, w))
    return made.square().sum()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self.first, self.second, (x,)).relu()


@case(LIBRARY, "cond over layers of a module")
def _module_cond(tag: Tag) -> Any:
    model = tag(Branches())
    return [model(rows()).detach() for _ in range(2)]


@called(LIBRARY, "while_loop", vector)
def _while_loop(x: Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + i), (start, x))


@called(LIBRARY, "while_loop until data is large", vector)
def _until_large(x: Tensor) -> Any:
    return while_loop(lambda x: x.abs().sum() < 100, lambda x: (x * 2 + 0.1,), (x,))


@called(LIBRARY, "scan", rows)
def _scan(x: Tensor) -> Any:
    return scan(lambda carry, x: (carry + x, carry * x), torch.zeros(8), x, dim=0)


@trained(LIBRARY, "scan, trained", rows, square)
def _trained_scan(x: Tensor, w: Tensor) -> Tensor:
    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.tanh(carry @ w + x)
        return made, made * 2

    _, states = scan(step, torch.zeros(8), x, dim=0)
    return states.square().sum()


@called(LIBRARY, "map", rows, vector)
def _map(x: Tensor, y: Tensor) -> Tensor:
    return torch_map(lambda x, y: x.sin() + y, x, y)


@trained(LIBRARY, "map, trained", rows, vector)
def _trained_map(x: Tensor, y: Tensor) -> Tensor:
    return torch_map(lambda x, y: (x * y).exp(), x, y).sum()


@called(LIBRARY, "associative_scan", rows)
def _associative_scan(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic")


# -- attention -------------------------------------------------------------------------------------


@called(LIBRARY, "flex_attention, bias", heads, heads, heads)
def _flex_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (j - i) * 0.1 * (h + 1))


@called(LIBRARY, "flex_attention, block mask", heads, heads, heads)
def _flex_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")
    return flex_attention(q, k, v, block_mask=mask)


@called(LIBRARY, "sdpa_kernel", heads, heads)
def _sdpa_kernel(q: Tensor, k: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        first = F.scaled_dot_product_attention(q, k, q)
    return first + F.scaled_dot_product_attention(q, q, k)


@trained(LIBRARY, "sdpa_kernel with an order, trained", heads, heads)
def _ordered_kernels(q: Tensor, k: Tensor) -> Tensor:
    order = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    with sdpa_kernel(order, set_priority=True):
        return F.scaled_dot_product_attention(q, k, q, is_causal=True).square().sum()


# -- checkpoints and hooks -------------------------------------------------------------------------


def _block(x: Tensor, w: Tensor) -> Tensor:
    return torch.sigmoid((x @ w).sin() @ w) * x


@trained(LIBRARY, "checkpoint", rows, square)
def _checkpoint(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(_block, x, w, use_reentrant=False).square().sum()


@trained(LIBRARY, "checkpoint, reentrant", rows, square)
def _reentrant(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(_block, x, w, use_reentrant=True).square().sum()


def _saves_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_product = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


@trained(LIBRARY, "checkpoint with a policy", rows, square)
def _policy(x: Tensor, w: Tensor) -> Tensor:
    contexts = functools.partial(create_selective_checkpoint_contexts, _saves_products)
    return checkpoint(_block, x, w, use_reentrant=False, context_fn=contexts).square().sum()


@trained(LIBRARY, "checkpoint with a list of operators", rows, square)
def _listed(x: Tensor, w: Tensor) -> Tensor:
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return checkpoint(_block, x, w, use_reentrant=False, context_fn=contexts).square().sum()


@trained(LIBRARY, "saved_tensors_hooks", rows, square)
def _saved_hooks(x: Tensor, w: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.to(torch.float64), lambda t: t.to(torch.float32)):
        return _block(x, w).square().sum()


@trained(LIBRARY, "save_on_cpu", rows, square)
def _save_on_cpu(x: Tensor, w: Tensor) -> Tensor:
    with save_on_cpu():
        return _block(x, w).square().sum()


@trained(LIBRARY, "register_hook on an intermediate tensor", rows, square)
def _tensor_hook(x: Tensor, w: Tensor) -> Tensor:
    hidden = x @ w
    hidden.register_hook(lambda gradient: gradient * 0.5)
    return hidden.sin().sum()


@case(LIBRARY, "forward and backward hooks of a module")
def _module_hooks(tag: Tag) -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    model[1].register_forward_hook(lambda module, args, made: made * 2)
    model[0].register_full_backward_hook(lambda module, given, made: (given[0],))
    tagged = tag(model)
    tagged(rows().requires_grad_()).square().sum().backward()
    return [p.grad for p in model.parameters()]


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 2)


@trained(LIBRARY, "autograd.Function", rows, square)
def _function(x: Tensor, w: Tensor) -> Tensor:
    return (Clamp.apply(x @ w) * x).sum()


# -- transforms ------------------------------------------------------------------------------------


def _loss(w: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(x @ w).square().sum()


@called(LIBRARY, "vmap of grad", square, rows)
def _per_sample(w: Tensor, x: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(_loss), in_dims=(None, 0))(w, x)


@called(LIBRARY, "jvp", square, square)
def _jvp(w: Tensor, v: Tensor) -> Any:
    return torch.func.jvp(torch.sin, (w,), (v,))


@called(LIBRARY, "vjp", square, rows)
def _vjp(w: Tensor, x: Tensor) -> Any:
    made, pull = torch.func.vjp(lambda w: x @ w, w)
    return made, *pull(torch.ones_like(made))


@called(LIBRARY, "jacfwd and jacrev", vector)
def _jacobians(x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        return x.sin() * x.sum()

    return torch.func.jacfwd(function)(x), torch.func.jacrev(function)(x)


@called(LIBRARY, "hessian", vector)
def _hessian(x: Tensor) -> Tensor:
    return torch.func.hessian(lambda x: (x**3).sum() * x.prod())(x)


@called(LIBRARY, "linearize", vector, vector)
def _linearize(x: Tensor, v: Tensor) -> Any:
    made, function = torch.func.linearize(lambda x: x.sin() * 2, x)
    return made, function(v)


@case(LIBRARY, "functional_call in an ensemble")
def _ensemble(tag: Tag) -> Any:
    models = [nn.Linear(8, 3) for _ in range(3)]
    params, _ = torch.func.stack_module_state(models)
    base = nn.Linear(8, 3).to("meta")

    @tag
    def run(params: Any, x: Tensor) -> Tensor:
        call = torch.func.vmap(
            lambda p, x: torch.func.functional_call(base, p, (x,)), in_dims=(0, None)
        )
        return call(params, x)

    return run(params, rows()).detach()


@case(LIBRARY, "vmap around a compiled function")
def _vmap_around(tag: Tag) -> Any:
    tagged = tag(lambda x: x.sin() * x.sum())
    return torch.func.vmap(tagged)(rows())


@case(LIBRARY, "grad around a compiled function")
def _grad_around(tag: Tag) -> Any:
    tagged = tag(lambda w, x: torch.tanh(x @ w).square().sum())
    return torch.func.grad(tagged)(square(), rows())


@case(LIBRARY, "vmap of grad around a compiled function")
def _per_sample_around(tag: Tag) -> Any:
    return torch.func.vmap(torch.func.grad(tag(_loss)), in_dims=(None, 0))(square(), rows())


@case(LIBRARY, "jvp around a compiled function")
def _jvp_around(tag: Tag) -> Any:
    tagged = tag(lambda x: x.sin() * x.sum())
    return torch.func.jvp(tagged, (square(),), (square(),))


@called(LIBRARY, "forward_ad", square, square)
def _forward_ad(w: Tensor, v: Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(w, v)
        made = torch.autograd.forward_ad.unpack_dual(torch.tanh(dual @ w).sum(0))
        return made.primal, made.tangent
