"""Views cost no step; their meaning, and the cases that become memory."""

from __future__ import annotations

import pytest
import torch
from recording import check, externs, nests

from jitmagic.loops.ir import Alias, Extern, Nest

aten = torch.ops.aten

VIEWS = {
    "view": lambda x: x.view(4, 30),
    "view_split": lambda x: x.view(2, 2, 5, 3, 2),
    "view_flat": lambda x: x.view(-1),
    "view_chain": lambda x: x.view(-1).view(6, 20).view(3, 2, 4, 5),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda x: x[0].t(),
    "expand": lambda x: x[:, :1].expand(4, 7, 6),
    "expand_new": lambda x: x.expand(2, 4, 5, 6),
    "slice": lambda x: x[1:3, ::2, -4:-1],
    "slice_empty": lambda x: x[3:1],
    "select": lambda x: x[2, :, -1],
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "squeeze_all": lambda x: x[:1, :1].squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1).unsqueeze(-1),
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "diagonal_below": lambda x: torch.diagonal(x, -2, 1, 2),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "detach": lambda x: x.detach(),
    "alias": lambda x: aten.alias(x),
    "movedim": lambda x: x.movedim(0, 2)[..., 1],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5),
    "flatten_of_transposed": lambda x: x.transpose(0, 1).reshape(5, 24),
    "heads": lambda x: x.view(4, 5, 2, 3).permute(0, 2, 1, 3),
    "heads_and_back": lambda x: (
        x.view(4, 5, 2, 3).permute(0, 2, 1, 3).permute(0, 2, 1, 3).reshape(4, 5, 6)
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_reading_through_a_view(name):
    torch.manual_seed(0)
    view = VIEWS[name]
    check(lambda x: view(x) + 1, torch.randn(4, 5, 6))
    check(lambda x: view(x * 2) + 1, torch.randn(4, 5, 6))
    check(lambda x: view(x) + 1, torch.randn(6, 5, 4).permute(2, 1, 0).contiguous())


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_as_output(name):
    torch.manual_seed(0)
    view = VIEWS[name]
    check(lambda x: (view(x), view(x * 2)), torch.randn(4, 5, 6))


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_strided_input(name):
    if name in ("view", "view_split", "view_flat", "view_chain", "as_strided"):
        return
    view = VIEWS[name]
    check(lambda x: (view(x), view(x) * 2), torch.randn(5, 4, 12)[:, :, 1::2].transpose(0, 1))


def test_lists_of_views():
    x = torch.randn(7, 6)
    check(lambda x: [p + 1 for p in x.split(3)], x)
    check(lambda x: [p + 1 for p in x.split([1, 2, 3], dim=1)], x)
    check(lambda x: [p + 1 for p in x.chunk(2, dim=1)], x)
    check(lambda x: [p + 1 for p in x.unbind(1)], x)
    check(lambda x: list(x.unbind(0)), x)


def test_views_make_no_step():
    program = check(lambda x: x.view(20, 6).t().unsqueeze(0)[:, 1:] + 1, torch.randn(4, 5, 6))
    assert len(program.steps) == 1


def test_a_library_call_gets_a_strided_view_of_the_memory():
    x, y = torch.randn(4, 8), torch.randn(4, 6)
    program = check(lambda x, y: (x * 2).t() @ y[:, ::2], x, y, fallbacks=["aten.mm.default"])
    kinds = [type(step) for step in program.steps]
    assert kinds == [Nest, Alias, Alias, Extern]


def test_a_scrambled_view_is_copied_for_a_library_call():
    x, y = torch.randn(4, 6), torch.randn(6, 3)
    program = check(lambda x, y: x.flip(0) @ y, x, y, fallbacks=["aten.mm.default"])
    assert nests(program) == 1
    assert externs(program) == ["aten.mm.default"]


def test_the_same_alias_is_made_once():
    x, y = torch.randn(4, 8), torch.randn(4, 6)
    program = check(lambda x, y: (x.t() @ y, x.t() @ (y + 1)), x, y, fallbacks=["aten.mm.default"])
    assert sum(isinstance(step, Alias) for step in program.steps) == 1


def test_inputs_and_repeats_as_outputs():
    x = torch.randn(3, 4)

    def f(x):
        y = x + 1
        return x, y, y, y.t(), x[0]

    program = check(f, x)
    assert program.outputs[0] == "x0"
    assert program.outputs[1] == program.outputs[2]
    assert program.buffers[program.outputs[1]].role == "output"


def test_as_strided_counts_from_the_storage():
    base = torch.randn(100)
    check(lambda x: x.as_strided((2, 3), (10, 2), 3) * 2, base[20:60].view(4, 10))
    check(lambda x: x[2:].as_strided((2, 3), (10, 2)) * 2, base[20:60].view(4, 10))
    check(lambda x: (x * 2)[2:].as_strided((2, 3), (1, 2)) + 1, base[20:60].view(4, 10))


def test_ops_that_return_unknown_views_are_copied_by_aten():
    x = torch.randn(4, 6)
    program = check(lambda x: x.view(torch.int32) + 1, x, fallbacks=["aten.view_copy.dtype"])
    assert externs(program) == ["aten.view_copy.dtype"]


# -- mutation -------------------------------------------------------------------------------------


def test_a_mutated_input_is_written_last():
    x, y = torch.randn(3, 3), torch.randn(3, 3)

    def f(x, y):
        z = x * 2
        x.copy_(z + y)
        return z

    program = check(f, x, y)
    assert program.steps[-1].stores[0].buffer == "x0"


def test_a_write_that_reads_its_own_memory():
    x = torch.randn(4, 4)
    check(lambda x: x.copy_(x.t().clone()).sum(0), x)
    check(lambda x: x.copy_(x[:1] + 0), x)
    program = check(lambda x: x.copy_(x), x)
    assert not program.steps


def test_writes_convert_and_broadcast():
    x, y = torch.randn(3, 4), torch.randn(4, dtype=torch.float64)
    check(lambda x, y: x.copy_(y * 2), x, y)
    check(lambda x, y: x.copy_(y), torch.zeros(3, 4, dtype=torch.int64), y)


def test_a_view_of_a_mutated_input_sees_the_new_value():
    x = torch.randn(3, 4)

    def f(x):
        v = x.t()
        x.copy_(x + 1)
        return v

    check(f, x)
