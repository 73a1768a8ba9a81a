"""Calls of torch with a Python float that is not an operand: a slope, a probability, a margin, an
epsilon; each as a program of a tensor (4 x 8) and the number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, hessian, jvp, vmap

from jitmagic.errors import JitmagicWarning

__all__ = ["ANY", "CALLS", "POSITIVE", "PROBABILITIES", "joint", "outcome", "outcomes"]

Program = Callable[[Tensor, float], Any]

PROBABILITIES = (0.1, 0.25, 0.3, 0.45, 0.5, 0.62, 0.7, 0.81, 0.9, 0.33)
POSITIVE = (0.5, 0.25, 1.75, 2.5, 0.125, 3.25, 0.3, 0.7, 1.5, 0.9)
ANY = (0.5, -0.25, 1.75, -2.5, 0.125, 3.25, -0.3, 0.7, 1.5, -0.9)


def _classes(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device)


def _attention(x: Tensor, **options: Any) -> Tensor:
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q * 2, q * 3, **options)


def _statistics(x: Tensor, s: float) -> tuple[Tensor, ...]:
    mean, var = x.new_zeros(8), x.new_ones(8)
    return F.batch_norm(x, mean, var, training=True, momentum=s), mean, var


def _fresh(x: Tensor) -> Tensor:
    return torch.empty(7, device=x.device)


_OF_PROBABILITIES: dict[str, Program] = {
    "dropout": lambda x, p: F.dropout(x, p),
    "dropout in place": lambda x, p: F.dropout(x * 1, p, inplace=True),
    "dropout of channels": lambda x, p: F.dropout1d(x, p),
    "dropout module": lambda x, p: nn.Dropout(p)(x),
    "label smoothing": lambda x, p: F.cross_entropy(x, _classes(x), label_smoothing=p),
    "smoothed and weighted": lambda x, p: F.cross_entropy(
        x, _classes(x), x.detach()[0].abs(), reduction="sum", label_smoothing=p
    ),
    "smoothed probabilities": lambda x, p: F.cross_entropy(
        x, x.detach().softmax(-1), label_smoothing=p
    ),
    "momentum": _statistics,
    "cosine embedding": lambda x, p: F.cosine_embedding_loss(
        x, x * 2, x.detach()[:, 0].sign(), margin=p
    ),
    "quantile": lambda x, p: x.quantile(p, dim=1),
    "nanquantile": lambda x, p: torch.nanquantile(x, p),
    "dropout under vmap": lambda x, p: vmap(lambda y: F.dropout(y, p), randomness="different")(x),
    "logit": lambda x, p: torch.logit(x.sigmoid(), p / 3),
    "dropout of attention": lambda x, p: _attention(x, dropout_p=p),
    "bernoulli in place": lambda x, p: _fresh(x).bernoulli_(p) + x[0, 0],
    "geometric": lambda x, p: _fresh(x).geometric_(p) + x[0, 0],
}
_OF_POSITIVE: dict[str, Program] = {
    "celu": F.celu,
    "softplus": F.softplus,
    "softplus, threshold": lambda x, s: F.softplus(x, 2.0, s),
    "hardtanh": lambda x, s: F.hardtanh(x, -s, s),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "rrelu": lambda x, s: F.rrelu(x, s / 4, 2.0, training=False),
    "rrelu drawn": lambda x, s: F.rrelu(x, s / 4, 2.0, training=True),
    "huber": lambda x, s: F.huber_loss(x, x.detach() * 2, delta=s),
    "smooth l1": lambda x, s: F.smooth_l1_loss(x, x.detach() * 2, reduction="none", beta=s),
    "triplet": lambda x, s: F.triplet_margin_loss(x, x * 2, x * 3, margin=s, eps=s / 100),
    "cosine similarity": lambda x, s: F.cosine_similarity(x, x * 2 + 1, eps=s),
    "pairwise distance": lambda x, s: F.pairwise_distance(x, x * 2 + 1, eps=s),
    "layer norm": lambda x, s: F.layer_norm(x, (8,), eps=s),
    "rms norm": lambda x, s: F.rms_norm(x, (8,), eps=s),
    "group norm": lambda x, s: F.group_norm(x, 2, eps=s),
    "instance norm": lambda x, s: F.instance_norm(x[None], eps=s),
    "batch norm": lambda x, s: F.batch_norm(x, None, None, training=True, eps=s),
    "batch norm, eval": lambda x, s: F.batch_norm(x, x.new_zeros(8), x.new_ones(8), eps=s),
    "response norm": lambda x, s: F.local_response_norm(x[None], 3, alpha=s, k=s + 1),
    "scale of attention": lambda x, s: _attention(x, scale=s),
    "scale beside a mask": lambda x, s: _attention(x, attn_mask=x.new_zeros(4, 4), scale=s),
    "addbmm": lambda x, s: torch.addbmm(x[:, :4], x[None], x.t()[None], beta=s, alpha=s + 1),
    "addr": lambda x, s: torch.addr(x, x[:, 0], x[0], beta=s, alpha=s + 1),
    "linspace": lambda x, s: x[:, :3] * torch.linspace(s, s + 1, 3, device=x.device),
    "normal": lambda x, s: _fresh(x).normal_(s, s + 1) + x[0, 0],
    "normal of numbers": lambda x, s: torch.normal(s, s + 1, (7,), device=x.device) + x[0, 0],
    "uniform": lambda x, s: _fresh(x).uniform_(-0.5, s) + x[0, 0],
    "exponential": lambda x, s: _fresh(x).exponential_(s) + x[0, 0],
    "cauchy": lambda x, s: _fresh(x).cauchy_(0.5, s) + x[0, 0],
    "xlogy": lambda x, s: torch.xlogy(x, s),
    "distances": lambda x, s: torch.isclose(x, x * 1.1, rtol=s) * x,
}
_OF_ANY: dict[str, Program] = {
    "leaky relu": F.leaky_relu,
    "leaky relu module": lambda x, s: nn.LeakyReLU(s)(x),
    "elu": F.elu,
    "threshold": lambda x, s: F.threshold(x, s, 0.5),
    "value of threshold": lambda x, s: F.threshold(x, 0.1, s),
    "margin ranking": lambda x, s: F.margin_ranking_loss(x, x * 2, x.detach().sign(), margin=s),
    "hinge embedding": lambda x, s: F.hinge_embedding_loss(x, x.detach().sign(), margin=s),
    "pad": lambda x, s: F.pad(x, (1, 1), value=s),
    "index fill": lambda x, s: x.index_fill(1, _classes(x)[::2], s),
    "index add": lambda x, s: x.index_add(0, _classes(x)[:1], x[:1], alpha=s),
    "scatter": lambda x, s: x.scatter(1, _classes(x)[:, None], s),
    "nan to num": lambda x, s: torch.nan_to_num(x / x.detach().round(), s, s + 1, -s),
    "rsub": lambda x, s: torch.rsub(x, x * 2, alpha=s),
    "copysign": lambda x, s: torch.copysign(x, s),
}
_IN_TRANSFORMS: dict[str, Program] = {
    "vmap": lambda x, s: vmap(lambda row: F.elu(row, s) + F.layer_norm(row, (8,), eps=s) * s)(x),
    "vmap of grad": lambda x, s: vmap(grad(lambda row: F.softplus(row, s).sum()))(x),
    "hessian": lambda x, s: hessian(lambda row: F.elu(row, s).square().sum())(x[0]),
    "jvp": lambda x, s: jvp(lambda y: F.huber_loss(y, y.sin(), delta=s), (x,), (x * 2,))[1],
}
CALLS: dict[str, tuple[Program, tuple[float, ...]]] = {
    **{name: (program, PROBABILITIES) for name, program in _OF_PROBABILITIES.items()},
    **{name: (program, POSITIVE) for name, program in _OF_POSITIVE.items()},
    **{name: (program, POSITIVE) for name, program in _IN_TRANSFORMS.items()},
    **{name: (program, ANY) for name, program in _OF_ANY.items()},
}


def outcome(program: Program, x: Tensor, number: float, needs_grad: bool = True) -> Any:
    """Return results, gradient and the next random draw, from one seed; or the error."""
    torch.manual_seed(0)
    x = x.detach().clone().requires_grad_(needs_grad)
    try:
        made = program(x, number)
        results = made if isinstance(made, tuple) else (made,)
        ends = [result.float().sum() for result in results if result.requires_grad]
        if ends:
            (torch.stack(ends).sum() * 1.5).backward()
    except Exception as error:  # the program's own
        return type(error), str(error)
    return *(result.detach() for result in results), x.grad, torch.rand(3, device=x.device)


def joint(programs: Sequence[Program]) -> Callable[..., tuple[Any, ...]]:
    """Join programs of a tensor and a number each into one function, for a single compile."""
    places = range(len(programs))
    given = ", ".join(f"x{n}, s{n}" for n in places)
    calls = ", ".join(f"program{n}(x{n}, s{n})" for n in places)
    space: dict[str, Any] = {f"program{n}": program for n, program in enumerate(programs)}
    exec(f"def together({given}):\n    return {calls},\n", space)
    return space["together"]


def outcomes(
    together: Callable[..., tuple[Any, ...]], x: Tensor, numbers: Sequence[float]
) -> list[Any]:
    """Return the `outcome` of each program of a joint function, on its own copy of `x`; none
    raises.
    """
    torch.manual_seed(0)
    inputs = [x.detach().clone().requires_grad_() for _ in numbers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's: a target of another size
        warnings.simplefilter("error", JitmagicWarning)
        made = together(*(part for pair in zip(inputs, numbers, strict=True) for part in pair))
    parts = [part if isinstance(part, tuple) else (part,) for part in made]
    ends = [t.float().sum() for part in parts for t in part if t.requires_grad]
    (torch.stack(ends).sum() * 1.5).backward()
    each = [
        (*(t.detach() for t in part), own.grad) for part, own in zip(parts, inputs, strict=True)
    ]
    return [*each, torch.rand(3, device=x.device)]
