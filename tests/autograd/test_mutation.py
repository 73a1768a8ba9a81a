"""In-place operations, views, mutated inputs and aliasing outputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jitmagic.autograd.result import FromInput, Result, ViewOf
from jitmagic.errors import CompileFailed

from .lifting import check, compile_like
from .test_functions import ids, t


def intermediate(x):
    y = x * 2
    y.add_(1).mul_(x)
    y[0].sub_(3)
    y[:, 1:3] = y[:, :2] * 2
    y[..., -1] += 5
    return y


def through_views(x):
    y = x.clone()
    y.t()[1].mul_(3)
    y.view(-1)[2:6].zero_()
    y.unsqueeze(0).transpose(1, 2)[0, 0].fill_(2.5)
    y.diagonal().add_(1)
    y[1:].copy_(y.chunk(3, 0)[0].expand(2, 3))
    return y, y.sum()


def masks(x):
    y = x + 1
    y[y > 1.5] = 0.25
    y.masked_fill_(y < 0.5, 9.0)
    y.clamp_(max=4)
    y.index_fill_(0, torch.tensor([1]), 2.0)
    return y


def indexed(x):
    y = x * 1
    y.index_put_((torch.tensor([0, 2, 0]),), x[:3] + 1, accumulate=True)
    y[torch.tensor([1]), torch.tensor([2])] = 7.0
    y.scatter_add_(0, torch.tensor([[0, 1, 1]]), x[:1])
    y.index_add_(0, torch.tensor([1]), x[:1])
    return y


def gradient_flows_through_a_buffer(x):
    y = torch.zeros(3, 3)
    y[0] = x[0]
    y[1:] += x[1:] * 2
    return y.cumsum(0)


def casts(x):
    y = torch.zeros(3, 3, dtype=torch.int64)
    y.copy_(x * 10)
    z = torch.ones(3, 3)
    z.add_(x.detach().double())
    return y, z, z.bernoulli_(0.5)


def activations_in_place(x):
    y = F.dropout(F.relu(x @ x, inplace=True) + x, 0.3, inplace=True)
    return F.leaky_relu_(y + 0.1), F.hardtanh_(x * 3)


PROGRAMS = [
    intermediate,
    through_views,
    masks,
    indexed,
    gradient_flows_through_a_buffer,
    activations_in_place,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("grad", [True, False])
def test_in_place_on_intermediates(program, grad):
    check(program, t(3, 3, grad=grad), fp64=False)


def test_casting_writes():
    check(casts, t(3, 3), fp64=False)


def test_the_graph_is_functional():
    _, _, parts = compile_like(through_views, (t(3, 3),))
    for graph in (parts.forward.graph, parts.backward.graph):
        for node in graph.nodes:
            if node.op == "call_function" and hasattr(node.target, "_schema"):
                assert not node.target._schema.is_mutable


def test_mutated_inputs_are_written_and_returned():
    def program(state, x):
        state.mul_(0.9).add_(x.detach() * 0.1)
        state[0] = x.detach()[1]
        return state, state[1:], x + state

    parts = check(program, t(3, 4, grad=False), t(3, 4))
    assert parts.mutated_inputs == (0,)


def test_written_by_a_value_that_requires_grad_is_refused():
    with pytest.raises(CompileFailed, match="does not require grad"):
        compile_like(lambda s, x: s.add_(x) * 2, (t(3, grad=False), t(3)))


def test_writing_to_a_leaf_that_requires_grad_is_refused():
    def program(x):
        return x.add_(1)

    graph = torch.fx.symbolic_trace(program)
    graph.graph.output_node().args = ((graph.graph.output_node().args[0],),)
    from jitmagic.autograd.joint import trace_joint
    from jitmagic.spec import spec_of

    with pytest.raises(CompileFailed, match="leaf"):
        trace_joint(graph, [spec_of(t(3))])
    with torch.no_grad():
        joint = trace_joint(graph, [spec_of(t(3))])
    assert joint.mutated_inputs == (0,)
    assert joint.outputs == (FromInput(0),)


def test_sgd_step_under_no_grad():
    def program(weight, gradient, momentum):
        momentum.mul_(0.9).add_(gradient)
        weight.add_(momentum, alpha=-0.1)
        return weight.sum()

    with torch.no_grad():
        check(program, t(3, 4), t(3, 4, grad=False), t(3, 4, grad=False) * 2)


def test_foreach_steps():
    def program(a, b, g, h):
        torch._foreach_mul_([a, b], 0.9)
        torch._foreach_add_([a, b], [g, h], alpha=0.1)
        torch._foreach_addcdiv_([a, b], [g, h], [g * g + 1, h * h + 1], -0.5)
        return torch._foreach_sqrt([g * g, h * h])

    check(program, *(t(n, grad=False) for n in (2, 3, 2, 3)))


def test_eager_would_raise_in_backward_so_it_is_refused():
    def program(x):
        y = x.exp()
        y.add_(1)
        return y

    with pytest.raises(CompileFailed, match="modified in place"):
        compile_like(program, (t(3),))


def test_batch_norm_updates_its_statistics():
    model = nn.BatchNorm2d(3)
    check(model, t(2, 3, 4, 4))
    assert model.num_batches_tracked.item() == 0  # check() works on copies


# -- outputs ---------------------------------------------------------------------------------------


def outputs(program, *args):
    check(program, *args)
    return compile_like(program, args)[2].outputs


def test_inputs_and_their_views_come_back_as_such():
    def program(x, y):
        return x, x[1:], y.t(), y.detach(), x * y

    kinds = outputs(program, t(3, 3), t(3, 3, grad=False))
    assert kinds[0] == FromInput(0)
    assert all(isinstance(kind, ViewOf) for kind in kinds[1:4])
    assert kinds[4] == Result(0, True)
    x, y = t(3, 3), t(3, 3, grad=False)
    call, _, _ = compile_like(program, (x, y))
    same, rows, turned, cut, _ = call(x, y)
    assert same is x
    assert rows._base is x
    assert turned.data_ptr() == y.data_ptr()
    assert not cut.requires_grad
    assert rows.data_ptr() == x[1:].data_ptr()


def test_views_of_offset_inputs():
    base = t(4, 3, grad=False)
    call, _, _ = compile_like(lambda x: x[1:], (base[:3],))
    assert torch.equal(call(base[1:])[0], base[2:])


def test_results_that_share_memory():
    def program(x):
        y = x * 2
        return y, y[0], y.t(), y.detach()

    kinds = outputs(program, t(3, 3))
    assert kinds[0] == Result(0, True)
    x = t(3, 3)
    y, row, turned, cut = compile_like(program, (x,))[0](x)
    assert row._base is y
    assert turned._base is y
    with torch.no_grad():
        y.fill_(4)
    assert (row == 4).all()
    assert (cut == 4).all()
    assert not cut.requires_grad


def test_views_whose_base_is_not_returned():
    kinds = outputs(lambda x: (x * 2).unbind(0), t(3, 3))
    assert [kind.result for kind in kinds] == [0, 0, 0]


def test_one_view_is_a_plain_result():
    assert outputs(lambda x: (x * 2).t(), t(3, 4)) == (Result(0, True),)


def test_duplicate_outputs_are_one_tensor():
    def program(x):
        y = x + 1
        return y, y, x.clone(), x.clone()

    call, inputs, parts = compile_like(program, (t(3),))
    a, b, c, d = call(*inputs)
    assert a is b
    assert c is not d
    assert c.data_ptr() != d.data_ptr()
    assert c.data_ptr() != inputs[0].data_ptr()
    check(program, t(3))


def test_copies_of_inputs_do_not_alias_them():
    def program(x):
        y = torch.empty_like(x)
        y.copy_(x)
        return y, torch.zeros(3), torch.zeros(3)

    call, (x,), _ = compile_like(program, (t(3, grad=False),))
    y, a, b = call(x)
    assert len({tensor.data_ptr() for tensor in (x, y, a, b)}) == 4


def test_memory_shared_across_autograd_histories_is_refused():
    def program(x, w):
        y = x * 2
        cut = y.detach()
        cut.mul_(w)
        return y, cut

    with pytest.raises(CompileFailed, match="history"):
        compile_like(program, (t(3, grad=False), t(3)))


def test_overlapping_inputs_of_a_writer_are_refused_when_called():
    call, _, _ = compile_like(lambda x, y: x.add_(y), (t(3, grad=False), t(3, grad=False) + 1))
    base = torch.ones(4)
    with pytest.raises(CompileFailed, match="shares memory"):
        call(base[:3], base[1:])
    assert torch.equal(base, torch.ones(4))


def test_data_dependent_calls_are_refused():
    for program in (lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: x.unique()):
        with pytest.raises(CompileFailed):
            compile_like(program, (t(3),))


def test_embedding_rows_written():
    def program(table, i):
        copy = table.clone()
        copy[i] = 0
        return copy

    check(program, t(5, 3), ids(2, high=5))


def test_a_statistic_read_before_it_is_written_is_not_kept_for_backward():
    def program(x, mean, var):
        scaled = x * mean.exp()
        return F.batch_norm(scaled, mean, var, training=True)

    check(program, t(6, 3), t(3, grad=False), t(3, grad=False).exp())


def test_writes_under_inference_mode():
    def program(state, x):
        state.add_(x)
        return state * 2

    state, x = t(3, grad=False), t(3, grad=False)
    call, _, _ = compile_like(program, (state, x))
    with torch.inference_mode():
        inside = torch.zeros(3)
        assert torch.equal(call(inside, x)[0], x * 2)


def test_results_written_where_the_program_says():
    def program(state, x):
        torch.maximum(state, x, out=state)
        torch.add(x, state, alpha=2, out=state)
        return state * 2

    check(program, t(3, grad=False), t(3, grad=False))


def test_a_result_that_resizes_is_refused():
    def program(state, x):
        torch.mul(x, x, out=state)
        return state * 2

    with pytest.raises(CompileFailed, match="resizes"):
        compile_like(program, (t(0, grad=False), t(3, grad=False)))


def test_pieces_of_one_buffer_are_written_apart():
    def program(state, x):
        state.add_(x)
        return x + 1

    call, _, _ = compile_like(program, (t(3, grad=False), t(3, grad=False)))
    flat = torch.arange(6.0)
    call(flat[:3], flat[3:])
    assert torch.equal(flat, torch.tensor([3.0, 5.0, 7.0, 3.0, 4.0, 5.0]))
    with pytest.raises(CompileFailed, match="shares memory"):
        call(flat[:3], flat[2:5])
