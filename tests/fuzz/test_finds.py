"""What the fuzzer found wrong, as small readable functions: each behaves as eager does ever since.

A find is named for what was wrong. Each runs eagerly and compiled and the fuzzer's own oracle
compares: values, strides, aliasing, mutations, random stream, exceptions, gradients.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .finds import Finds

FINDS = Finds()
find = FINDS.find
test_behaves_as_eager = FINDS.as_test()


# -- writes over what is still to be read ----------------------------------------------------------


@find("tensor((3, 3))")
def diagonal_plus_its_first_element(x):
    x.diagonal().add_(x[0, 0])
    return x + 1


@find("tensor((4, 4))")
def column_moved_onto_the_next(x):
    x[:, 1:] = x[:, :-1]
    return x + 1


@find("tensor((2, 2), layout='overlapping')", tier="loops")
def row_of_a_sliding_window(x):
    x[0] = 0
    return x


@find("tensor((4,))")
def shifted_add_raises(x):
    x[1:].add_(x[:-1])
    return x + 1


@find("tensor((3, 3), layout='overlapping')")
def write_to_a_sliding_window(x):
    x[:-1].add_(x[1:])
    return x * 2


@find("(base := tensor((2, 2))), base[1:]")
def a_part_without_elements_is_written_beside_the_whole(x, y):
    y.mul_(2)
    part = y[:, 0:0]
    x.add_(1.5)
    part += 1
    return x + 1


@find("tensor((2, 2))")
def tensor_twice_in_a_foreach(x):
    torch._foreach_mul_([x, x], 2)
    return x


@find("tensor((3,))")
def detached_inference_tensor_is_written(x):
    with torch.inference_mode():
        made = x + 1
    made.detach().add_(1)
    return made


@find("tensor((2, 2))", "tensor((4, 4), torch.float64)")
def diagonal_filled_in_pooled_memory(x):
    loss = F.kl_div(F.log_softmax(x, -1), F.softmax(x, -1), reduction="batchmean")
    filled = torch.neg(x)
    filled.fill_diagonal_(7)
    made = F.softmax(filled, -2).flip(-2)
    loss.neg_()
    return made, loss


@find("tensor((2, 2))", "tensor((4, 4), torch.float64)")
def strided_part_written_in_pooled_memory(x):
    loss = F.kl_div(F.log_softmax(x, -1), F.softmax(x, -1), reduction="batchmean")
    filled = torch.neg(x)
    filled.as_strided((2,), (1,), 1).mul_(7)
    made = F.softmax(filled, -2).flip(-2)
    loss.neg_()
    return made, loss


# -- random numbers --------------------------------------------------------------------------------


@find("tensor((2, 2, 5), layout='padded')")
def normal_into_strided_memory(x):
    x.normal_()
    return x


@find("tensor((3, 3), layout='strided')")
def uniform_into_strided_memory(x):
    x.uniform_(-1, 1)
    return x


@find("tensor((5, 4), layout='transposed')")
def random_like_a_power_of_a_number(x):
    return torch.randn_like(7**x)


# -- layouts ---------------------------------------------------------------------------------------


@find("tensor((5, 4), layout='transposed')", "tensor((5, 4), torch.int64, layout='transposed')")
def power_of_a_number_is_row_major(x):
    return 2**x


@find("tensor((3, 3), layout='overlapping')", "tensor((3, 3), layout='strided')", falls_back=True)
def scatter_keeps_the_strides_of_gaps_and_overlaps(x):
    return torch.slice_scatter(x, x[:1] * 2, 0, 1, 2), x.select_scatter(x[0], 0, 1)


# -- gradients -------------------------------------------------------------------------------------


@find("tensor((2, 2), layout='expanded', grad=True)", falls_back=True)
def view_of_an_expanded_leaf(x):
    return x[None]


# -- values ----------------------------------------------------------------------------------------


@find("tensor((1,))")
def linspace_of_one_step(x):
    return torch.linspace(-1, 1, x.shape[0]) + x


@find("tensor((33, 2))", "tensor((17, 3), torch.float64)")
def masked_loads_that_the_compiler_got_wrong(x):
    copied = x.index_copy(0, torch.tensor([1]), x[:1])
    return torch.vstack((copied, copied))


@find("tensor((1,))")
def slice_scatter_of_another_size(x):
    return torch.slice_scatter(x, x + 1, 0, 1, 2)


# -- dtypes that kernels refuse and meta functions take --------------------------------------------


@find("tensor((2,), torch.bool)")
def subtraction_of_bools(x):
    x.sub_(x, alpha=2)
    return x + 1


@find("tensor((2,), torch.uint8)")
def bytes_multiplied_by_a_half(x):
    x *= 0.5
    return x + 1


@find("tensor((2,))", "tensor((2,), torch.int32)")
def bitwise_and_of_floats(x):
    return x & 3


@find("tensor((3,))")
def greatest_common_divisor_of_floats(x):
    unused = torch.gcd(x, x)
    return x + 1


@find("tensor((2, 2), torch.complex64)")
def smallest_of_complex_numbers(x):
    unused = x.argmin(-2)
    return x + 1


# -- what raises although nobody reads it ----------------------------------------------------------


@find("(tensor((4,), torch.int64), torch.tensor([1, 2, 0, 3]))")
def unused_division_by_zero(pair):
    unused = pair[0] // pair[1]
    return pair[0] + 1


@find("(tensor((4,)), torch.tensor([0, 1, 2, 9]))", "(tensor((4,)), torch.tensor([0, 1]))")
def unused_index_out_of_range(pair):
    unused = pair[0][pair[1]] * 2
    return pair[0] + 1


@find("(tensor((4, 3), grad=True), torch.tensor([0, 1, 2, 9]))")
def unused_loss_of_a_bad_label(pair):
    unused = F.cross_entropy(pair[0], pair[1])
    return pair[0] + 1


@find("torch.tensor([0, 1, 2, 9])", tier="cpp")
@find("torch.tensor([0, 1, 2, 9])", tier="numba")
def rows_of_a_constant(x):
    return torch.ones(4, 3)[x].sum()


@find("(tensor((4,)), torch.tensor([0, 1, 2, 9]))")
def bad_index_in_a_part_cut_off(pair):
    taken = pair[0][pair[1]]
    return taken[:2] * 2, torch.cat([pair[0], taken])[:4] + 1


@find("(tensor((4,)), torch.tensor([0, 1, 2, 9]))")
def only_the_shape_of_what_was_taken(pair):
    return torch.zeros_like(pair[0][pair[1]]) + pair[0]


@find("(tensor((4,)), torch.tensor([0, 1, 9]))")
def index_into_an_expanded_dimension(pair):
    return pair[0].expand(3, 4)[pair[1]]


@find("(tensor((1, 2)),)")
def write_through_strides_that_differ_in_one_element(values):
    x = values[0].clone()
    x[::2] *= x
    return x


# -- needless fallbacks ----------------------------------------------------------------------------


@find("(tensor((3, 3)), tensor(()))")
def product_divided_by_a_scalar_tensor(pair):
    return torch.div(pair[0] @ pair[0], pair[1], rounding_mode="trunc")


@find("tensor((3,), torch.complex64)")
def complex_arithmetic_with_numbers(x):
    return x * 2 + 1 - (2 - x), x / 2, x == 1, x**2, 2.5 * x


# -- November's second hunt ------------------------------------------------------------------------


@find("tensor((2, 2, 2), layout='padded')")
@find("tensor((2, 3, 4), layout='strided')")
def view_of_a_written_input_with_gaps(x):
    x.remainder_(2)
    return x.unflatten(-1, (-1, 1)), x[:1], x.mT


@find("tensor((2, 2, 2), layout='strided')")
def product_of_operands_with_gaps(x):
    return torch.inner(x, x)


@find("(torch.arange(16).reshape(4, 4) > 7, tensor((4,)))")
def diagonal_of_another_dtype(pair):
    return torch.diagonal_scatter(pair[0] & pair[0], pair[1] * 2)


@find("tensor((2,))", falls_back=True)
def list_that_writes_the_same_memory_twice(x):
    y = x.t()
    torch._foreach_mul_([x, y], 2)
    return y.atan()


@find("tensor((2,))", falls_back=True)
def list_that_reads_what_it_has_written(x):
    y = x * 1
    torch._foreach_add_([y, x], [x, y])
    return y


@find("tensor((2,))")
def batch_norm_without_channels(x):
    y = F.batch_norm(x, None, None, training=True)
    return x + 1


@find("tensor((2, 3), layout='transposed')")
def batch_norm_of_a_transposed_tensor(x):
    return F.batch_norm(x, None, None, training=True)


@find("tensor((1,))")
def vectors_joined_along_no_dimension(x):
    y = torch.cat([x, x.flip(0)], 1)
    return x + 1


@find("torch.ones(2, 2, dtype=torch.uint8)")
def deviation_of_integers(x):
    y = torch.std(x, -2, correction=0)
    return x + 1


@find("tensor((2, 2), torch.complex64)")
def greatest_of_complex_numbers(x):
    y = x.max(-2).indices
    return x + 1


@find("tensor((2,), grad=True)")
def gradient_of_zeros_beside_another_result(x):
    y = x.scatter(-1, torch.zeros_like(x, dtype=torch.int64), x)
    z = torch.stack([x, x + 2], -1)
    z.zero_()
    print(y.sum().item())
    return z


@find("tensor((1,), grad=True)")
def gradient_that_is_zero_without_memory(x):
    y = x.softmax(-1) * 2
    return torch.sgn((y * y.log()).sum())


@find("tensor((3,))", falls_back=True)
def tensor_without_memory(x):
    zero = torch._efficientzerotensor([3])
    return zero * 2 + x, torch._neg_view(x * 1).sin()


@find("tensor((2, 2, 2))")
def added_to_itself_by_index(x):
    x.index_add_(0, torch.tensor([0, 1]), x[:2])
    return x


@find("tensor((3, 3), layout='transposed')")
def dropout_of_a_transposed_tensor(x):
    return F.dropout(x, 0.5, True), torch.rand_like(x), F.dropout(x, 0.5, False)


@find("tensor((2,), grad=True)", tier="cpp")
@find("tensor((2,), grad=True)", tier="aten")
def gradient_of_an_expanded_result(x):
    y = (x * 2).unsqueeze(1)
    return y.expand(2, 3)


@find("torch.tensor(3, dtype=torch.uint8)")
def strides_beyond_the_memory(x):
    y = (x + 2).as_strided((2,), (2,), 1)
    return x + 1


@find("torch.tensor([[2.0, 3.0]], requires_grad=True)", tier="cpp")
@find("torch.tensor([[2.0, 3.0]], requires_grad=True)", tier="aten")
def infinite_slope_of_what_is_not_used(x):
    y = x * 2
    z = torch.acos(y)
    print("between")
    return y @ y.t()


@find("torch.arange(4, dtype=torch.int32).reshape(2, 2)", tier="cpp")
@find("torch.arange(4, dtype=torch.int32).reshape(2, 2)", tier="aten")
def equal_results_are_tensors_of_their_own(x):
    a, b, c, d = x + 1, x + 1, x + 1, x + 1
    e = a[a > 3]
    return a, b, c, d


@find("torch.tensor([[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]])")
def stack_of_turned_tensors(x):
    y = (x * 2).unfold(0, 2, 2)
    return torch.stack([y, y - 1], 2), torch.stack([x.t(), x.t()], 0)


@find(
    "tensor((40, 48), seed=82, grad=True), tensor((10, 48), seed=83), "
    "tensor((7, 10), seed=85, layout='strided', grad=True), tensor((7,), seed=86, grad=True)"
)
def operand_overwritten_before_the_second_store_reads_it(x, w, v, b):
    y = x @ w.t()
    z = (v @ F.gelu(y, approximate="tanh").t() + b[:, None]).t()
    return z.tanh(), y


@find("torch.ones(2, 2)", "torch.zeros(2, 2, 2).transpose(0, 2)")
def all_over_no_dimension(x):
    y = torch.diag_embed(x.logsumexp([1]))
    return y.all((), keepdim=True), x.any([]), x.float().nansum(())


@find("torch.ones(2, 2, dtype=torch.bool)")
def position_of_the_greatest_of_bools(x):
    y = x.sign().argmax()
    return x


@find("torch.ones(2, 2)")
def mask_of_floats(x):
    y = x > 3
    y.masked_fill_(x, 7)
    return x


@find("torch.ones(3, 3)")
def index_of_another_dtype(x):
    y = x.index_fill(0, torch.tensor([0], dtype=torch.int32), 1)
    return x


@find("torch.ones(3, 3)")
def scale_of_integers(x):
    return F.layer_norm(x, (3,), torch.ones(3, dtype=torch.int64))


@find("torch.ones(1, 4, 4, dtype=torch.int32)")
def average_of_integers(x):
    y = F.avg_pool1d(x, 2)
    return x


@find("tensor((2, 2), torch.float64), tensor((2, 2), torch.bfloat16, seed=3, values='positive')")
def loss_against_a_target_of_another_dtype(x, y):
    return F.binary_cross_entropy_with_logits(x, y, reduction="none")


@find("torch.ones(2, 2)")
def product_with_bools(x):
    y = x.bool() @ x.bool()
    return x


@find("tensor((2, 3)), tensor((2, 3), torch.float64, seed=3)")
def random_numbers_like_a_loss_of_mixed_dtypes(x, y):
    return torch.randn_like(F.huber_loss(x, y, reduction="none")), F.soft_margin_loss(x, y)


@find("tensor((3, 3), grad=True)")
def view_of_a_result_that_was_written_since(x):
    y = x * 2
    v = y.t()
    y.mul_(3)
    return v


@find("tensor((3, 3), grad=True)")
def part_of_a_result_that_was_filled_since(x):
    y = x * 2
    v = y.view(-1)[1:]
    y[0].mul_(x[0])
    z = x + 1
    w = z[1:]
    z.exponential_()
    return v * v, w


@find("torch.tensor([3, 9, 200, 255], dtype=torch.uint8)")
def unsigned_numbers_shifted_out_of_themselves(x):
    return torch.bitwise_right_shift(x, x), x >> 8, x >> 7


@find("torch.tensor([-0.0, 0.0, -1.0, 1.0, float('nan')] * 7)")
def zeros_below_zero_that_stay_within_bounds(x):
    bounded = x.clamp(0), x.clamp(min=0.0), x.clamp(max=0.0), x.clamp(0.0, 1.0), F.relu6(x)
    return [torch.copysign(torch.ones_like(x), one) for one in bounded]


@find("tensor((2,)), tensor((2, 2), torch.bfloat16)")
@find("tensor((2,)), tensor((2, 2), torch.bfloat16)", tier="scheduled")
def parts_put_side_by_side_twice(x, y):
    pair = torch.stack([x, x - 1], -1)
    return torch.cat([pair, pair], -1), torch.vstack((y + y, y + y)), torch.vstack((y.exp(), y))


@find("tensor((4,), grad=True)")
def gradient_of_a_part_that_is_read_twice(x):
    part = x[0:2]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.binary_cross_entropy(part.sigmoid(), part.cos().abs())
    return loss * 3
