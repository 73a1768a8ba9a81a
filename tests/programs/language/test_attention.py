"""Attention: masks that hide nothing, and the settings that choose its kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import jitmagic

Q = torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(0))


ROW = torch.tensor([0])


def rows(q: torch.Tensor) -> torch.Tensor:
    return torch.arange(q.shape[2])[None, None, :, None]


HIDES_NOTHING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "broadcast rows": lambda q: (rows(q) + 0 >= 0).expand(q.shape[0], -1, -1, q.shape[2]),
    "ones": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool),
    "filled": lambda q: torch.full((1, 1, 1, q.shape[2]), True),
    "both": lambda q: torch.ones(5, 5, dtype=torch.bool) & (rows(q) > -1),
    "read": lambda q: torch.ones(2, 5).bool()[:, None, None, torch.arange(5)],
    "backwards": lambda q: torch.arange(4, -1, -1)[:, None] >= 0,
    "steps": lambda q: torch.arange(0, 50, 10)[:, None] < torch.full((1, 5), 51),
}
CAUSAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "compared": lambda q: rows(q) >= torch.arange(q.shape[2]),
    "tril": lambda q: torch.ones(5, 5, dtype=torch.bool).tril(),
    "not triu": lambda q: ~torch.triu(torch.ones(5, 5), diagonal=1).bool(),
    "padded": lambda q: (
        (rows(q) >= torch.arange(5)) & torch.ones(2, 5).bool()[:, None, None, torch.arange(5)]
    ),
}
HIDES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "data": lambda q: q[:, :1, :, :5] > -100,
    "first row": lambda q: (rows(q) >= 1).expand(-1, -1, -1, 5) | (torch.arange(5) == 0),
    "numbers": lambda q: torch.ones(5, 5),
    "written": lambda q: torch.ones(5, 5).bool().index_fill_(1, torch.tensor([2]), False),
    "window": lambda q: torch.ones(5, 5).bool().tril() & torch.ones(5, 5).bool().triu(-2),
    "shifted": lambda q: torch.ones(5, 5).bool().tril(1),
    "of one": lambda q: torch.stack([torch.ones(5, 5).tril(), torch.ones(5, 5)]).bool()[:, None],
    "causal data": lambda q: torch.ones(5, 5).bool().tril() & (q[0, 0, :, :5] > -100),
    "causal, written": lambda q: torch.ones(5, 5).bool().tril().index_fill_(1, ROW, False),
}


def compiled(fn: Callable[..., Any], graphs: list[Any], **options: Any) -> Callable[..., Any]:
    def keep(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module

    return jitmagic.jit(fn, backend=keep, fullgraph=True, **options)


def masks(graphs: list[Any]) -> list[Any]:
    nodes = [n for n in graphs[-1].graph.nodes if "dot_product_attention" in str(n.target)]
    return [n.kwargs.get("attn_mask", n.args[3] if len(n.args) > 3 else None) for n in nodes]


def is_causal(graphs: list[Any]) -> list[bool]:
    nodes = [n for n in graphs[-1].graph.nodes if "dot_product_attention" in str(n.target)]
    return [n.kwargs.get("is_causal", False) for n in nodes]


@pytest.mark.parametrize("keyword", [True, False])
@pytest.mark.parametrize("name", [*HIDES_NOTHING, *CAUSAL, *HIDES])
def test_masks(name: str, keyword: bool) -> None:
    make = {**HIDES_NOTHING, **CAUSAL, **HIDES}[name]

    def fn(q):
        mask = make(q)
        if keyword:
            return F.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.0)
        return F.scaled_dot_product_attention(q, q, q, mask)

    graphs: list[Any] = []
    got, want = compiled(fn, graphs)(Q), fn(Q)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)
    assert (masks(graphs) == [None]) == (name in HIDES_NOTHING or name in CAUSAL)
    assert is_causal(graphs) == [name in CAUSAL]


def causal_rows(q):
    """As many rows as asked for, of which the last one sees everything."""
    length, seen = q.shape[2], Q.shape[2]
    return torch.arange(length)[:, None] + (seen - length) >= torch.arange(seen)


@pytest.mark.parametrize("length", [1, 3])
def test_fewer_queries_than_keys_keep_their_mask(length):
    """What is_causal means for them depends on the kernel."""

    def fn(q):
        return F.scaled_dot_product_attention(q, Q, Q, attn_mask=causal_rows(q))

    graphs: list[Any] = []
    torch.testing.assert_close(compiled(fn, graphs)(Q[:, :, -length:]), fn(Q[:, :, -length:]))
    assert is_causal(graphs) == [False]


@pytest.mark.parametrize("chosen", [1, 3])
def test_a_mask_of_as_many_rows_as_data_decide_stays(chosen):
    """Nothing is decided by how many there are: whether the mask fits is eager's to say."""
    few = torch.arange(4) < chosen

    def fn(q, keep):
        rows = q[keep]
        mask = torch.ones(rows.shape[0], 1, 5, 5, dtype=torch.bool)
        return F.scaled_dot_product_attention(rows, rows, rows, attn_mask=mask) * 2

    graphs: list[Any] = []
    q = torch.cat([Q, Q + 1])
    torch.testing.assert_close(compiled(fn, graphs)(q, few), fn(q, few))
    torch.testing.assert_close(compiled(fn, graphs)(q, ~few), fn(q, ~few))
    assert masks(graphs) != [None]


