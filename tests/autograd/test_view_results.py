"""Results that are views: autograd knows of them what it knows in eager, their base, history and
version counter, and whether they may be written to.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from tests.covering import covered

from ..programs.counts import counts_of

Views = Callable[[Tensor], Any]


def _written(view: Tensor) -> Tensor:
    return view.add_(1)


VIEWS: dict[str, Views] = {
    "view": lambda x: x.reshape(2, 8),
    "transpose": lambda x: x.T,
    "all": lambda x: x[...],
    "index": lambda x: x[1:, None, 2],
    "expand": lambda x: x[:1].expand(3, 4),
    "windows": lambda x: x.unfold(0, 2, 1),
    "view_as": lambda x: x.view_as(x),
    "real": lambda x: x.real,
    "complex": lambda x: torch.view_as_complex(x.view(4, 2, 2)),
    "bits": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach(),
    "detach, view": lambda x: x.detach().t(),
    "detach, written": lambda x: _written(x.detach()),
    "data": lambda x: x.data,
    "data, written": lambda x: (x.detach(), _written(x.data), x.t()),
    "chunk": lambda x: x.chunk(2),
    "second chunk": lambda x: x.chunk(2)[1],
    "view of a chunk": lambda x: x.chunk(2)[1].t(),
    "split": lambda x: x.split([1, 3], 1),
    "split_with_sizes": lambda x: torch.split_with_sizes(x, [3, 1]),
    "unbind": lambda x: x.unbind(1),
    "rows": lambda x: list(x),
    "tensor_split": lambda x: x.tensor_split(3),
    "hsplit": lambda x: torch.hsplit(x, 2),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2),
    "unsafe_split": lambda x: torch.unsafe_split(x, 1),
    "part of unsafe_split": lambda x: x.unsafe_split_with_sizes([1, 3], 1)[1].t(),
    "as_strided": lambda x: x.as_strided((3, 2), (1, 4)),
    "as_strided of a view": lambda x: x[1:].as_strided((2, 3), (4, 2)),
    "as_strided that overlaps": lambda x: x.as_strided((4, 4), (3, 1)),
    "views of a view": lambda x: (lambda v: (v, v[0], v.detach(), v.data, v.chunk(2)))(x.t()),
}


def quietly(view: Views) -> Views:
    def program(x: Tensor) -> Any:
        with torch.no_grad():
            return view(x)

    return program


def of_a_result(view: Views) -> Views:
    def program(x: Tensor) -> Any:
        y = x * 2
        return y, view(y)

    return program


def before_a_write(view: Views) -> Views:
    def program(x: Tensor) -> Any:
        y = x * 2
        made = view(y)
        y.add_(1)
        return y, made

    return program


def after_a_break(view: Views) -> Views:
    def program(x: Tensor) -> Any:
        made = view(x)
        jitmagic.graph_break()
        return made

    return program


def written_after_a_break(view: Views) -> Views:
    def program(x: Tensor) -> Any:
        y = x * 2
        made = view(y)
        jitmagic.graph_break()
        next(tensors_in(made)).add_(1)
        return y, made

    return program


def written_inside(view: Views) -> Views:
    def program(x: Tensor) -> Any:
        y = x * 2
        made = view(y)
        next(tensors_in(made)).add_(1)
        return y, made

    return program


PROGRAMS: dict[str, Callable[[Views], Views]] = {
    "of an input": lambda view: view,
    "of an input, no_grad": quietly,
    "of a result": of_a_result,
    "of a result, no_grad": lambda view: of_a_result(quietly(view)),
    "before a write": before_a_write,
    "before a write, no_grad": lambda view: before_a_write(quietly(view)),
    "after a break": after_a_break,
    "after a break, no_grad": lambda view: after_a_break(quietly(view)),
    "written after a break": written_after_a_break,
    "written after a break, no_grad": lambda view: written_after_a_break(quietly(view)),
    "written inside": written_inside,
}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "leaf": lambda: torch.arange(16.0).view(4, 4).requires_grad_(),
    "plain": lambda: torch.arange(16.0).view(4, 4),
    "made": lambda: torch.arange(16.0).view(4, 4).requires_grad_() * 1,
    "view": lambda: (torch.arange(20.0).view(5, 4).requires_grad_() * 1)[1:],
}
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def attempt(act: Callable[[], object]) -> object:
    """Return the result, or the type and text of the error."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error)


