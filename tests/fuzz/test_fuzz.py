"""A fixed handful of seeds in every tier, and the fuzzer's own promises.

`python -m tests.fuzz --seed N --count M --tier T` runs more.
"""

from __future__ import annotations

import pytest
import torch

from .check import ends, examine_under
from .generate import generate
from .observe import Seen, observe
from .oracle import _Judges, difference
from .program import Program
from .shrink import shrink
from .sizes import Bounded, TooLarge
from .tiers import GENERATED

# one seed of each kind of program: function, method, module, closure
CASES = [(GENERATED, seed) for seed in (109, 103, 105, 106, 117, 119, 116, 118)]
CASES += [("numba", 109), ("numba", 117)]
CASES += [(tier, seed) for tier in ("aten", "loops", "unfused") for seed in (117, 119)]


@pytest.mark.filterwarnings("ignore::jitmagic.FallbackWarning")
@pytest.mark.parametrize(("tier", "seed"), CASES)
def test_seed(tier: str, seed: int) -> None:
    program = generate(seed)
    unlike = examine_under(program, tier)
    assert unlike is None or unlike.kind == "fallback", f"{unlike.text}\n{program.source()}"


@pytest.mark.parametrize("tier", ["frames", "joint", "loops", "scheduled"])
def test_tiers_compile(tier: str) -> None:
    """A stage that could not stand in would hide behind visible fallbacks."""
    assert examine_under(_program("y = (x * k).sin().sum(0)"), tier) is None


def test_a_seed_gives_one_program() -> None:
    assert generate(7) == generate(7)
    assert len({generate(seed).source() for seed in range(20)}) == 20


def _program(*statements: str, **changes: object) -> Program:
    given = {
        "arguments": ("x", "k"),
        "statements": statements,
        "results": ("y",),
        "calls": (("tensor((3, 4))", "2"),),
    }
    return Program(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda f: lambda x, k: (f(x, k)[0].mul_(2),), "arguments value"),
        (lambda f: lambda x, k: (f(x, k)[0].t().contiguous().t(),), "result stride"),
        (lambda f: lambda x, k: (f(x, k)[0].double(),), "result dtype"),
        (lambda f: lambda x, k: (f(x, k)[0].clone(),), "result alias"),
        (lambda f: lambda x, k: (f(x.clone(), k)[0],), "arguments value"),
        (lambda f: lambda x, k: (torch.rand(1), f(x, k))[1], "random random"),
        (lambda f: lambda x, k: (print("more"), f(x, k))[1], "printed printed"),
        (lambda f: lambda x, k: f(x, k) / 0, "exception"),
    ],
)
def test_the_oracle_sees(wrong: object, kind: str) -> None:
    program = _program("x.add_(1)", "y = x[1:]")
    eager, ours = (observe(program.source(), wrap) for wrap in (lambda f: f, wrong))
    found = difference(eager, ours, _Judges(program))
    assert found is not None
    assert found.kind == kind


def test_the_oracle_forgives_rounding() -> None:
    program = _program("y = x.exp().sum()")
    off = lambda f: lambda x, k: (f(x, k)[0] * (1 + 2e-7),)
    eager, ours = (observe(program.source(), wrap) for wrap in (lambda f: f, off))
    assert isinstance(eager, Seen)
    assert difference(eager, ours, _Judges(program)) is None


def test_shrinking_leaves_what_matters() -> None:
    program = _program(
        "a = x + 1", "for i in range(3):\n    a = a * 2\n    b = a", "y = x.sin()", "c = a + y"
    )
    smallest = shrink(program, lambda p: "sin" in p.source())
    assert smallest.statements == ("y = x.sin()",)
    assert smallest.arguments == ("x",)


@pytest.mark.parametrize(("given", "alike"), [("x[:1].expand(256, 4)", True), ("x", False)])
def test_sums_of_what_is_repeated_may_be_further_off(given, alike):
    """Equal numbers round alike: eager's own sum errs by 14 ulp of sum(|x|) at worst."""
    program = _program(f"y = {given}.sum()", calls=(("tensor((256, 4))", "2"),))
    eager = observe(program.source(), lambda f: f)
    values = [value for _, value in eager.parts]
    n = next(n for n, value in enumerate(values) if getattr(value, "ndim", None) == 0)
    (row,) = {tuple(v[0].tolist()) for v in values if getattr(v, "shape", None) == (256, 4)}
    off = 4e-7 * 256 * sum(map(abs, row))
    assert _Judges(program).accept(n, values[n], values[n] + off) is alike