@pytest.mark.parametrize("asks", [True, False])
def test_a_mask_stays_where_another_kernel_would_draw_other_numbers(asks):
    """Unless a library made it because it is compiled: eager has none then."""

    def fn(q):
        mask = None
        if not asks or torch.compiler.is_compiling():
            mask = torch.ones(5, 5).bool().tril()
        given = {"attn_mask": mask, "dropout_p": 0.25, "is_causal": mask is None}
        return F.scaled_dot_product_attention(q, q, q, **given)

    graphs: list[Any] = []
    torch.manual_seed(1)
    got = compiled(fn, graphs)(Q)
    torch.manual_seed(1)
    torch.testing.assert_close(got, fn(Q))
    assert is_causal(graphs) == [asks]


def test_gradients_through_a_causal_mask():
    def fn(q):
        mask = rows(q) >= torch.arange(q.shape[2])
        return F.scaled_dot_product_attention(q, q * 2, q + 1, mask)

    gradients = []
    for call in (fn, jitmagic.jit(fn, fullgraph=True)):
        q = Q.clone().requires_grad_()
        call(q).square().sum().backward()
        gradients.append(q.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_mask_beside_is_causal_is_left_to_eager() -> None:
    """Not every device takes it, and since torch 2.15 none does."""

    def fn(q):
        return F.scaled_dot_product_attention(q, q, q, rows(q) >= 0, is_causal=True)

    run = jitmagic.jit(fn, backend="eager")
    try:
        expected = fn(Q)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            run(Q)
    else:
        torch.testing.assert_close(run(Q), expected)


@pytest.mark.parametrize("shape", [(3, 2, 1, 5, 5), (4, 5)])
def test_masks_that_eager_refuses_are_refused(shape: tuple[int, ...]) -> None:
    def fn(q):
        mask = torch.ones(shape, dtype=torch.bool)
        return F.scaled_dot_product_attention(q, q, q, mask)

    texts = []
    for call in (fn, jitmagic.jit(fn)):
        with pytest.raises(RuntimeError) as caught:
            call(Q)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def attend(q):
    return F.scaled_dot_product_attention(q, q, q) * 2


@pytest.mark.parametrize("fn", [attend, torch.nn.MultiheadAttention(8, 2, batch_first=True)])
def test_each_setting_has_a_graph_of_its_own(fn: Callable[..., Any]) -> None:
    """Another kernel may round otherwise, so that the one of the first call is not kept."""
    graphs: list[Any] = []
    arguments = [Q] if fn is attend else [Q[0], Q[0], Q[0]]
    tagged = compiled(fn, graphs)
    counts = []
    for _ in range(2):
        tagged(*arguments)
        with sdpa_kernel(SDPBackend.MATH):
            tagged(*arguments)
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
            tagged(*arguments)
        counts.append(len(graphs))
    assert counts == [3, 3]