def described(tensor: Tensor) -> list[object]:
    """Return what autograd records of a tensor. For non-views the node may be jitmagic's."""
    view = tensor._is_view()
    history = attempt(lambda: tensor.grad_fn and type(tensor.grad_fn).__name__)
    return [
        tensor.requires_grad,
        view,
        view and torch._C._autograd._get_creation_meta(tensor).name,
        history if view or not isinstance(history, str) else "some node",
        view and attempt(lambda: tensor.output_nr),
        tensor.is_inference() or tensor._version,
        (tensor.shape, tensor.stride(), tensor.dtype),
    ]


def observed(program: Views, make: Callable[[], Tensor], mode: type) -> list[object]:
    """All that can be seen of the results, also by writing to them and by their gradients."""
    x = make()
    with mode():
        made = attempt(lambda: program(x))
    results = list(tensors_in(made)) if isinstance(made, Tensor | tuple | list) else []
    facts: list[object] = [made if not results else None, [described(r) for r in results]]
    everything = [x, *results]
    facts.append([[one._base is other for other in everything] for one in everything])
    places = [one.untyped_storage().data_ptr() for one in everything]
    facts.append([[one == other for other in places] for one in places])
    facts.append([attempt(lambda: r.mul_(2) is r) for r in results])  # noqa: B023
    facts.append([one.is_inference() or one._version for one in everything])
    wanted = [r for r in results if r.requires_grad]
    facts.append([attempt(lambda: _gradient(r, x)) for r in wanted])  # noqa: B023
    return [*facts, *(one.detach() for one in everything)]


def _gradient(result: Tensor, x: Tensor) -> Tensor | None:
    weights = torch.arange(1.0, result.numel() + 1).view(result.shape)
    loss = (result * weights).abs().sum()
    return torch.autograd.grad(loss, x, retain_graph=True, allow_unused=True)[0]


def assert_same(ours: object, eager: object, where: str) -> None:
    if isinstance(ours, list) and isinstance(eager, list):
        assert len(ours) == len(eager), where
        for number, pair in enumerate(zip(ours, eager, strict=True)):
            assert_same(*pair, f"{where} {number}")
    elif isinstance(ours, Tensor) and isinstance(eager, Tensor):
        assert torch.equal(ours, eager), where
    else:
        assert ours == eager, where


@covered(view=VIEWS, kind=PROGRAMS, mode=MODES)
def test_as_eager(view: str, kind: str, mode: type) -> None:
    program = PROGRAMS[kind](VIEWS[view])
    tagged = jitmagic.jit(program, backend="aot_eager")
    for name, make in INPUTS.items():
        eager = observed(program, make, mode)
        for call in range(2):
            assert_same(observed(tagged, make, mode), eager, f"{name}, call {call}:")


@pytest.mark.parametrize("view", ["view", "index", "chunk", "detach", "data, written"])
def test_as_eager_with_kernels(view: str) -> None:
    for kind in ("of an input", "of a result, no_grad", "before a write"):
        program = PROGRAMS[kind](VIEWS[view])
        tagged = jitmagic.jit(program)
        for make in INPUTS.values():
            eager = observed(program, make, torch.enable_grad)
            assert_same(observed(tagged, make, torch.enable_grad), eager, kind)


@pytest.mark.parametrize("view", VIEWS)
def test_in_one_graph(view: str) -> None:
    """Nothing of this is a break or a fallback."""
    for kind in ("of an input", "of an input, no_grad", "of a result, no_grad"):
        tagged = jitmagic.jit(PROGRAMS[kind](VIEWS[view]), backend="aot_eager")
        with warnings.catch_warnings():
            warnings.simplefilter("error", jitmagic.FallbackWarning)
            tagged(INPUTS["plain"]())
        assert counts_of(tagged).breaks == 0


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("kind", ["of an input", "of an input, no_grad", "after a break"])
def test_offsets_into_the_storage_of_an_input(kind: str, mode: type) -> None:
    """They count from where the storage begins, which is guarded: a view begins elsewhere."""
    program = PROGRAMS[kind](lambda x: torch.as_strided(x, (3, 2), (1, 2), 3))
    tagged = jitmagic.jit(program, backend="aot_eager")
    for name in ("leaf", "view", "plain", "made", "view"):
        for call in range(2):
            eager = observed(program, INPUTS[name], mode)
            assert_same(observed(tagged, INPUTS[name], mode), eager, f"{name}, call {call}:")


