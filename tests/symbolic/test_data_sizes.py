"""Sizes that data decide: one graph, and eager's results and gradients for masks with no, one, some
and all elements, under each backend and kind of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import Unsupported
from tests.covering import covered

ROWS, COLUMNS = 12, 4


def coordinates(x: torch.Tensor) -> Any:
    return torch.nonzero(x > 0).neg()


def columns(x: torch.Tensor) -> Any:
    i, j = torch.where(x > 0)
    return x[i, j] * 2, i + j


def argwhere(x: torch.Tensor) -> Any:
    return torch.argwhere(x > 0)[:, 0] * 2


def masked(x: torch.Tensor) -> Any:
    return x[x > 0].exp().sum()


def selected(x: torch.Tensor) -> Any:
    return torch.masked_select(x, x[:, :1] > 0).sin() * 3


def rows(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return y @ torch.ones(COLUMNS, 5), y.shape[0] * 2, y.sum(0)


def lengths(x: torch.Tensor) -> Any:
    y = x[x > 0]
    return torch.zeros(y.shape[0], 3) + y[:, None], len(y), y.numel() / x.numel(), y.shape


def reshaped(x: torch.Tensor) -> Any:
    return x[x > 0].view(-1, 1).expand(-1, 3).softmax(-1).sum()


def transposed(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return F.layer_norm(y, (COLUMNS,)).T.contiguous(), y.T.reshape(-1)


def joined(x: torch.Tensor) -> Any:
    y = x[x > 0]
    return torch.cat([y, y * 2]).cumsum(0)


def put(x: torch.Tensor) -> Any:
    y = torch.zeros_like(x)
    y[x > 0] = x[x > 0] * 2
    return y


def filled(x: torch.Tensor) -> Any:
    y, row = x * 2, x.sum(0)
    y[x[:, 0] > 0] = row
    y[x > 1] = 0
    y[x < -1] = row[0] * 0 + 3
    return y.exp()


def added(x: torch.Tensor) -> Any:
    index = torch.nonzero(x[:, 0] > 0).squeeze(-1)
    return torch.zeros(ROWS, COLUMNS).index_add_(0, index, x[index] * 2)


def experts(x: torch.Tensor) -> Any:
    scores = x.softmax(-1)
    chosen = F.one_hot(scores.argmax(-1), COLUMNS).T
    out = torch.zeros_like(x)
    for expert in range(COLUMNS):
        (row,) = torch.where(chosen[expert])
        out.index_add_(0, row, x[row] * (expert + 1) * scores[row, expert, None])
    return out


def received(x: torch.Tensor) -> Any:
    """Fill and read rows selected by data, twice, as layers of a graph network do."""
    index = torch.nonzero(x[:, 0] > 0).squeeze(-1)
    h, shared = x, []
    for _ in range(2):
        messages = h[index].tanh()
        out = messages.new_zeros(ROWS, COLUMNS).index_add_(0, index, messages)
        shared.append(out.detach() * 2)
        h = (out + x).sin() @ torch.ones(COLUMNS, COLUMNS)
    return h, shared


def received_in_part(x: torch.Tensor) -> Any:
    index = torch.nonzero(x[:, 0] > 0).squeeze(-1)
    picked = x[index]
    out = picked.new_zeros(2, ROWS, COLUMNS)
    degrees = torch.zeros(ROWS).index_add_(0, index, torch.ones_like(index, dtype=x.dtype))
    out[1].index_add_(0, index, picked * degrees[index, None])
    return out.flatten(0, 1).exp().cumsum(0) * x.repeat(2, 1), out[1] * 2 + x


def error(x: torch.Tensor) -> Any:
    y = x * 2
    return F.mse_loss(x[x > 0], y[x > 0], reduction="sum")


def written_between(x: torch.Tensor) -> Any:
    y = x.detach().clone()
    first = y > 0
    before = y[first] * 2
    y.neg_()
    return before, y[y > 0] * 2, y[first] + before


def one_behind_another(x: torch.Tensor) -> Any:
    y = x[x > 0] * 2
    z = y[y > 1] - 1
    return z[z > 0.5].sum() + y.sum()


def loss(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return F.cross_entropy(y, torch.ones(y.shape[0], dtype=torch.long), reduction="sum")


def kept_apart(x: torch.Tensor) -> Any:
    hidden = x * 2
    y = hidden[hidden > 0]
    return hidden, y, y.square().sum()


def unique(x: torch.Tensor) -> Any:
    return torch.unique((x.detach() * 2).round()) + 1


def unique_with_counts(x: torch.Tensor) -> Any:
    values, inverse, counts = torch.unique(
        x.detach().round(), return_inverse=True, return_counts=True
    )
    return values[inverse] + 1, counts * 2


def consecutive(x: torch.Tensor) -> Any:
    return torch.unique_consecutive((x > 0).flatten()).long() * 3


def counted(x: torch.Tensor) -> Any:
    return torch.bincount((x.abs() * 2).long().flatten(), minlength=3) * 2


def repeated(x: torch.Tensor) -> Any:
    return torch.repeat_interleave(x, (x[:, 0] > 0).long() * 2, dim=0).relu()


def without_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        rows = (x > 0).any(1).nonzero().squeeze(1)
    return x[rows] * 2


def under_autocast(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = x[x[:, 0] > 0] @ torch.ones(COLUMNS, 3)
    return y, y.float().sum()


def narrowed(x: torch.Tensor) -> Any:
    return x.flatten().narrow(0, 0, (x > 0).sum().item()).sum()


def sorted_and_kept(x: torch.Tensor) -> Any:
    boxes = x[torch.nonzero(x[:, 0] > 0).flatten()]
    boxes = boxes[boxes[:, 1].argsort(descending=True)]
    scores = boxes[:, 2].sigmoid()
    return boxes[scores > 0.4], scores[scores > 0.4]


def layers(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    for _ in range(3):
        y = F.gelu(F.layer_norm(y @ torch.ones(COLUMNS, COLUMNS), (COLUMNS,)))
    out = x.clone()
    out[x[:, 0] > 0] = y
    return out


PROGRAMS: tuple[Callable[..., Any], ...] = (
    coordinates, columns, argwhere, masked, selected, rows, lengths, reshaped, transposed, joined,
    put, filled, added, experts, received, received_in_part, error, written_between,
    one_behind_another, loss, kept_apart,
    unique, unique_with_counts, consecutive, counted, repeated, without_grad, under_autocast,
    narrowed, sorted_and_kept, layers,
)  # fmt: skip
MASKS: dict[str, Callable[[], torch.Tensor]] = {
    "some": lambda: torch.randn(ROWS, COLUMNS),
    "others": lambda: torch.randn(ROWS, COLUMNS),
    "none": lambda: -torch.rand(ROWS, COLUMNS) - 0.1,
    "all": lambda: torch.rand(ROWS, COLUMNS) + 0.1,
    "one": lambda: torch.where(torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) == 8, 0.7, -1.0),
    "many again": lambda: torch.randn(ROWS, COLUMNS) + 0.5,
}


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for one in value for t in tensors(one)] if isinstance(value, tuple) else []


def gradient(value: Any, x: torch.Tensor) -> torch.Tensor | None:
    total = sum(t.square().sum() for t in tensors(value) if t.requires_grad)
    return torch.autograd.grad(total, x)[0] if isinstance(total, torch.Tensor) else None


def same_as_eager(fn: Callable[..., Any], made: Callable[..., Any], grad: bool) -> None:
    for make in MASKS.values():
        x = make()
        mine, other = x.clone().requires_grad_(grad), x.clone().requires_grad_(grad)
        found, wanted = made(mine), fn(other)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(tensors(found), tensors(wanted), strict=True):
            assert ours.stride() == theirs.stride() and ours.requires_grad is theirs.requires_grad
        torch.testing.assert_close(
            gradient(found, mine), gradient(wanted, other), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_slice_of_all_of_a_view_with_an_offset(backend: str) -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        row = x.narrow(0, x.shape[0] - 1, 1)
        return row.reshape(-1)[: (row == row).sum().item()] * 2

    made = jitmagic.jit(last, backend=backend, fullgraph=True, options={"on_error": "raise"})
    for shape in ((33, 5), (9, 12), (6, 33), (4, 33)):
        x = torch.randn(shape, requires_grad=True)
        assert torch.equal(made(x), last(x))


@covered(program=PROGRAMS, backend=["eager", "aot_eager", "native"], grad=[False, True])
def test_one_graph_and_eagers_results(
    program: Callable[..., Any], backend: str, grad: bool
) -> None:
    torch.manual_seed(0)
    made = jitmagic.jit(program, backend=backend, fullgraph=True)
    same_as_eager(program, made, grad)


# ------------------------------------------------------------------------ numbers that are sizes


def made(x: torch.Tensor, n: torch.Tensor) -> Any:
    return torch.zeros(n.sum().item(), 2) + 1


def cut(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.max().item()
    return x[:k] * 2, torch.arange(k) + 1


def parts(x: torch.Tensor, n: torch.Tensor) -> Any:
    return tuple(part.sum() * 2 for part in x.split(n.tolist()))


def lengths_as_masks(x: torch.Tensor, n: torch.Tensor) -> Any:
    longest = int(n.max())
    mask = torch.arange(longest)[None] < n[:, None]
    return mask, mask.sum(1)


def returned(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.sum().item()
    return x.new_ones(k, 3).cumsum(0), k, k + 1


def packed(x: torch.Tensor, n: torch.Tensor) -> Any:
    total = n.sum().item() + 1
    return torch.cat([x[:, 0], torch.ones(total)]).tanh()


OF_NUMBERS: tuple[Callable[..., Any], ...] = (
    made, cut, parts, lengths_as_masks, returned, packed
)  # fmt: skip
NUMBERS = (
    [1, 2, 1, 8], [2, 4, 4, 2], [0, 0, 0, 12], [12, 0, 0, 0], [1, 0, 6, 5], [1, 1, 1, 1],
    [0, 0, 0, 0], [-1, 5, 4, 4], [4, 4, 5, -1], [-1, -2, -3, -4], [3, 3, 3, 3],
)  # fmt: skip


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("program", OF_NUMBERS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_read_numbers_as_sizes_raise_as_in_eager(program: Callable[..., Any], backend: str) -> None:
    torch.manual_seed(0)
    compiled = jitmagic.jit(program, backend=backend, fullgraph=True)
    for numbers in NUMBERS:
        x, n = torch.randn(ROWS, COLUMNS), torch.tensor(numbers)
        found, wanted = outcome(compiled, x, n), outcome(program, x, n)
        torch.testing.assert_close(found, wanted) if tensors(wanted) else None
        assert tensors(wanted) or found == wanted


# ------------------------------------------------------------------------ sizes that must be equal


def table_of_counts(x: torch.Tensor, n: torch.Tensor) -> Any:
    return torch.bincount(n, minlength=4).reshape(2, 2) * 2


def by_degree(x: torch.Tensor, n: torch.Tensor) -> Any:
    return x[:4] / torch.bincount(n, minlength=4).clamp(min=1)[:, None]


def broadcast(x: torch.Tensor, n: torch.Tensor) -> Any:
    return x[0] * torch.bincount(n)


def added_at(x: torch.Tensor, n: torch.Tensor) -> Any:
    index = (n > 0).nonzero()[:, 0]
    return torch.zeros(ROWS, COLUMNS).index_add(0, index, x[: n.shape[0]][n >= 0][1:])


def by_experts(x: torch.Tensor, n: torch.Tensor) -> Any:
    parts = [part * k for k, part in enumerate(x.split(n.tolist()))]
    rows = torch.cat(parts) * x.sum(1)[:, None]
    return torch.zeros(ROWS, COLUMNS).index_add(0, torch.arange(ROWS).flip(0), rows)


EQUAL: tuple[Callable[..., Any], ...] = (
    table_of_counts, by_degree, broadcast, added_at, by_experts,
)  # fmt: skip


@pytest.mark.parametrize("program", EQUAL, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_sizes_that_eager_requires_to_be_equal(program: Callable[..., Any], backend: str) -> None:
    torch.manual_seed(0)
    compiled = jitmagic.jit(program, backend=backend, fullgraph=True)
    for numbers in ([3, 0, 3, 0], [0, 1, 2, 9], *NUMBERS):
        x, n = torch.randn(ROWS, COLUMNS), torch.tensor(numbers)
        found, wanted = outcome(compiled, x, n), outcome(program, x, n)
        torch.testing.assert_close(found, wanted) if tensors(wanted) else None
        assert tensors(wanted) or found == wanted


# ------------------------------------------------------------------------ what else has to hold


def asked(x: torch.Tensor) -> Any:
    y = x[x > 0] * 2
    if y.shape[0] > 3:  # here
        return y + 1
    return y - 1


def decided(x: torch.Tensor) -> Any:
    y = x[x > 0] * 2
    return y[:3] if len(y) % 2 else y  # here


@pytest.mark.parametrize("program", [asked, decided], ids=lambda fn: fn.__name__)
def test_a_decision_breaks_with_its_line_and_that_of_the_size(program: Callable[..., Any]) -> None:
    with pytest.raises(Unsupported, match=r"data-dependent size.*x.x > 0.(.|\n)*here"):
        jitmagic.jit(program, backend="eager", fullgraph=True)(torch.randn(ROWS, COLUMNS))
    compiled = jitmagic.jit(program, backend="aot_eager")
    for make in MASKS.values():
        x = make()
        found, wanted = outcome(compiled, x), outcome(program, x)
        assert isinstance(found, torch.Tensor) is isinstance(wanted, torch.Tensor)
        torch.testing.assert_close(found, wanted) if isinstance(wanted, torch.Tensor) else None


@pytest.mark.parametrize("tier", ["cpp", "numba", "aten"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.bool])
def test_tiers_and_dtypes(tier: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x[x > 0]
        return y, torch.cat([y, y]), torch.nonzero(x)[:, 0].sum(), y.sum()

    compiled = jitmagic.jit(program, fullgraph=True, options={"cpu_tier": tier})
    for make in MASKS.values():
        x = (make() * 4).to(dtype)
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-3, atol=1e-3)


def test_results_that_share_memory_and_what_is_written_between(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x[x > 0]
        print("between")
        z = y.view(-1, 1)
        y.mul_(2)
        x.add_(1)
        return y, z, x[x > 1]

    compiled = jitmagic.jit(program)
    for make in MASKS.values():
        x, other = (start := make()).clone(), start.clone()
        found, wanted = compiled(x), program(other)
        torch.testing.assert_close((found, x), (wanted, other))
        assert found[0].data_ptr() == found[1].data_ptr()
    assert capsys.readouterr().out == "between\n" * 2 * len(MASKS)


def test_draws_equal_eager() -> None:
    def program(x: torch.Tensor) -> Any:
        kept = F.dropout(x, 0.5, True)
        return F.dropout(kept[x[:, 0] > 0], 0.3, True) * 2, torch.rand(3) * 2

    compiled = jitmagic.jit(program, fullgraph=True)
    for make in MASKS.values():
        x = make()
        torch.manual_seed(0)
        found = compiled(x), torch.rand(2)
        torch.manual_seed(0)
        torch.testing.assert_close(found, (program(x), torch.rand(2)))


def test_masks_that_do_not_fit_raise_as_eager() -> None:
    x = torch.randn(ROWS, COLUMNS)
    for program in (
        lambda x, m: x[m] * 2,
        lambda x, m: torch.masked_select(x, m) * 2,
        lambda x, m: x[x > 0] @ x[0],
    ):
        for mask in (x[:5, :] > 0, x[:, :3] > 0, x[0, :0] > 0):
            assert outcome(jitmagic.jit(program), x, mask) == outcome(program, x, mask)


def test_a_new_count_needs_no_compiler() -> None:
    def program(x: torch.Tensor) -> Any:
        return (x[x > 0].exp() + 1).log().sum()

    compiled = jitmagic.jit(program, options={"keep": "compiled"})
    for _ in range(12):
        x = torch.randn(40, 7)
        torch.testing.assert_close(compiled(x), program(x))
    stages = [s.stage for r in handle_of(compiled).journal.records for s in r.stages]
    assert sum(stage.endswith("load") for stage in stages) == 2  # before the mask, and behind it


def alignment(logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    mask = labels != -100
    scores = (logits * 2).log_softmax(-1).transpose(0, 1)
    with torch.backends.cudnn.flags(enabled=False):
        return F.ctc_loss(
            scores, labels.masked_select(mask), lengths, mask.sum(-1), zero_infinity=True
        )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_purely_internal_data_dependent_size_runs_between_partitions(backend: str) -> None:
    compiled = jitmagic.jit(alignment, backend=backend, fullgraph=True)
    lengths = torch.tensor([20, 15, 18])
    for seed in range(4):
        torch.manual_seed(seed)
        x, labels = torch.randn(3, 20, 8), torch.randint(1, 8, (3, 6))
        for row in range(3):
            labels[row, 2 + (seed + row) % 5 :] = -100
        mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, wanted = compiled(mine, labels, lengths), alignment(other, labels, lengths)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(
            torch.autograd.grad(found, mine), torch.autograd.grad(wanted, other)
        )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_frame_without_inputs(backend: str) -> None:
    def made() -> torch.Tensor:
        return torch.arange(6.0)[torch.arange(6) % 2 == 0] * 2

    compiled = jitmagic.jit(made, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(), made())
