"""Traits of torch functions by name that the meta run does not show: random draws, hidden writes.

Input: a call's target and arguments. Output: whether it draws random numbers (it then stays in the
graph and draws on every call); which arguments only the real kernel writes (the running statistics
of the normalisations); and whether it is a factory, which reads no numbers.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.fx import Node

from ...compat.operators import OpOverload
from ..propagate import Target, target_name
from .foreign import is_random_op

__all__ = ["draws", "makes_new", "statistics_written"]

_ALWAYS = frozenset(
    """rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial
    poisson binomial gumbel_softmax fractional_max_pool2d fractional_max_pool3d
    fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices normal_ uniform_
    bernoulli_ random_ exponential_ geometric_ log_normal_ cauchy_ _sample_dirichlet _standard_gamma
    native_dropout svd_lowrank pca_lowrank lobpcg trunc_normal_ xavier_uniform_ xavier_normal_
    kaiming_uniform_ kaiming_normal_ orthogonal_ sparse_""".split()
)
# Calls that draw unless a flag or a probability turns that off. They always count as drawing, which
# costs nothing.
_MAYBE = frozenset(
    """dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout
    feature_dropout_ feature_alpha_dropout feature_alpha_dropout_ rrelu rrelu_ rrelu_with_noise
    scaled_dot_product_attention multi_head_attention_forward lstm gru rnn_tanh rnn_relu""".split()
)
_SWITCHES: dict[str, tuple[str, int]] = {
    "scaled_dot_product_attention": ("dropout_p", 4),
    "dropout": ("training", 2),
    "dropout_": ("training", 2),
    "dropout1d": ("training", 2),
    "dropout2d": ("training", 2),
    "dropout3d": ("training", 2),
    "alpha_dropout": ("training", 2),
    "feature_alpha_dropout": ("training", 2),
    "multi_head_attention_forward": ("training", 15),
}
_OFF_BY_DEFAULT = frozenset(
    {"scaled_dot_product_attention", "alpha_dropout", "feature_alpha_dropout"}
)


def draws(target: Target, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Return whether the call may draw random numbers."""
    name = target_name(target)
    if name in _ALWAYS:
        return True
    if name not in _MAYBE:
        return is_random_op(target)
    switch = _SWITCHES.get(name)
    if switch is None:
        return True
    keyword, position = switch
    given = kwargs.get(keyword, args[position] if position < len(args) else None)
    if given is None:
        return name not in _OFF_BY_DEFAULT
    return bool(given) if isinstance(given, int | float) else True


def makes_new(target: Target) -> bool:
    """Return whether it is a factory (zeros, new_full, ones_like), which reads and draws no
    numbers.
    """
    return _makes_new(target_name(target))


@cache
def _makes_new(name: str) -> bool:
    """Decide by the schemas: a factory takes `pin_memory`, and reads at most `self`, the tensor
    that its result is like; private operators (_to_copy) may read more of it.
    """
    packet = None if name.startswith("_") else getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, each) for each in packet.overloads()] if packet else []
    functional = [op for op in overloads if not any(a.is_out for a in op._schema.arguments)]
    return bool(functional) and all(map(_is_factory, functional))


def _is_factory(op: OpOverload) -> bool:
    arguments = op._schema.arguments
    takes_options = any(a.name == "pin_memory" and a.kwarg_only for a in arguments)
    read = [a.name for a in arguments if "Tensor" in str(a.type)]
    return takes_options and read in ([], ["self"]) and not is_random_op(op)


# Where running_mean and running_var are, by (keyword, position); the training flag is at 5 in all.
_FUNCTIONAL = (("running_mean", 1), ("running_var", 2))
_NATIVE = (("running_mean", 3), ("running_var", 4))
_FLAGS = {"batch_norm": ("training", False), "instance_norm": ("use_input_stats", True)}


def statistics_written(
    target: Target, args: tuple[object, ...], kwargs: dict[str, object], written: tuple[Node, ...]
) -> tuple[Node, ...]:
    """Return running statistics that a normalisation updates and that are not in `written`."""
    name = target_name(target).removeprefix("native_")
    if name not in _FLAGS:
        return ()
    flag, default = _FLAGS[name]
    if not kwargs.get(flag, args[5] if len(args) > 5 else default):
        return ()
    python = getattr(target, "__module__", "") == "torch.nn.functional"
    found = [
        kwargs.get(keyword, args[at] if at < len(args) else None)
        for keyword, at in (_FUNCTIONAL if python else _NATIVE)
    ]
    return tuple(node for node in found if isinstance(node, Node) and node not in written)
