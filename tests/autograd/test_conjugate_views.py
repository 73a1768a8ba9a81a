"""Lazy conjugates: what is read through them, and whether what is returned is one, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

# Eager is right whenever a graph cannot be: that it says so is not what is looked for here.
pytestmark = pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")


def written_before_it_is_read(x: Tensor) -> Any:
    y = x * 2
    z = y.conj()
    y.mul_(1j)
    return z + 1, y


def beside_what_it_is_of(x: Tensor) -> Any:
    y = x * 2
    return y, y.conj()


def written_through(x: Tensor) -> Any:
    y = x * 2
    z = y.conj()
    z.mul_(3j)
    return y, z


def as_numbers(x: Tensor) -> Any:
    return torch.view_as_real(x.conj())


WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "input": lambda x: x.conj(),
    "result": lambda x: (x * 2).conj(),
    "read": lambda x: x.conj() * x,
    "turned": lambda x: (x + 1).mT.conj(),
    "adjoint": lambda x: x.mH + 0,
    "product": lambda x: x @ x.mH,
    "twice": lambda x: (x * 2).conj().conj(),
    "resolved": lambda x: x.conj().resolve_conj(),
    "resolved, not lazy": lambda x: (x * 2).resolve_conj(),
    "physical": lambda x: torch.conj_physical((x * 2).conj()),
    "part": lambda x: (x * 2).conj()[..., :1],
    "of a part": lambda x: (x * 2)[..., ::2].conj(),
    "reshaped": lambda x: (x * 2).conj().reshape(-1),
    "copied": lambda x: (x.conj().clone(), x.conj().contiguous()),
    "detached": lambda x: (x * 2).conj().detach(),
    "real": lambda x: (x * 2).conj().real,
    "several": lambda x: list((x * 2).conj().unbind(-1)),
    "written_before_it_is_read": written_before_it_is_read,
    "beside_what_it_is_of": beside_what_it_is_of,
    "transform": lambda x: torch.fft.ihfft(x.real),
    "transforms": lambda x: torch.fft.hfft(x, n=4),
}
OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "written_through": written_through,
    "as_numbers": as_numbers,
    "imaginary": lambda x: (x * 2).conj().imag,
    "input written": lambda x: x.conj().mul_(2),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x,
    "gaps": lambda x: x[:, ::2],
    "turned": lambda x: x.mT,
    "offset": lambda x: x[1:],
}


def shown(call: Callable[..., Any], layout: Callable[[Tensor], Tensor], grad: bool) -> Any:
    base = torch.complex(torch.arange(12.0), torch.linspace(-1, 0, 12)).reshape(3, 4)
    base.requires_grad_(grad)
    x = layout(base) if not grad else layout(base * 1)
    try:
        made = call(x)
    except RuntimeError as error:
        return [list(str(error).encode())]
    parts = made if isinstance(made, list | tuple) else [made]
    facts = [
        (t.is_conj(), t.is_neg(), t.shape, t.stride(), t.requires_grad, t._version)
        + (t.untyped_storage()._cdata == x.untyped_storage()._cdata,)
        + tuple(t.untyped_storage()._cdata == o.untyped_storage()._cdata for o in parts)
        for t in parts
    ]
    total = sum((t * t.conj()).real.sum() + t.real.sum() for t in parts)
    gradient = torch.autograd.grad(total, base)[0] if grad and total.requires_grad else None
    # The view reads what is written to the memory afterwards.
    with torch.no_grad():
        values = [t.detach().resolve_conj().resolve_neg().clone() for t in parts]
        parts[0].detach().mul_(1j if parts[0].is_complex() else 2)
        after = [t.detach().resolve_conj().resolve_neg().clone() for t in (*parts, x)]
    return facts, values, gradient, after


@covered(name=WHOLE, layout=LAYOUTS, backend=["native", "aot_eager"])
def test_a_conjugate_is_eagers_in_one_graph(name: str, layout: str, backend: str) -> None:
    program = WHOLE[name]
    compiled = jitmagic.jit(lambda x: program(x), fullgraph=True, backend=backend)
    for grad in (False, True):
        wanted = shown(program, LAYOUTS[layout], grad)
        have = shown(compiled, LAYOUTS[layout], grad)
        torch.testing.assert_close(have, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OTHERS)
def test_unsupported_conjugate_views_run_in_eager(name: str, layout: str) -> None:
    program = OTHERS[name]
    compiled = jitmagic.jit(lambda x: program(x))
    for grad in (False, True):
        wanted = shown(program, LAYOUTS[layout], grad)
        torch.testing.assert_close(shown(compiled, LAYOUTS[layout], grad), wanted)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
@pytest.mark.parametrize("inference", [False, True])
def test_edges(shape: tuple[int, ...], inference: bool) -> None:
    program = lambda x: (x.conj(), (x * 2).conj(), x.conj() + 1)  # noqa: E731
    compiled = jitmagic.jit(program, fullgraph=True)
    with torch.inference_mode(inference):
        x = torch.full(shape, complex(float("nan"), -0.0))
        wanted, have = program(x), compiled(x)
        assert [t.is_conj() for t in have] == [t.is_conj() for t in wanted]
        for one, other in zip(have, wanted, strict=True):
            bits = [torch.view_as_real(t.resolve_conj()).view(torch.int32) for t in (one, other)]
            torch.testing.assert_close(*bits)
