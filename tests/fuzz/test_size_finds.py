"""What the fuzzer found with sizes that change and sizes that data decide (`--sizes`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .finds import Finds

FINDS = Finds()
test_behaves_as_eager = FINDS.as_test()
find = FINDS.find


@find("tensor((1, 3))", "tensor((1, 4))", "tensor((1, 5))", tier="sizes")
def out_that_is_resized(x):
    made = torch.empty(0)
    torch.mul(x, 2, out=made)
    return made, made.shape, torch.zeros(made.shape[1])


@find("tensor((1, 3))", "tensor((1, 4))", "tensor((2, 5))", tier="sizes")
def views_in_place(x):
    made = x.clone()
    made.swapaxes_(0, 1).unsqueeze_(0)
    return made * 2, made.shape


@find("tensor((3, 1)), tensor((3, 16))", "tensor((3, 4)), tensor((3, 4))")
def loss_of_targets_that_are_larger(x, y):
    F.soft_margin_loss(x, y, reduction="none")
    return x + 1


@find("tensor((6, 5))", "tensor((6, 7))", "tensor((9, 4))", tier="sizes")
def sizes_over_negative_numbers(x):
    n = x.shape[1]
    return torch.arange(n, 0, -1) + x, n // -3, n % -3, torch.arange(2 * n, 1, -2)


@find("tensor((5,))", "tensor((7,))")
def draws_into_memory_before_a_size_of_data(x):
    made = torch.empty(x.shape).normal_(0, 2)
    drawn = torch.rand(x.shape)
    return made, drawn.masked_select(drawn > 0.5)


@find("tensor((2, 5, 3))", "tensor((4, 2, 3))", "tensor((3, 5, 7))", tier="sizes")
def row_over_row_behind_a_size_of_data(x):
    count = torch.unique(x.detach().reshape(-1).round(), return_counts=True)[1] * x.shape[0]
    x[0] = x[-1]
    return count, x[1:] * 2


@find(
    "tensor((8, 2), torch.bfloat16, grad=True)",
    "tensor((8, 5), torch.bfloat16, grad=True)",
    tier="sizes",
)
def loss_under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = F.cross_entropy(F.linear(x, x), torch.arange(x.shape[0]))
    return made, str(made.dtype)
