"""Writes to memory that is seen as other dtypes, through each kind of alias: the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

# Eager is right whenever a graph cannot be: that it says so is not what is looked for here.
pytestmark = pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    )
}
Alias = Callable[[Tensor], Tensor]
SEEN_AS: dict[str, Alias] = {
    **{name: lambda t, dtype=dtype: t.view(dtype) for name, dtype in DTYPES.items()},
    "view_as_real": torch.view_as_real,
    "view_as_complex": torch.view_as_complex,
    "imag": lambda t: t.imag,
}
SHARED: dict[str, Alias] = {
    "itself": lambda t: t,
    "data": lambda t: t.data,
    "detach": lambda t: t.detach(),
    "slice": lambda t: t[:, 1:3],
    "as_strided": lambda t: t.as_strided((2, 2), (4, 2), 1),
    "unsafe_split": lambda t: t.unsafe_split(2, 1)[1],
    "turned": lambda t: t.mT,
    "conj": lambda t: t.conj(),
    "uint8": lambda t: t.view(torch.uint8),
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "mul_": lambda t: t.mul_(2),
    "item": lambda t: t.__setitem__(0, 5),
    # In the low 16 bits a signalling NaN of bfloat16 and of float16; no byte of a canonical bool.
    "bits": lambda t: t.fill_(2 if t.dtype in (torch.bool, torch.uint8) else 0x7C81),
}


def numbers(dtype: torch.dtype) -> Tensor:
    if dtype is torch.bool:
        return torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0]], dtype=dtype)
    count = torch.arange(8).reshape(2, 4)
    if not dtype.is_floating_point and not dtype.is_complex:
        return (count * 37 + 3).to(dtype)
    return (count * 0.75 - 2.5).to(dtype)


def program(alias: Alias, write: Callable[[Tensor], object], copied: bool, back: bool) -> Alias:
    """Writes through the alias, or (`back`) to what it is one of; to the input or to a copy."""

    def run(x: Tensor) -> tuple[Tensor, ...]:
        base = x.clone() if copied else x
        seen = alias(base)
        write(base if back else seen)
        return seen.clone(), seen, base

    return run


def outcome(run: Callable[[Tensor], object], dtype: torch.dtype) -> object:
    x = numbers(dtype)
    try:
        made = run(x)
    except Exception as error:  # what eager raises is what is compared
        return type(error)
    assert isinstance(made, tuple)
    return [(t.dtype, tuple(t.shape), _bytes(t)) for t in (*made, x)]


def _bytes(t: Tensor) -> list[int]:
    """The memory, not the values: a copy of bools would make every byte but 0 a 1."""
    t = t.detach().resolve_conj().resolve_neg()
    storage = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
    size, width = (*t.shape, t.element_size()), t.element_size()
    stride = (*(step * width for step in t.stride()), 1)
    return storage.as_strided(size, stride, t.storage_offset() * width).flatten().tolist()


def chains(dtype: torch.dtype, write: str) -> Iterator[tuple[str, Alias]]:
    """Yield views of the dtype as another dtype, followed by an aliasing operation."""
    for (first, seen), (second, shared) in itertools.product(SEEN_AS.items(), SHARED.items()):
        try:
            shared(seen(numbers(dtype)))
        except (RuntimeError, IndexError, TypeError):  # TypeError since torch 2.15
            continue
        yield f"{first}.{second}", lambda t, seen=seen, shared=shared: shared(seen(t))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_after_a_write(dtype: str, write: str) -> None:
    compare(DTYPES[dtype], write, "aot_eager", every=23)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "complex64"])
def test_bytes_after_a_write_in_generated_code(dtype: str) -> None:
    compare(DTYPES[dtype], "bits", "native", every=59)


def written_parts(z: Tensor) -> None:
    z.real.mul_(3)
    z.imag[0] = 5


def written_turned(z: Tensor) -> None:
    z.mT.real.add_(z.imag.mT)


def written_pairs(z: Tensor) -> None:
    torch.view_as_real(z)[..., 1:].copy_(z.real.unsqueeze(-1))


def written_as_complex(z: Tensor) -> None:
    torch.view_as_complex(torch.view_as_real(z)[:1]).mul_(1j)


PARTS: dict[str, Alias] = {
    "all": lambda z: z,
    "columns": lambda z: z[:, ::2],
    "turned": lambda z: z.mT,
}


@covered(
    write=[written_parts, written_turned, written_pairs, written_as_complex],
    part=PARTS,
    kind=["input", "copy", "gradient"],
)
def test_parts_of_complex_numbers_are_written_in_one_graph(
    write: Callable[[Tensor], None], part: str, kind: str
) -> None:
    def run(x: Tensor) -> Tensor:
        z = x if kind == "input" else x * 2
        write(PARTS[part](z))
        return z * z

    found = []
    for call in (run, jitmagic.jit(run, fullgraph=True)):
        x = numbers(torch.complex64).mul(1 - 2j).requires_grad_(kind == "gradient")
        made = call(x)
        found.append([made, x])
        if kind == "gradient":
            found[-1] += torch.autograd.grad(made.abs().sum(), x)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def compare(dtype: torch.dtype, write: str, backend: str, every: int) -> None:
    cases = itertools.product(chains(dtype, write), (False, True), (False, True))
    for (name, alias), copied, back in itertools.islice(cases, None, None, every):
        run = program(alias, WRITES[write], copied, back)
        got = outcome(jitmagic.jit(run, backend=backend), dtype)
        assert got == outcome(run, dtype), (name, copied, back)
