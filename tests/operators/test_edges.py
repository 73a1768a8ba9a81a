"""A part of what `python -m tests.operators --edges` runs, and the sweep's own promises."""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from tests.fuzz.tiers import compiled_by
from tests.processes import run_forked
from tests.workers import Pool

from .batches import DeviceLost, Tally, examine_cases, run_eagerly
from .edges import Case, cases, operators, unmade
from .judge import unlike
from .recipes import Operand

# What was wrong once, and a few of every other kind; the tier decides how many of them.
_OPERATORS = (
    *("add.", "sub.", "rsub.", "addcmul", "threshold", "elu.", "pow.Tensor_Scalar"),
    *("floor_divide.", "masked_fill.Scalar", "full_like", "clamp.", "softplus.", "std.", "roll"),
    *("constant_pad_nd", "_foreach_add.", "nan_to_num", "select.int", "sum.dim", "div.Scalar_mode"),
)
_COUNTS = {"cpp": 150, "numba": 40, "loops": 60, "triton": 25}


# In a process of its own, as the whole sweep runs: after 20,000 other tests in one process,
# `bool_tensor - -0.0` once gave a result where eager raises, which no subset of them repeats.
@pytest.mark.parametrize("tier", _COUNTS)
def test_edges(tier: str) -> None:
    done = run_forked(f"from tests.operators.test_edges import sweep; sweep({tier!r})")
    assert not done.returncode, done.stderr


def sweep(tier: str) -> None:
    """Examine the chosen cases of a tier."""
    warnings.simplefilter("ignore")  # torch's own, of deprecated calls
    everything = [case for case in cases() if case.op.removeprefix("aten.").startswith(_OPERATORS)]
    chosen = random.Random(12).sample(everything, _COUNTS[tier])
    tally = Tally()
    with compiled_by(tier) as wrap:
        found = list(examine_cases(chosen, wrap, tally))
    assert not found, "\n".join(map(str, found))
    assert tally.cases > 0.9 * len(chosen)
    assert tally.refused < tally.cases


