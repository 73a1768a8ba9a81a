"""Ints that are data: a graph made for one int gives eager's results, to the last bit, for others.

Each function is called with ints that make the first variant one of a constant and the second one
of data; `variants` says which of them there are.
"""

from __future__ import annotations

import enum
import math
import operator
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import RecompileWarning
from jitmagic.guards.guard import InRange, ValueEquals
from jitmagic.guards.source import Argument
from jitmagic.trace.result import Trace

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
NARROW = (torch.float16, torch.bfloat16)
# The first is a constant; then ints at the ends of what dtypes hold.
VALUES = [3, 1, 7, 255, 256, 1023, 1024, 70001, 2**31 - 1, -1, -3, -1023, -1024, -(2**31)]
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
FLOORING = [operator.floordiv, operator.mod, torch.fmod]
BITWISE = [operator.and_, operator.or_, operator.xor]
SHIFTS = [operator.lshift, operator.rshift]


def traces(compiled: Any) -> list[Trace]:
    handle = handle_of(compiled)
    assert handle is not None
    found = (record.result("trace") for record in handle.journal)  # a backward has none
    return [traced for traced in found if traced is not None]


def variants(compiled: Any) -> str:
    """ "c" for each variant with a constant int, "d" for each whose numbers are data."""
    return "".join("d" if any(e.is_scalar for e in t.inputs) else "c" for t in traces(compiled))