@pytest.mark.parametrize("seen", [torch.int32, torch.int16, torch.float32])
def test_as_strided_of_an_input_seen_as_another_dtype_is_eagers(seen: torch.dtype) -> None:
    program = lambda x: x.view(seen).as_strided((3, 2), (1, 4)) + 0  # noqa: E731
    tagged, x = jitmagic.jit(program, backend="aot_eager"), torch.arange(16.0).view(4, 4)
    assert torch.equal(tagged(x), program(x))


def _written_then_filled(x: Tensor) -> Tensor:
    x.select(0, 0).add_(x.select(0, -1))
    return x.fill_diagonal_(0) + 1


def _written_then_restrided(x: Tensor) -> Tensor:
    x.mul_(2)
    x.as_strided((2, 2), (2, 1)).add_(1)
    return x * 2


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("program", [_written_then_filled, _written_then_restrided])
def test_strides_of_an_input_that_was_written_to_are_its_own(program: Views, backend: str) -> None:
    """The written value is dense, while the input's memory may have gaps."""
    memory = torch.arange(60.0)
    layouts: list[Views] = [
        lambda m: m[:20].view(4, 5),
        lambda m: m[:24].view(4, 6)[:, :3],
        lambda m: m[:28].view(7, 4)[:, 1:3],
        lambda m: m[:20].view(5, 4).mT,
        lambda m: m[:32].view(8, 4)[::2],
        lambda m: m[30:36].view(3, 2),
    ]
    tagged = jitmagic.jit(program, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jitmagic.FallbackWarning)
        for lie in layouts:
            ours, eager = memory.clone(), memory.clone()
            assert torch.equal(tagged(lie(ours)), program(lie(eager)))
            assert torch.equal(ours, eager)