_FINDS = [
    ("torch.add({0}, {1}, alpha=0)", "float32 bfloat16 int64"),
    ("torch.rsub({0}, {1}, alpha=-0.0)", "float32"),
    ("{0}.clone().add_({1}, alpha=0)", "int32"),
    ("torch._foreach_add([{0}], [{1}], alpha=True)", "int64 float32"),
    ("torch.threshold({0}, -0.5, 2)", "int64 float16"),
    ("torch.threshold({0}, 2, 1e30)", "float16 int8"),
    ("{0} // 1e-8", "float16 bfloat16"),
    ("{0} ** 1e-8", "float16"),
    ("{0} ** 0.3333", "bfloat16"),
    ("{0} ** 2147483647", "float32"),
    ("torch._C._nn.elu({0}, inf)", "float32"),
    ("torch.celu({0}, nan)", "float16"),
    ("{0}.masked_fill({0} > 1, 2**31)", "float16 int32 uint8"),
    ("torch.full_like({0}, 1e30)", "float16 int64"),
    ("torch._C._nn.hardtanh({0}, 2)", "float32"),
    ("torch.ops.aten.hardtanh_backward.default({0}, {1}, nan, 2)", "float64"),
    ("torch._C._nn.huber_loss({0}, {1}, -2)", "float16"),
    ("torch.logit({0}, -2)", "float64"),
    ("torch._C._nn.mse_loss({0}, {1}, -1)", "float32"),
    ("torch._C._nn.smooth_l1_loss({0}, {1}, 1, nan)", "float32"),
    ("torch.arange(5, dtype=torch.bool)", "float32"),
    ("torch._log_softmax({0}, -1, False)", "int64"),
    ("{0}[:, 0].addmv({0}, {1}[0], beta=inf)", "complex64"),
    ("{0}[:, 0].addmv({0}, {1}[0], alpha=-0.0)", "float32 float64"),
    ("torch.native_dropout({0}, 0.5, True)", "int64 bool"),
    ("torch.logit({0}, 1)", "float32 bfloat16 int8"),
    ("torch.logit({0}, nan)", "float32"),
    (
        "torch.ops.aten.nll_loss2d_forward.default({0}.reshape(1, 3, 2, 2), "
        "torch.zeros(1, 2, 2, dtype=torch.int64), None, 3, -100)",
        "float32",
    ),
    ("torch.empty_strided([3, 4], [-1, 0]), {0}.new_empty_strided([3, 4], [-1, 0])", "float32"),
    ("torch.ops.aten.gelu_backward.default({0}, {1}, approximate='odd')", "float32 bfloat16"),
    ("torch.addcdiv({0}, {1}, {1}, value=2147483647)", "float16"),
    ("torch._foreach_addcdiv([{0}], [{1}], [{1}], 1e30)", "float16"),
    ("torch.ops.aten.linalg_vector_norm.default({0}, 1e30)", "float16"),
    ("torch.as_strided({0}, [-1, 0], [1, 2])", "float32"),
    ("{0}.unfold(1, 2, 2**62)", "complex64 float32"),
    ("torch.as_strided({0}, [2, 3], [1, 2], 2**62)", "complex64 int8 float64"),
    ("torch.gather({0}, 1, {0}.long() % 3, sparse_grad=True)", "int64"),
    ("torch.embedding({0}, torch.tensor([0, 2]), -1, False, True)", "float32"),
    ("torch.native_channel_shuffle({0}.reshape(1, 4, 3, 1), 0)", "int64 float32"),
    ("torch._softmax({0}, 0, True)", "float16 bfloat16"),
    ("torch.ops.aten._softmax_backward_data.default({0}, {1}, 0, torch.float64)", "float16"),
    ("torch._C._nn.huber_loss({0}, {1}, 1, nan)", "float64"),
    ("torch.prod({0}, 0)", "complex64"),
    ("torch.native_layer_norm({0}, [4], None, None, -1)", "float64"),
    ("torch.ops.aten.softshrink_backward.default({0}, {1}, nan)", "float64"),
    ("torch.var_mean(torch.tensor([1, inf, inf]).to({0}), -1)", "bfloat16 float32 float64"),
    ("torch.std_mean(torch.tensor([[1], [-inf], [-inf]]).to({0}), 0)", "bfloat16 float16"),
]


@pytest.mark.parametrize(("call", "dtypes"), _FINDS)
@pytest.mark.filterwarnings("ignore")
def test_finds(call: str, dtypes: str) -> None:
    """Each was wrong in generated code, or did not raise."""
    op = call.removeprefix("torch.ops.").partition("(")[0]
    made = [
        Case(op, call, (Operand((3, 4), dtype), Operand((3, 4), dtype)), dtype)
        for dtype in (getattr(torch, name) for name in dtypes.split())
    ]
    tally = Tally()
    with compiled_by("cpp") as wrap:
        assert not list(examine_cases(made, wrap, tally))
    assert tally.cases == len(made)


