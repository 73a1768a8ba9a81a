"""What the fuzzer found wrong about errors, lists, autocast and the ways to go backward.

As in test_finds.py: a find is named for what was wrong and behaves as eager does ever since.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .finds import Finds

FINDS = Finds()
find = FINDS.find
test_behaves_as_eager = FINDS.as_test()


# -- errors ----------------------------------------------------------------------------------------


@find("torch.ones(1), torch.full((3, 1), 2.0)")
@find("torch.ones(1), torch.full((3, 1), 2.0)", tier="aten")
def written_again_when_the_graph_had_raised(x, y):
    y.add_(x)
    F.nll_loss(y, torch.arange(3) % 3 - 1, ignore_index=-1)
    y.add_(x)
    return y


@find("torch.ones(3), torch.tensor([5]), []")
@find("torch.ones(3), torch.tensor([5]), []", tier="frames")
def list_grows_before_an_index_is_out_of_range(x, i, items):
    x.mul_(2)
    items.append(x)
    return x.index_select(0, i)


@find("torch.rand(3), torch.tensor([5])")
def random_numbers_written_before_an_error(x, i):
    x.uniform_()
    return x[i]


@find("torch.ones(3, 3)")
def roll_of_no_such_dimension(x):
    y = x.roll(1, 2)
    return x


@find("torch.ones(3, 3)")
def roll_by_more_than_its_dimensions(x):
    return x.roll((1, 2), 0)


@find("torch.ones(2, 2)")
def batched_product_of_plain_matrices(x):
    y = torch.bmm(x, x)
    return x


@find("torch.ones(2, 2)")
def matrix_plus_a_product_that_is_a_vector(x):
    y = torch.addmv(x, x, x[0])
    return x


@find("torch.ones(1, 2, 2), torch.ones(2, 2)")
def sum_of_too_many_dimensions_that_nobody_reads(a, x):
    y = torch.addmm(a, x, x)
    return x


@find("torch.ones(5), torch.ones(2, 2)")
@find("torch.ones(1, 1, 2), torch.ones(2, 2)")
def product_plus_what_does_not_fit(a, x):
    y = torch.addmm(a, x, x)
    return y


# -- numbers ---------------------------------------------------------------------------------------


@find("torch.arange(9, dtype=torch.int32).view(3, 3)")
def fractions_that_kernels_of_integers_drop(x):
    y = torch.baddbmm(x[None], x[None], x[None], beta=1.5, alpha=2.5)
    return torch.addmv(x[0], x, x[1], beta=2, alpha=0.5), y


# -- lists -----------------------------------------------------------------------------------------


@find("[1]", "[]", "[3, 4]")
def list_extended_by_what_reads_it(items):
    items.extend(len(items) for _ in range(3))
    items += (items[-1] * 2 for _ in range(2))
    return items


@find("[1]", "[]")
def list_keeps_what_came_before_an_error(items):
    try:
        items.extend(6 // n for n in (2, 1, 0))
    except ZeroDivisionError:
        items.append("error")
    return items


# -- kernels ---------------------------------------------------------------------------------------


@find("torch.arange(289).view(17, 17) % 4")
@find("torch.arange(289).view(17, 17) % 4", tier="numba")
def kept_row_with_lanes_along_an_outer_axis(i):
    x = F.embedding(i, torch.linspace(-1, 1, 12).view(4, 3))
    return F.layer_norm(x, x.shape[1:])


@find("torch.linspace(0, 1, 320).view(5, 64)")
def kept_row_of_what_is_alike_in_all_lanes(x):
    y = torch.linspace(-1, 1, 3).exp()[:, None].expand(3, 64)
    z = x[:, None] * y.sin()
    return (z - z.mean((1, 2), True)) / z.var((1, 2), keepdim=True), y.sin() * 2


@find("tensor((2, 4, 4), seed=16)")
def bits_of_angles_written_in_place(x):
    x.atan2_(x)
    return x.view(torch.int16)


@find("tensor((64, 9), torch.float16, grad=True)")
def loss_that_overflows_in_eager_alone(x):
    return F.cross_entropy(x * 4000 + 4000, torch.zeros(64, dtype=torch.int64))


@find("tensor((2, 2), grad=True)", backward="between results", falls_back=True)
def sum_written_to_after_results_that_depend_on_one_another(x):
    total = x[:1].sum()
    loss = x.sum()
    norm = loss.norm()
    total.add_(0)
    return norm, loss