def test_as_strided_beyond_an_input_is_eagers() -> None:
    """No graph models memory before, after or in the gaps of a view."""
    program = lambda x: x.as_strided((2, 2), (6, 1)) * 2  # noqa: E731
    tagged, memory = jitmagic.jit(program), torch.arange(40.0)
    for x in (memory[:4], memory[8:12], memory[:30].view(5, 6)[:, :2], memory[:30].view(5, 6)):
        assert torch.equal(tagged(x), program(x))
    whole = jitmagic.jit(program, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        assert torch.equal(whole(memory.view(5, 8)), program(memory))


def write_to_a_part(x: Tensor) -> Tensor:
    first, second = x.unbind(0)
    first.add_(1)
    return first + second


def write_to_one_of_a_result(x: Tensor) -> Tensor:
    part = (x * 2).split(1)[1]
    part.mul_(3)
    return part


def write_to_what_no_grad_gave(x: Tensor) -> Tensor:
    with torch.no_grad():
        part = (x * 2)[0]
    x = x * 2
    with torch.no_grad():
        row = x[0]
    row.add_(1)
    return x + row + part


@pytest.mark.parametrize(
    "program", [write_to_a_part, write_to_one_of_a_result, write_to_what_no_grad_gave]
)
def test_writes_that_eager_refuses_raise_at_the_users_line(program: Views) -> None:
    def error_of(run: Views) -> tuple[str, int | None]:
        with pytest.raises(RuntimeError, match=r"is being modified inplace") as caught:
            run(torch.ones(2, 3, requires_grad=True) * 2)
        lines = [f for f in traceback.extract_tb(caught.tb) if f.name == program.__name__]
        return str(caught.value), lines[-1].lineno

    tagged = jitmagic.jit(program)
    assert error_of(tagged) == error_of(program)
    assert error_of(tagged) == error_of(program)
    allowed: AbstractContextManager[None] = torch.no_grad()
    with allowed:
        x = torch.ones(2, 3, requires_grad=True) * 2
        assert torch.equal(tagged(x.clone()), program(x.clone()))


def test_one_view_that_may_be_written_is_a_plain_result() -> None:
    """Nobody has its base, and making the view would cost more than many a kernel."""
    tagged = jitmagic.jit(lambda x: (x * 2)[1])
    row = tagged(torch.ones(4, 4, requires_grad=True))
    assert not row._is_view()
    row.mul_(3)
    row.sum().backward()


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("view", VIEWS)
def test_view_of_another_result_has_eagers_strides(view: str, backend: str) -> None:
    """Equal calls are computed once; the copy that the second result gets is of the whole."""

    def program(x: Tensor) -> Any:
        return x * 2, *tensors_in(VIEWS[view](x * 2))

    tagged = jitmagic.jit(program, backend=backend)
    for make in INPUTS.values():
        ours, eager = tagged(make()), program(make())
        for mine, other in zip(ours, eager, strict=True):
            assert (mine.stride(), mine.storage_offset()) == (
                other.stride(),
                other.storage_offset(),
            )
            assert torch.equal(mine, other)
            assert mine is ours[0] or mine.data_ptr() != ours[0].data_ptr()


def test_views_of_buffers() -> None:
    class Rolling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("past", torch.zeros(4, 2))
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            self.past[0] = x.detach()
            return self.past[1:], self.past.data, self.weight[None], x * self.weight

    def facts(model: nn.Module, run: Callable[..., Any]) -> list[object]:
        recent, past, weight, _ = run(torch.tensor([1.0, 2.0]))
        past.add_(1)
        bases = recent._base is model.past, past._base is None, weight._base is model.weight
        return [bases, model.past._version, past._version, *map(described, (recent, past, weight))]

    ours, theirs = Rolling(), Rolling()
    assert facts(ours, jitmagic.jit(ours)) == facts(theirs, theirs)


def test_versions_of_results_are_the_writes_of_the_program() -> None:
    def program(x: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        y = (x * 2).add_(1)
        y[0] = 3
        state.add_(1).mul_(2)
        return y, y.mul_(1) * 2, torch.zeros(2).normal_(), state.data.add_(1)

    for grad in (False, True):
        tagged = jitmagic.jit(program)
        x, mine, other = torch.ones(2, 2, requires_grad=grad), torch.zeros(2), torch.zeros(2)
        ours, theirs = tagged(x, mine), program(x, other)
        versions = [one._version for one in (*ours, mine)]
        assert versions == [one._version for one in (*theirs, other)] == [3, 0, 1, 1, 2]


def test_views_of_a_buffer_made_inside() -> None:
    """It is the base of its views, wherever its history is from, and counts writes through them."""

    def filled(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.zeros(2, 2)
        y[0] = x
        return y, y[0], y.unbind(0)[1]

    def written(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.zeros(2, 2)
        part = y[:1]
        torch.add(x.detach(), 1, out=part[0])
        return y, part, y.detach()

    for program in (filled, written):
        tagged = jitmagic.jit(program)
        x = torch.ones(2, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", jitmagic.FallbackWarning)
            ours, theirs = tagged(x), program(x)
        assert [one._base is ours[0] for one in ours] == [one._base is theirs[0] for one in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
            assert described(one)[:3] == described(other)[:3]
            assert one._version == other._version
        assert counts_of(tagged).breaks == 0


def test_what_backward_has_saved_may_not_be_written_through_a_view() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return y, y[0], y.detach()

    for place in (1, 2):
        errors = []
        for run in (jitmagic.jit(program), program):
            made = run(torch.ones(2, 3, requires_grad=True))
            made[place].add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
                made[0].sum().backward()
            errors.append(str(caught.value)[:60])
        assert errors[0] == errors[1]


def _written_column(x):
    column = (x + 1)[:, 1]
    column.add_(1)
    return column


def _written_turned(x):
    turned = (x * 2)[:, ::2].t()
    turned.mul_(torch.ones_like(turned))
    return turned, turned * 2


def _written_steps(x):
    steps = x.reshape(-1).clone()[::3]
    steps[1:] = 2
    return steps


def _written_page(x):
    pages = x.expand(3, *x.shape).contiguous()
    page = pages[1:, :, 0]
    page.zero_()
    return page


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize(
    "program", [_written_column, _written_turned, _written_steps, _written_page]
)
def test_written_views_have_eagers_strides(program, grad, backend):
    x = torch.randn(2, 4, requires_grad=grad)
    got = jitmagic.jit(program, backend=backend, fullgraph=True)(x)
    want = program(x)
    pairs = zip(*(y if isinstance(y, tuple) else (y,) for y in (got, want)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
        assert one.storage_offset() == other.storage_offset()
        assert one.requires_grad == other.requires_grad