def test_a_program_that_never_ends_is_told():
    """Also one that takes every exception, and one that is only slow to begin with."""
    assert not ends(_program("while True:\n    y = x * 2"), 0.3)
    endless = "while True:\n    try:\n        y = x * 2\n    except Exception:\n        pass"
    assert not ends(_program(endless), 0.3)
    assert ends(_program("y = x * 2"))
    assert ends(_program("y = x.no_such_method()"))


@pytest.mark.parametrize(
    ("values", "have", "alike"),
    [
        ("inf, 1., 2.", "inf", True),
        ("-inf, 1., 2.", "-inf", True),
        ("-inf, 1., 2.", "inf", False),
        ("inf, -inf, 2.", "inf", False),
        ("1., 2., 3.", "inf", False),
        ("1., nan, 3.", "inf", False),
    ],
)
@pytest.mark.parametrize("call", ["torch.var_mean(t)[1]", "torch.std_mean(t, 0)[1]"])
def test_an_infinite_mean_that_eager_loses(call, values, have, alike):
    """Its running mean is nan behind an infinity; other nan have to be nan."""
    text = f"from math import inf, nan\n    t = torch.tensor([{values}])\n    y = {call}"
    program = _program(*text.split("\n    "))
    eager = observe(program.source(), lambda f: f)
    n = next(
        n
        for n, (_, value) in enumerate(eager.parts)
        if isinstance(value, torch.Tensor) and not value.dim()
    )
    wanted = eager.parts[n][1]
    assert _Judges(program).accept(n, wanted, torch.tensor(float(have))) is alike


@pytest.mark.parametrize(
    ("shape", "have", "alike"), [((1, 1), 0.0, True), ((2, 3), 0.0, True), ((1, 1), 1e-4, False)]
)
def test_what_eager_s_layer_norm_of_equal_numbers_rounds_to(shape, have, alike):
    """x * rstd - mean * rstd of 16 bits is a rounding, of any size beside 0, which it should be."""
    program = _program(
        f"t = torch.full({shape}, 0.3, dtype=torch.float16)", "y = F.layer_norm(t, t.shape[-1:])"
    )
    eager = observe(program.source(), lambda f: f)
    where = [n for n, (_, value) in enumerate(eager.parts) if getattr(value, "shape", 0) == shape]
    wanted = eager.parts[where[-1]][1]
    assert 0 < wanted.abs().max() < 1e-5
    assert _Judges(program).accept(where[-1], wanted, torch.full_like(wanted, have)) is alike


@pytest.mark.parametrize(("off", "alike"), [(2e-16, True), (-2e-16, True), (1e-13, False)])
def test_a_small_loss_in_float64_may_be_off_by_an_ulp_of_one(off, alike):
    """Each is exact to half an ulp of the 1 whose logarithm it is; no wider float judges it."""
    lines = "t = torch.tensor([[14.0, 0.0]]).double()", "y = F.cross_entropy(t, torch.tensor([0]))"
    program = _program(*lines)
    values = [value for _, value in observe(program.source(), lambda f: f).parts]
    n = next(n for n, value in enumerate(values) if getattr(value, "ndim", None) == 0)
    assert 8e-7 < values[n] < 9e-7
    assert _Judges(program).accept(n, values[n], values[n] + off) is alike


@pytest.mark.parametrize(("have", "alike"), [("0.1000004", True), ("0.10001", False)])
def test_a_python_number_is_judged_by_float64_too(have, alike):
    """What `.item()` gives may be as far from float64 as eager's own, or a little more."""
    judges = _Judges(generate(0))
    judges._wide = Seen([("call 0: result: value", "0.1")])
    judges._noisy = []
    assert judges.is_uncertain(0, "0.1000003", have) is alike


def test_a_statement_that_takes_too_much_memory_is_not_drawn() -> None:
    """What is allocated counts, however large a view of it is."""
    with Bounded():
        assert torch.zeros(4).expand(1 << 40, 4).shape[0] == 1 << 40
        with pytest.raises(TooLarge):
            torch.zeros(1 << 29, dtype=torch.uint8)
