"""register_operator, register_decomposition, register_lowering: operators of torch.library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic import extend
from jitmagic.extend import scalar
from tests.programs.harness import Program
from tests.programs.harness import check as check_program

ops: Any = torch.ops.jitmagic_extend
LIBRARY = torch.library.Library("jitmagic_extend", "FRAGMENT")
calls: list[str] = []  # of kernels that ran


def define(schema: str, kernel: Callable[..., object], fake: Any = None) -> None:
    name = schema.partition("(")[0]

    def noted(*args: object) -> object:
        calls.append(name)
        return kernel(*args)

    LIBRARY.define(schema)
    LIBRARY.impl(name, noted, "CompositeExplicitAutograd")
    if fake is not None:
        torch.library.register_fake(f"jitmagic_extend::{name}", fake, lib=LIBRARY)


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


def like(x: Tensor, *others: object) -> Tensor:
    return torch.empty_like(x)


def reduced(x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    return (x * x).sum(dims, keepdim).sqrt()


define("bare(Tensor x, float limit) -> Tensor", lambda x, limit: limit * torch.tanh(x / limit))
define("cap(Tensor x, float limit) -> Tensor", lambda x, limit: limit * torch.tanh(x / limit), like)
define("rms(Tensor x, Tensor w, float eps) -> Tensor", rms, like)
define("length(Tensor x, int[] dims, bool keepdim=False) -> Tensor", reduced, reduced)
define(
    "swap(Tensor x, Tensor y) -> (Tensor, Tensor)",
    lambda x, y: (y + x, x - y),
    lambda x, y: (torch.empty_like(x), torch.empty_like(x)),
)
define("bump(Tensor x) -> Tensor", lambda x: x.add_(1).sum(), lambda x: x.new_empty(()))
define("pick(Tensor x, Tensor c) -> Tensor", lambda x, c: torch.where(c, x, x // 2), like)


@torch.library.custom_op("jitmagic_extend::taught", mutates_args=())
def taught(x: Tensor) -> Tensor:
    calls.append("taught")
    return torch.tanh(x) * x


taught.register_fake(torch.empty_like)
taught.register_autograd(
    lambda ctx, g: g * 3, setup_context=lambda ctx, inputs, output: None
)  # unlike the formula, so that it is seen which of the two is used


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    calls.clear()


def cap(x: Any, limit: float) -> Any:
    return limit * scalar.tanh(x / limit)


def check(program: Callable[..., Any], *inputs: Tensor, runs: tuple[str, ...] = ()) -> None:
    """Compare compiled results with eager's, and the operators' kernels that ran."""
    expected = program(*(x.clone() for x in inputs))
    fast = jitmagic.jit(program, fullgraph=True)
    for _ in range(2):
        given = [x.clone() for x in inputs]
        calls.clear()
        torch.testing.assert_close(fast(*given), expected)
        assert tuple(calls) == runs
    assert len(jitmagic.api.handle_of(fast).dispatcher.entries) == 1


X, W = torch.linspace(-3, 3, 24).reshape(4, 6), torch.linspace(0.5, 1, 6)


# -- facts -----------------------------------------------------------------------------------------


def test_shape_rule_stands_for_a_fake_kernel() -> None:
    def program(x: Tensor) -> Tensor:
        return ops.bare(x.sin(), 2.0) + 1  # type: ignore[no-any-return]

    with pytest.raises(jitmagic.Unsupported, match="it has no fake kernel"):
        jitmagic.jit(program, fullgraph=True)(X)
    with extend.register_operator(ops.bare.default, shape=like):
        check(program, X, runs=("bare",))
        fast = jitmagic.jit(program, fullgraph=True, dynamic=True)
        for rows in (2, 3, 4):
            torch.testing.assert_close(fast(X[:rows]), program(X[:rows]))


def test_shape_rule_may_depend_on_data() -> None:
    define("positives(Tensor x) -> Tensor", lambda x: x[x > 0].clone())

    def shape(x: Tensor) -> Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    with extend.register_operator(ops.positives, shape=shape):
        check(lambda x: ops.positives(x.sin()) * 2, X, runs=("positives",))


def test_undeclared_write_is_seen_by_later_reads() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        before = y.sin()
        total = ops.bump(y)
        return before + y, total

    def writes_an_input(x: Tensor) -> Tensor:
        ops.bump(x)
        return x * 1

    with extend.register_operator(ops.bump, writes=("x",)):
        check(program, X, runs=("bump",))
        given, fast = X.clone(), jitmagic.jit(writes_an_input, fullgraph=True)
        torch.testing.assert_close(fast(given), X + 1)
        torch.testing.assert_close(given, X + 1)


def test_unused_call_of_a_pure_operator_is_left_out_and_equal_calls_run_once() -> None:
    def program(x: Tensor) -> Tensor:
        ops.cap(x, 3.0)
        return ops.cap(x, 2.0) + ops.cap(x, 2.0)  # type: ignore[no-any-return]

    expected = program(X)
    for pure, runs in ((False, ["cap"] * 3), (True, ["cap"])):
        with extend.register_operator(ops.cap, pure=pure):
            fast = jitmagic.jit(program)
            fast(X)
            calls.clear()
            torch.testing.assert_close(fast(X), expected)
            assert calls == runs


def test_unused_call_that_may_raise_runs() -> None:
    def program(x: Tensor) -> Tensor:
        ops.cap(x, 3.0)
        return x + 1

    with extend.register_operator(ops.cap, pure=True, raises=True):
        check(program, X, runs=("cap",))


def test_facts_of_an_aten_operator_are_added_to_its_row() -> None:
    def program(x: Tensor) -> Tensor:
        torch.ops.aten.index_select.default(x, 0, torch.tensor([9]))
        return x + 1

    with extend.register_operator(torch.ops.aten.index_select.default, cost=lambda *args: 1):
        fast = jitmagic.jit(program)
        with pytest.raises(IndexError):
            fast(X)


@pytest.mark.parametrize(("operations", "is_repeated"), [(1, True), (10**6, False)])
def test_cheap_operator_is_computed_again_in_a_backward(operations: int, is_repeated: bool) -> None:
    def cost(x: Tensor) -> float:
        return operations * x.numel()

    with (
        extend.register_operator(taught, cost=cost),
        extend.register_lowering(taught, lambda x: scalar.tanh(x) * x),
    ):
        seen: list[str] = []
        with extend.register_pass("backward", lambda gm, context: seen.append(gm.code), name="see"):
            program = jitmagic.jit(lambda x: taught(x) * x.sin(), fullgraph=True)
            program(X.clone().requires_grad_()).sum().backward()
    assert ["taught.default(" in code for code in seen] == [is_repeated]


def test_wrong_shape_rule_is_a_graph_break_that_names_it() -> None:
    def shape(x: Tensor, limit: float) -> Tensor:
        raise LookupError("no such table")

    with extend.register_operator(ops.cap, shape=shape):
        with pytest.raises(jitmagic.Unsupported) as caught:
            jitmagic.jit(lambda x: ops.cap(x, 2.0), fullgraph=True)(X)
        torch.testing.assert_close(jitmagic.jit(lambda x: ops.cap(x, 2.0))(X), ops.cap(X, 2.0))
    words = "the shape rule of jitmagic_extend.cap.default raised LookupError: no such table"
    assert words in str(caught.value)
    assert 'raise LookupError("no such table")' in str(caught.value)


# -- decompositions --------------------------------------------------------------------------------


def test_decomposition_replaces_the_kernel_and_keeps_the_registered_gradient() -> None:
    def program(x: Tensor) -> Tensor:
        return taught(x.sin()).cos()  # type: ignore[no-any-return]

    with extend.register_decomposition(taught, lambda x: torch.tanh(x) * x):
        check(program, X)
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        calls.clear()
        jitmagic.jit(program, fullgraph=True)(x).sum().backward()
        assert not calls
        program(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_decomposition_gives_the_layout_of_the_operator_and_memory_of_its_own() -> None:
    @extend.register_decomposition(ops.cap)
    def same(x: Tensor, limit: float) -> Tensor:
        return x  # the operator never returns its argument

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = ops.cap(x, 2.0)
        y.add_(1)
        return x, y

    x = X.t()
    kept, made = jitmagic.jit(program, fullgraph=True)(x)
    torch.testing.assert_close(made, x + 1)
    assert kept is x
    assert made.stride() == torch.empty_like(x).stride()


def test_decomposition_may_call_the_operator_and_composites() -> None:
    @extend.register_decomposition(ops.cap.default)
    def cap(x: Tensor, limit: float) -> Tensor:
        return F.silu(F.layer_norm(ops.cap(x, 2 * limit), (6,)))

    def program(x: Tensor) -> Tensor:
        return F.silu(F.layer_norm(ops.cap(x, 4.0), (6,))) * 2

    calls.clear()
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) * 2, fullgraph=True)
    torch.testing.assert_close(fast(X), program(X))


def test_decomposition_of_an_aten_operator() -> None:
    with extend.register_decomposition(torch.ops.aten.erf, torch.tanh):
        fast = jitmagic.jit(lambda x: torch.erf(x) + 1)
        torch.testing.assert_close(fast(X), X.tanh() + 1)
    torch.testing.assert_close(fast(X), X.erf() + 1)


@pytest.mark.parametrize(
    ("decomposition", "words"),
    [
        (lambda x, limit: x.sum(), r"its result is \(\(\), torch.float32\), the operator's"),
        (lambda x, limit: x.missing(), "raised AttributeError"),
        (lambda x, limit: x.tolist(), "the decomposition of jitmagic_extend.cap.default"),
    ],
)
def test_wrong_decomposition_leaves_the_call_to_the_kernel_with_a_warning(
    decomposition: Any, words: str
) -> None:
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) + 1, fullgraph=True)
    with (
        extend.register_decomposition(ops.cap, decomposition),
        pytest.warns(jitmagic.FallbackWarning, match=words) as caught,
    ):
        torch.testing.assert_close(fast(X), ops.cap(X, 2.0) + 1)
    assert any("test_operators.py" in str(one.message) for one in caught)


def test_decomposition_may_not_write_to_its_arguments() -> None:
    with (
        extend.register_decomposition(ops.cap, lambda x, limit: x.mul_(2)),
        pytest.raises(jitmagic.JitmagicError, match="writes to an argument"),
    ):
        jitmagic.jit(lambda x: ops.cap(x, 2.0), fullgraph=True)(X)
    with pytest.raises(ValueError, match="a decomposition cannot"):
        extend.register_decomposition(torch.ops.aten.add_.Tensor, torch.add)


def test_decomposition_may_leave_a_call_to_the_kernel() -> None:
    def only_small(x: Tensor, limit: float) -> Tensor:
        if limit > 1:
            raise NotImplementedError
        return limit * torch.tanh(x / limit)

    with extend.register_decomposition(ops.cap, only_small):
        check(lambda x: ops.cap(x, 2.0) + ops.cap(x, 0.5), X, runs=("cap",))


# -- lowerings -------------------------------------------------------------------------------------


def norm(x: Any, w: Any, eps: float) -> Any:
    return x * scalar.rsqrt((x * x).mean() + eps) * w


def length(x: Any, dims: list[int], keepdim: bool) -> Any:
    return scalar.sqrt((x * x).sum())


def swap(x: Any, y: Any) -> Any:
    return y + x, x - y


def pick(x: Any, c: Any) -> Any:
    return scalar.where(c, x, scalar.floor(x.to(torch.float64) / 2).to(torch.int64))


LOWERED: dict[str, tuple[Any, Any, Any, Callable[..., Any]]] = {
    "pointwise": (ops.cap, cap, None, lambda x, w: ops.cap(x.sin(), 2.0) + w),
    "number that varies": (ops.cap, cap, None, lambda x, w: ops.cap(x, w.shape[0] + 0.5)),
    "normalisation": (ops.rms, norm, -1, lambda x, w: ops.rms(x.sin(), w, 1e-6) + 1),
    "columns": (ops.length, length, "dims", lambda x, w: ops.length(x.sin(), [0]) + w),
    "rows, kept": (ops.length, length, "dims", lambda x, w: x / ops.length(x + 1, [-1], True)),
    "all": (ops.length, length, "dims", lambda x, w: ops.length(x * w, [0, 1]) + 1),
    "several results": (ops.swap, swap, None, lambda x, w: ops.swap(x.sin(), x.cos())),
    "one of them": (ops.swap, swap, None, lambda x, w: ops.swap(x.sin(), x.cos())[1]),
    "integers": (ops.pick, pick, None, lambda x, w: ops.pick((x * 9).long(), x > 0) + 1),
}


@pytest.mark.parametrize("name", LOWERED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lowering_is_part_of_the_kernels_around_it(name: str, dtype: torch.dtype) -> None:
    op, formula, over, program = LOWERED[name]
    x, w = X.to(dtype), W.to(dtype)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    with extend.register_lowering(op, formula, over=over):
        for dynamic in (False, True):
            fast = jitmagic.jit(program, fullgraph=True, dynamic=dynamic)
            for rows in (4, 3, 1):
                expected = program(x[:rows], w)
                calls.clear()
                torch.testing.assert_close(fast(x[:rows], w), expected, **tolerance)
                assert not calls


def test_lowered_operator_is_one_kernel_with_its_neighbours() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return ops.rms(x.sin(), w, 1e-6).exp() + 1  # type: ignore[no-any-return]

    with extend.register_lowering(ops.rms, norm, over=-1):
        check_program(Program("one", lambda: program, lambda: [(X, W)], graphs=1, kernels=1))


def test_lowering_may_be_computed_again_in_a_backward() -> None:
    def program(x: Tensor) -> Tensor:
        return (taught(x) * taught(x.sin())).sum()

    with extend.register_lowering(taught, lambda x: scalar.tanh(x) * x):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        fast = jitmagic.jit(program, fullgraph=True)
        calls.clear()
        fast(x).backward()
        assert not calls
        program(y).backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (lambda x, limit: scalar.tang(x), r"no scalar operation 'tang' \(did you mean 'tan"),
        (lambda x, limit: scalar.tanh(x, x), "tanh takes 1 arguments, not 2"),
        (lambda x, limit: x if x > 0 else -x, "the value of a Scalar is not known here"),
        (lambda x, limit: x.sum(), r"\.sum\(\) needs register_lowering\(..., over=dimensions\)"),
        (lambda x, limit: -(x > 0), "neg of torch.bool: convert it with"),
        (lambda x, limit: (x, x), "2 results, not 1"),
        (lambda x, limit: None, "a result is a Scalar or a number, not None"),
    ],
)
def test_wrong_lowering_leaves_the_call_to_the_kernel_with_a_warning(
    formula: Any, words: str
) -> None:
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) + 1, fullgraph=True)
    with (
        extend.register_lowering(ops.cap, formula),
        pytest.warns(jitmagic.FallbackWarning, match=words) as caught,
    ):
        torch.testing.assert_close(fast(X), ops.cap(X, 2.0) + 1)
    message = str(caught[0].message)
    assert "the lowering of jitmagic_extend.cap.default" in message
    assert "test_operators.py" in message


def test_result_may_not_read_single_elements_along_combined_dimensions() -> None:
    fast = jitmagic.jit(lambda x: ops.length(x, [1]))
    with (
        extend.register_lowering(ops.length, lambda x, dims, keepdim: x, over="dims"),
        pytest.warns(jitmagic.FallbackWarning, match="reads single elements along the dimensions"),
    ):
        torch.testing.assert_close(fast(X), reduced(X, [1]))


# -- scalar operations -----------------------------------------------------------------------------

HARD = {
    "cpp": "minimum(maximum({0}, -1), 1) * {0}",
    "triton": "tl.minimum(tl.maximum({0}, -1.0), 1.0) * {0}",
    "numba": "min(max({0}, {t}(-1)), {t}(1)) * {0}",
}


def hard(x: Tensor) -> Tensor:
    return x.clamp(-1, 1) * x


@pytest.mark.parametrize("tier", ["cpp", "numba"])
def test_registered_scalar_operation_is_part_of_kernels(tier: str) -> None:
    def program(x: Tensor) -> Tensor:
        return ops.cap(x.sin() * 3, 2.0).cos()  # type: ignore[no-any-return]

    def formula(x: Any, limit: float) -> Any:
        return scalar.hard_square(x) + limit

    with (
        extend.register_scalar("hard_square", hard, **HARD),  # type: ignore[arg-type]
        extend.register_lowering(ops.cap, formula),
    ):
        fast = jitmagic.jit(program, fullgraph=True, options={"cpu_tier": tier})
        for x in (X, X.double()):
            fast(x)
            calls.clear()
            torch.testing.assert_close(fast(x), (hard(x.sin() * 3) + 2).cos())
            assert not calls


def test_scalar_operation_without_a_text_leaves_the_kernel_to_the_next_tier() -> None:
    @extend.register_scalar("hard_square", numba=HARD["numba"])
    def reference(x: Tensor) -> Tensor:
        return hard(x)

    extend.register_lowering(ops.cap, lambda x, limit: scalar.hard_square(x))
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) + 1)
    with pytest.warns(jitmagic.FallbackWarning, match="no cpp for the scalar operation"):
        torch.testing.assert_close(fast(X), hard(X) + 1)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"name": "exp"}, "there is a scalar operation 'exp' already"),
        ({"cpp": "{3}"}, "cpp of 'hard_square'"),
        ({"cuda": "{0}"}, "no argument 'cuda'"),
        ({"name": "a b"}, "is an identifier"),
    ],
)
def test_wrong_scalar_operation_is_explained(facts: Any, words: str) -> None:
    facts = {"name": "hard_square", **facts}
    with pytest.raises(ValueError, match=words):
        extend.register_scalar(facts.pop("name"), hard, **facts)


# -- scope and names -------------------------------------------------------------------------------


def test_compiled_functions_follow_each_change() -> None:
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) + 1, fullgraph=True)
    seen = []
    for scope in (None, extend.register_lowering(ops.cap, cap), None):
        for _ in range(2):
            calls.clear()
            fast(X)
        seen.append(list(calls))
        if scope is not None:
            scope.remove()
    extend.register_lowering(ops.cap, cap)
    fast(X)
    extend.unregister("jitmagic_extend.cap.default")
    calls.clear()
    fast(X)
    assert calls == ["cap"]


@pytest.mark.parametrize(
    "register",
    [
        lambda: extend.register_operator(ops.cap, shape=like),
        lambda: extend.register_decomposition(ops.cap, cap),
        lambda: extend.register_lowering(ops.cap.default, cap),
    ],
)
def test_second_registration_of_an_operator_is_refused(register: Any) -> None:
    with register(), pytest.raises(ValueError, match="'jitmagic_extend.cap.default' already"):
        register()
    register().remove()


@pytest.mark.parametrize(
    ("register", "words"),
    [
        (lambda: extend.register_operator(torch.relu), "an operator is an overload like"),
        (lambda: extend.register_operator(torch.ops.aten.add), "aten.add.Tensor"),
        (lambda: extend.register_operator(ops.cap, writes=("z",)), "no argument of .* 'z'"),
        (lambda: extend.register_operator(ops.cap, shape=3), "shape is a function"),
        (lambda: extend.register_lowering(ops.cap, 3), "a formula is a function"),
        (lambda: extend.register_lowering(ops.cap, cap, over="d"), "no argument of .* 'd'"),
    ],
)
def test_wrong_arguments_are_explained(register: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        register()
