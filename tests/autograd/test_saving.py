"""Writes between forward and backward are allowed exactly where eager allows them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitmagic

# Values that are made of x, and are read by a backward though the history of x leads not there.
PATHS = {
    "abs": lambda x: x.abs(),
    "square": lambda x: x * x,
    "exp": lambda x: x.exp(),
    "power": lambda x: x**3,
    "relu": lambda x: F.relu(x) * x,
    "view": lambda x: x.t().sin().t(),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "vmap": lambda x: torch.vmap(torch.sin)(x),
    "cast": lambda x: x.to(torch.bfloat16).exp().float(),
    "detached": lambda x: x.detach().exp(),
    "not needed": lambda x: x * 2,
}


def masked(value, x):
    return torch.where(value > 0.5, x * 3, x)


def filled(value, x):
    return x.clone().masked_fill_(value > 0.5, 2.0)


def indexed(value, x):
    w = x.clone()
    w[value > 0.5] = 1.0
    return w * 2


def scaled(value, x):
    return x * value.detach()


def rounded(value, x):
    return x * value.round().bool()


def needed(value, x):  # eager's backward reads what eager saved, and raises
    return x * value


USES = (masked, filled, indexed, scaled, rounded, needed)


def backward_after_a_write(program, write, is_parameter):
    torch.manual_seed(0)
    x = torch.randn(4, 3, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    given = x if is_parameter else x * 1
    result = program(given)
    if write == "none":
        pass
    elif write == "optimizer":
        x.grad = torch.ones_like(x)
        optimizer.step()
        x.grad = None
    else:
        given.detach().add_(1)
    try:
        return torch.autograd.grad(result.sum(), x)[0]
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)


@pytest.mark.parametrize("write", ["in place", "optimizer"])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("path", PATHS)
def test_inputs_are_held_where_eager_holds_them(path, use, write):
    make = PATHS[path]

    def program(x):
        return use(make(x), x)

    for is_parameter in (True, False) if write == "in place" else (True,):
        expected = backward_after_a_write(program, write, is_parameter)
        result = backward_after_a_write(
            jitmagic.jit(program, backend="aot_eager"), write, is_parameter
        )
        if result is True:  # as eager raises it
            assert expected is True
        else:  # that eager goes on or not: what was saved is as it was
            torch.testing.assert_close(
                result, backward_after_a_write(program, "none", is_parameter)
            )


# Of a value that the first result's formula keeps; the second's keeps what is computed of it.
KEEPERS = {
    "glu": lambda v: F.glu(v, 1),
    "square": lambda v: v * v,
    "exp": lambda v: v.exp() * v,
    "norm": lambda v: F.layer_norm(v, v.shape[-1:]),
    "view": lambda v: (v.t() * v.t()).t(),
}


@pytest.mark.parametrize("asked", ["first", "second", "both"])
@pytest.mark.parametrize("is_result", [True, False], ids=["a result", "an input"])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("keeper", KEEPERS)
def test_held_for_the_results_whose_gradient_needs_it(keeper, use, is_result, asked):
    keep = KEEPERS[keeper]

    def program(x, value):
        value = value * 2 if is_result else value
        return value, keep(value), use(value, x)

    def gradients(function, writes):
        torch.manual_seed(0)
        x, value = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
        value = value.requires_grad_() * 1
        written, first, second = function(x, value)
        if writes:
            written.detach().fill_(3.0)
        loss = {"first": first, "second": second, "both": first.sum() + second.sum()}[asked].sum()
        try:
            return torch.autograd.grad(loss, (x, value), allow_unused=True)
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)

    expected = gradients(program, True)
    result = gradients(jitmagic.jit(program, backend="aot_eager"), True)
    if result is True:
        assert expected is True
    else:
        torch.testing.assert_close(result, gradients(program, False))