def tensor_of(dtype: torch.dtype) -> Tensor:
    if dtype is torch.bool:
        return torch.tensor([[True, False, True]] * 5)
    if dtype.is_floating_point:
        special = [0.0, -0.0, 1.0, -1.0, 7.0, float("inf"), float("-inf"), float("nan"), 255.5]
        return torch.cat([torch.tensor(special), torch.randn(40) * 300]).to(dtype)
    info = torch.iinfo(dtype)
    ends = torch.tensor([info.min, info.max, 0, 1, 3, 7, info.max - 1], dtype=dtype)
    return torch.cat([ends, torch.randint(info.min // 4, info.max // 4, (30,)).to(dtype)])


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return program(*args)
    except (RuntimeError, ZeroDivisionError, TypeError, OverflowError) as error:
        return type(error)


def same(got: Any, wanted: Any) -> bool:
    """Dtypes, shapes and bits; of nans only that they are."""
    if isinstance(wanted, tuple | list):
        return len(got) == len(wanted) and all(map(same, got, wanted))
    if isinstance(wanted, dict):
        return list(got) == list(wanted) and all(map(same, got.values(), wanted.values()))
    if not isinstance(wanted, Tensor):
        return type(got) is type(wanted) and got == wanted
    alike = (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    if not alike or not wanted.dtype.is_floating_point:
        return alike and torch.equal(got, wanted)
    signs = torch.equal(got.signbit() & ~got.isnan(), wanted.signbit() & ~wanted.isnan())
    return (
        signs
        and torch.equal(got.nan_to_num(0.5), wanted.nan_to_num(0.5))
        and torch.equal(got.isnan(), wanted.isnan())
    )


def agrees(program: Callable[..., Any], x: Tensor, values: Iterable[int] = VALUES) -> str:
    """The program gives eager's results for all ints; which variants were made of it."""
    compiled = jitmagic.jit(program, options={"recompile_limit": 32})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jitmagic.FallbackWarning)
        for value in values:
            mine, given = x.clone(), x.clone()
            wanted, got = outcome(program, mine, value), outcome(compiled, given, value)
            assert same(got, wanted), (value, got, wanted)
            assert same(given, mine), value
    return variants(compiled)


def programs_of(dtype: torch.dtype) -> list[Callable[[Tensor, int], Any]]:
    """What is data beside tensors of the dtype, an int on the right and on the left."""
    products = [operator.mul, operator.add] if dtype is torch.bool else ARITHMETIC[:3]
    right: list[Any] = [*products, operator.truediv, *COMPARISONS]
    left: list[Any] = [*products, *COMPARISONS]
    if dtype.is_floating_point:
        left.append(operator.truediv)
    else:
        right += BITWISE
        left += BITWISE
    if dtype not in NARROW:
        right += FLOORING
    on_the_right = [lambda x, i, op=op: op(x, i) for op in right]
    return [*on_the_right, *(lambda x, i, op=op: op(i, x) for op in left)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators(dtype: torch.dtype) -> None:
    programs = programs_of(dtype)

    def program(x: Tensor, i: int) -> list[Tensor]:
        return [each(x, i) for each in programs]

    limits = torch.iinfo(dtype if dtype in INTEGERS else torch.int64)
    values = [value for value in VALUES if limits.min <= value <= limits.max]
    wanted = "cd"  # that the number is not zero is guarded
    if dtype in NARROW:  # no remainders; 2**31 is beyond what is converted alike, so is 70001
        wanted = "cdcc" if dtype is torch.bfloat16 else "cdccc"
    assert agrees(program, tensor_of(dtype), values) == wanted


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    def program(x: Tensor, i: int) -> list[Tensor]:
        return [x << i, x >> i]

    bits = torch.iinfo(dtype).bits
    assert agrees(program, tensor_of(dtype), [1, 2, bits - 1, bits, bits + 1, 1024]) == "cdccc"


IN_PLACE: dict[str, Callable[[Tensor, int], Any]] = {
    "add": lambda x, i: x.add_(i),
    "iadd": lambda x, i: operator.iadd(x, i),
    "isub": lambda x, i: operator.isub(x, i),
    "imul": lambda x, i: operator.imul(x, i),
    "fill": lambda x, i: x.fill_(i),
    "item": lambda x, i: operator.setitem(x, slice(2, 3), i),
    "mask": lambda x, i: operator.setitem(x, x > 3, i),
    "masked fill": lambda x, i: x.masked_fill_(x > 3, i),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_writes(name: str, dtype: torch.dtype) -> None:
    values = [3, 1, 1023, 1024, 65504, -7]
    assert agrees(IN_PLACE[name], tensor_of(dtype), values) == "cd"


VALUED: dict[str, Callable[[Tensor, int], Any]] = {
    "clamp": lambda x, i: (x.clamp(i), x.clamp(max=i), torch.clamp(x, min=-5, max=i)),
    "clip": lambda x, i: (x.clip(-3, i), x.clamp_min(i), x.clamp_max(i)),
    "where": lambda x, i: (torch.where(x > 3, x, i), torch.where(x > 3, i, x), x.where(x > 3, i)),
    "masked fill": lambda x, i: (x.masked_fill(x > 3, i), torch.masked_fill(x, x < i, i)),
    "full like": lambda x, i: (torch.full_like(x, i), torch.full_like(x, i, dtype=torch.int32)),
    "full": lambda x, i: (torch.full((2, 3), i), x.new_full((2,), i)),
    "tensor": lambda x, i: (torch.tensor(i), torch.tensor(i, dtype=torch.float32) * x),
}


@pytest.mark.parametrize("name", VALUED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
def test_values(name: str, dtype: torch.dtype) -> None:
    assert agrees(VALUED[name], tensor_of(dtype), [3, 1, 1023, 1024, 2**31 - 1, -7]) == "cd"


def test_out_of_an_integer_dtype_eager_is_asked() -> None:
    """`fill_(300)` raises for uint8: a constant, whose graph is never made."""
    x = torch.zeros(4, dtype=torch.uint8)
    agrees(lambda x, i: x.masked_fill(x == 0, i), x, [3, 255, 256])
    agrees(lambda x, i: torch.full_like(x, i), x, [3, 255, -1])


PYTHON: dict[str, Callable[[Tensor, int], Any]] = {
    "decay": lambda x, i: x * 0.9**i,
    "mean": lambda x, i: x / (1 + i) + 1 / (1 + i),
    "polynomial": lambda x, i: x * (i * 2 + 1) - (3 - i) * x + i**2,
    "floor": lambda x, i: x * (i // 3) + x * (i % 3) + x * (100 // i) + x * (100 % i),
    "bits": lambda x, i: x * (i >> 1) + (i & 7) * x + (i | 8) * x + (i ^ 5) * x + (i << 2) * x,
    "signs": lambda x, i: x * -i + x * +i + x * ~i + x * abs(i),
    "float": lambda x, i: x * float(i) + x * (i * 0.25) - (0.5 - i) * x + x * int(i),
    "ratio": lambda x, i: x * (i / 7) + x * (i / (i + 1)),
    "bool": lambda x, i: x * (True + i) if i else x,
    "inverse power": lambda x, i: x * (i + 1.5) ** -0.75,
    "branch": lambda x, i: x * i if i > 0 and i != 0 and i >= 1 else x,
    "none": lambda x, i: x if i is None or i == "a" else x * i,
    "kind": lambda x, i: x * i if isinstance(i, int) and not isinstance(i, bool) else x,
    "square": lambda x, i: x * (i * 0.1) ** 2,
    "wave": lambda x, i: x * (1 + math.cos(math.pi * i / 10)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PYTHON)
def test_arithmetic_of_python(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(33, dtype=dtype)
    assert agrees(PYTHON[name], x, [3, 1, 2, 5, 7, 100, 999, 1023]) == "cd"


def test_a_comparison_narrows_the_range() -> None:
    def program(x: Tensor, i: int) -> Tensor:
        return x * i if i < 100 else x + i

    assert agrees(program, torch.randn(5), [3, 1, 99, 100, 1023, 50]) == "cdd"
    assert agrees(lambda x, i: x * i if i == 5 else x - i, torch.ones(3), [3, 1, 5, 6, 2]) == "cdd"
    assert agrees(lambda x, i: x * i if i < 5.5 else x - i, torch.ones(3), [3, 1, 5, 6, 2]) == "cdd"


class Level(enum.IntEnum):
    LOW = 2


CONSTANT: dict[str, Callable[[Tensor, int], Any]] = {
    "range": lambda x, i: sum((x * k for k in range(i)), x),
    "list": lambda x, i: x * [1.0, 2.0, 3.0, 4.0, 5.0, 6.0][i],
    "repetition": lambda x, i: x * len([0] * i),
    "text": lambda x, i: (x, {f"{i}": 1}),
    "enum": lambda x, i: x if i == Level.LOW else -x,
    "complex": lambda x, i: x if i == 2 + 0j else -x,
    "format": lambda x, i: (x, len("{}".format(i))),  # noqa: UP032
    "key": lambda x, i: {i: x},
    "dim": lambda x, i: x.view(1, 1, 1, 1, 1, 1, 12).sum(i),
    "big": lambda x, i: x * (i << 60),
    "power": lambda x, i: x * float(2**i),
    "bits": lambda x, i: x * i.bit_length(),
    "round": lambda x, i: x * round(i, 1),
    "is": lambda x, i: x if i is x.dim() + 3 else -x,
}


@pytest.mark.parametrize("name", CONSTANT)
def test_whatever_else_is_done_makes_it_a_constant(name: str) -> None:
    values = [1, 2, 5, 4]
    x = torch.arange(12) % 2 + 1.0  # exact powers: the bits of others are each kernel's own
    assert agrees(CONSTANT[name], x, values) == "cccc"


SIZES: dict[str, Callable[[Tensor, int], Any]] = {
    "slice": lambda x, i: x[:i],
    "shape": lambda x, i: x.new_zeros(i),
    "view": lambda x, i: x.repeat(i),
    "roll": lambda x, i: x.roll(i),
    "index": lambda x, i: x[i] * x[-i] * x[2 * i - 1 :],
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_or_an_index_is_a_symbol(name: str) -> None:
    assert agrees(SIZES[name], torch.arange(12) + 1.0, [5, 2, 3, 4]) == "cd"


def test_a_remainder_is_guarded() -> None:
    assert agrees(lambda x, i: x if i % 2 else -x, torch.ones(3), [1, 2, 5, 4, 7, 8]) == "ccc"


class Holder:
    def __init__(self) -> None:
        self.step = 3
        self.rate = 0.25


def held_by(kind: str, holder: Holder, table: dict[str, Any], numbers: list[Any]) -> Any:
    """A function of x that reads an int and a float from somewhere, and how to set them."""
    step, rate = 3, 0.25

    def attribute(x: Tensor) -> Tensor:
        return x * holder.step + holder.rate

    def of_dict(x: Tensor) -> Tensor:
        return x * table["step"] + table["rate"]

    def of_list(x: Tensor) -> Tensor:
        return x * numbers[0] + numbers[1]

    def of_global(x: Tensor) -> Tensor:
        return x * STEP + RATE

    def of_cell(x: Tensor) -> Tensor:
        return x * step + rate

    def set_all(number: int, ratio: float) -> None:
        nonlocal step, rate
        global STEP, RATE
        step, rate = holder.step, holder.rate = number, ratio
        table.update(step=number, rate=ratio)
        numbers[:] = [number, ratio]
        STEP, RATE = number, ratio

    return locals()[kind], set_all


STEP, RATE = 3, 0.25
PLACES = ["attribute", "of_dict", "of_list", "of_global", "of_cell"]


@pytest.mark.parametrize("place", PLACES)
def test_numbers_from_anywhere(place: str) -> None:
    program, set_all = held_by(place, Holder(), {"step": 3, "rate": 0.25}, [3, 0.25])
    compiled, x = jitmagic.jit(program), torch.randn(8)
    for step in range(5, 40):
        set_all(step, step / 64)
        assert same(compiled(x), program(x))
    assert variants(compiled) == "cd"
    assert sum(entry.is_scalar for entry in traces(compiled)[1].inputs) == 2


def test_a_counter_that_the_function_moves() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return x / self.steps

    model = Model()
    compiled = jitmagic.jit(model)
    x = torch.randn(5)
    for n in range(1, 30):
        assert same(compiled(x), x / n)
        assert type(model.steps) is int and model.steps == n
    assert variants(compiled) == "cd"


def test_settings_of_instances_are_no_counters() -> None:
    class Scale(torch.nn.Module):
        def __init__(self, factor: int) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor) -> Tensor:
            print(end="")
            return x * self.factor

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList([Scale(2), Scale(3), Scale(5)])

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts:
                x = part(x)
            return x

    compiled, x = jitmagic.jit(Net()), torch.randn(5)
    assert same(compiled(x), x * 2 * 3 * 5)
    handle = handle_of(compiled)
    assert handle is not None
    inputs = [entry for t in traces(compiled) for entry in t.inputs]
    assert not any(entry.is_scalar for entry in inputs)


def test_a_training_loop_compiles_twice() -> None:
    weight = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    other = weight.detach().clone().requires_grad_()

    def step(weight: Tensor, x: Tensor, epoch: int) -> Tensor:
        return ((x @ weight) * 0.97**epoch / (epoch + 1) - epoch).square().mean()

    compiled = jitmagic.jit(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for epoch in range(1000):
            x = torch.full((4, 6), 0.01 * epoch, dtype=torch.float64)
            for leaf, program in ((weight, compiled), (other, step)):
                leaf.grad = None
                program(leaf, x, epoch).backward()
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad, other.grad, rtol=1e-12, atol=1e-12)
    assert variants(compiled) == "cd"


GRADIENTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "product": lambda x, i: x * i,
    "quotient": lambda x, i: x / i + i / x,
    "difference": lambda x, i: i - x,
    "clamp": lambda x, i: x.clamp(-i, i),
    "where": lambda x, i: torch.where(x > i, x, i) + x.masked_fill(x < -i, i),
    "remainder": lambda x, i: x % i,
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    program = GRADIENTS[name]
    compiled = jitmagic.jit(program)
    x = torch.tensor([0.5, -0.5, 2.0, -2.0, 3.0, 7.5, -9.25], dtype=dtype)
    for i in (3, 1, 2, 5, 7):
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, wanted = compiled(mine, i), program(theirs, i)
        assert same(got.detach(), wanted.detach())
        got.sum().backward()
        wanted.sum().backward()
        assert same(mine.grad, theirs.grad), i
    assert variants(compiled) == "cd"


def test_one_number_is_data_though_another_cannot_be() -> None:
    def program(x: Tensor, i: int, rate: float, at: int) -> Tensor:
        return x * i * rate + len(f"{at}")

    compiled, x = jitmagic.jit(program), torch.randn(12)
    for n in range(1, 7):
        assert same(compiled(x, n, n / 8, n), program(x, n, n / 8, n))
        assert same(compiled(x, n + 9, n / 9, n), program(x, n + 9, n / 9, n))
    read = [{entry.name for entry in t.inputs if entry.is_scalar} for t in traces(compiled)]
    assert read == [set()] + [{"i", "rate"}] * 6


def test_ints_that_leave_the_graph() -> None:
    def program(x: Tensor, i: int) -> tuple[Tensor, int, int, float]:
        return x * i, i, i * 3 - 7, i * 0.5

    compiled, x = jitmagic.jit(program), torch.randn(4)
    for i in (5, 4, 1023, 1024, 2**31 - 1, -7):
        assert same(compiled(x, i), program(x, i))
    assert variants(compiled) == "cd"


def test_across_a_graph_break() -> None:
    def program(x: Tensor, i: int) -> Tensor:
        twice = i * 2
        y = x * twice
        print(end="")
        return y + twice

    compiled, x = jitmagic.jit(program), torch.randn(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for i in range(1, 40):
            assert same(compiled(x, i), program(x, i))
    assert variants(compiled) == "ccdd"


def test_numbers_alone_do_not_use_up_the_limit() -> None:
    def program(i: int, rate: float) -> tuple[int, float]:
        return i * 3 - 7, rate * 0.9

    compiled = jitmagic.jit(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for i in (5, 4, 7, 9, 12, 31, 2, 8, 99, 100, 101):
            for rate in (i / 3, -i / 7, 1 / i, 0.0):
                assert compiled(i, rate) == program(i, rate)


def test_sums_carried_over_breaks_do_not_use_up_the_limit() -> None:
    def program(rows: Tensor, count: int) -> float:
        total = 0.0
        for i in range(count):
            total += rows[i].double().sum().item() * 2
            print(end="")
        return total

    compiled = jitmagic.jit(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for n in range(16):
            rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(n))
            assert compiled(rows, 4) == pytest.approx(program(rows, 4), rel=1e-12)


def test_other_types_and_sizes_fit_no_variant_of_an_int() -> None:
    def program(x: Tensor, i: Any) -> Tensor:
        return x * i

    compiled = jitmagic.jit(program, options={"recompile_limit": 16})
    x = torch.ones(3, dtype=torch.int64)
    for i in (5, 4, True, 2.5, 7, 2**40, -(2**62), 2**63 - 1, 6, False, 0):
        assert same(compiled(x, i), program(x, i)), i
    assert isinstance(outcome(program, x, 2**70), type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jitmagic.FallbackWarning)
        assert outcome(compiled, x, 2**70) is outcome(program, x, 2**70)


def test_guards_say_what_is_data() -> None:
    def program(x: Tensor, epoch: int) -> Tensor:
        return x * epoch

    compiled = jitmagic.jit(program)
    for epoch in (3, 4, 5):
        compiled(torch.ones(3), epoch)
    guards, source = traces(compiled)[1].guards, Argument(1, "epoch")
    assert InRange(source, -(2**63), 2**63 - 1) in guards
    assert not any(isinstance(guard, ValueEquals) and guard.source == source for guard in guards)