@pytest.mark.parametrize(
    ("row", "mean", "alike"),
    [
        ([1, math.inf, 2], math.inf, True),  # the order of one pass makes eager's NaN
        ([1, -math.inf, 2], math.inf, False),
        ([1, math.nan, 2], math.inf, False),
        ([math.inf, 1, -math.inf], math.inf, False),
        ([1, 3, 2], math.inf, False),
    ],
)
def test_an_infinite_mean_beside_eager_s_nan(row: list[float], mean: float, alike: bool) -> None:
    """As a kernel of a GPU that takes the numbers in another order than eager's."""
    operand = Operand((3, 4), torch.bfloat16)
    call = f"torch.var_mean(torch.tensor({row}).to({{0}}), -1)"
    case = Case("aten.var_mean.correction", call, (operand,), torch.bfloat16)

    def wrap(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: [(v, torch.full_like(m, mean)) for v, m in f(*args)]

    assert (not list(examine_cases([case], wrap, Tally()))) is alike


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        ("1 / torch.copysign({0} * 0, -0.0)", "float16"),
        ("torch._C._nn.softplus({0}, -0.0)", "bfloat16"),
        ("torch.ops.aten._foreach_div.ScalarList([{0}, {1}], [0, -0.0])", "float32"),
        ("1 / -({0} * 0)", "float64"),
        ("torch.eq({0}, 1e30), torch.eq({0}, 0.1), torch.le({0}, 2**62)", "float16"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_signs_of_zero_and_comparisons_in_triton(call: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    case = Case("aten.add.Tensor", call, (Operand((3, 4), kind), Operand((3, 4), kind)), kind)
    tally = Tally()
    with compiled_by("triton") as wrap:
        assert not list(examine_cases([case], wrap, tally))
    assert tally.refused == 0


def test_new_memory_is_nobody_elses() -> None:
    """Two tensors of torch.empty_strided are two, each with its strides."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.empty_strided([3, 4], [8, 1]), torch.empty_strided([3, 4], [8, 1]), x + 1

    first, second, _ = jitmagic.jit(f)(torch.ones(3))
    assert first.stride() == second.stride() == (8, 1)
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("dtype", ["complex64", "float64", "bfloat16", "int32"])
@pytest.mark.filterwarnings("ignore")
def test_what_eager_cannot_hold_is_skipped(dtype: str) -> None:
    """A view whose end, in bytes, overflows 64 bits: not even eager's own result can be read."""
    kind = getattr(torch, dtype)
    call = f"{{0}}.clone().as_strided_([2, 3], [1, 2], {2**62})"
    tally = Tally()
    case = Case("aten.as_strided.default", call, (Operand((3, 4), kind),), kind)
    with compiled_by("loops") as wrap:
        assert not list(examine_cases([case], wrap, tally))
    assert tally.cases == 0
    assert tally.skipped == {"a view of memory beyond its own": 1}


def test_every_operator_is_called() -> None:
    """Not called: what only a GPU has, and oneDNN's layer, which takes its sizes on trust (it has
    tests of its own, programs/modules/test_recurrent.py).
    """
    gpu = ("_fused_rms_norm_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward")
    assert unmade() == [f"aten.{name}.default" for name in (*gpu, "mkldnn_rnn_layer")]
    assert {case.op for case in cases()} == {str(op) for op in operators()} - set(unmade())


def test_there_are_enough_cases() -> None:
    assert len(cases()) > 30_000
    assert len(set(cases())) == len(cases())


ZERO, ONE = torch.zeros(1), torch.ones(1)


@pytest.mark.parametrize(
    ("wanted", "have", "exact", "alike"),
    [
        (ONE, ONE + 1e-7, ONE.double(), True),
        (ONE, ONE + 1e-4, ONE.double(), False),
        (ONE + 1e-4, ONE - 1e-4, ONE.double(), True),  # as far off as eager
        (ONE / 0, ONE / 0, ONE.double(), True),
        (ONE / 0, -ONE / 0, ONE.double(), False),
        (-ONE / 0, ONE / 0, ONE.double() / 0, True),  # eager is wrong
        (ONE, ZERO / 0, ONE.double(), False),
        (ONE.int(), ONE.int() + 1, None, False),
        (ONE, ONE.double(), None, False),
        (None, None, None, True),
        (None, ONE, None, False),
    ],
)
def test_the_judge(wanted: object, have: object, exact: object, alike: bool) -> None:
    assert (unlike(wanted, have, exact) is None) is alike


_WORKER = """
import os
from tests.workers import serve

def handle(task):
    if task == "2":
        os._exit(3)
    print("did", task)

serve(handle)
"""


def test_an_assertion_of_eager_s_kernel_is_eager_s(monkeypatch) -> None:
    """It is told when the GPU has come to it: nobody may blame what runs next."""

    def assertion() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", assertion)
    operand = Operand((3, 4), torch.float32)
    with pytest.raises(DeviceLost, match="assert"):
        run_eagerly(Case("aten.neg.default", "{0}.neg()", (operand,), torch.float32), "cpu")


def test_a_worker_that_dies_is_an_outcome() -> None:
    pool = Pool([sys.executable, "-c", _WORKER], jobs=2)
    for number in range(5):
        pool.add(str(number))
    seen = {outcome.task: (outcome.lines, outcome.died) for outcome in pool.outcomes()}
    assert seen.pop("2") == ((), 3)
    assert seen == {str(n): ((f"did {n}",), None) for n in (0, 1, 3, 4)}
