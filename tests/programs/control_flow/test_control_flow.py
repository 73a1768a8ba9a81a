"""torch.cond, while_loop, scan, map and associative_scan: one graph each, like plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan_op, generic_associative_scan
from torch.utils.checkpoint import checkpoint

import jitmagic

from ..counts import breaks_of, counts_of
from .plain import PLAIN, TORCH, assert_alike

D = torch.float64
generator = torch.Generator().manual_seed(0)


def rand(*shape: int, grad: bool = True, low: float = -1.0) -> Tensor:
    made = torch.rand(shape, dtype=D, generator=generator) * (1 - low) + low
    return made.requires_grad_(grad)


W, V = rand(4, 4), rand(4)
YES, NO = torch.tensor(True), torch.tensor(False)
POSITIVE, NEGATIVE = rand(3, 4, low=0.1), -rand(3, 4, low=0.1).detach()
NEGATIVE.requires_grad_()


def branches(op: Any, x: Tensor, p: Tensor) -> Any:
    return op.cond(p, lambda x: (x @ W).sin(), lambda x: x.cos() * V, (x,))


def predicate_from_data(op: Any, x: Tensor) -> Any:
    y = x * 2
    z = op.cond(y.sum() > 0, lambda a: a.exp(), lambda a: a.tanh() * V, (y,))
    return z * 3, y


def containers(op: Any, x: Tensor, p: Tensor) -> Any:
    return op.cond(
        p,
        lambda d: {"a": d["x"] + 1, "b": (d["y"] * 2,)},
        lambda d: {"a": d["y"] - 1, "b": (d["x"] * 3,)},
        ({"x": x, "y": x + 1},),
    )


def nested(op: Any, x: Tensor, p: Tensor, q: Tensor) -> Any:
    def yes(x: Tensor) -> Any:
        return op.cond(q, lambda x: x * W[0], lambda x: x.sin(), (x,)).relu()

    return op.cond(p, yes, lambda x: x * V, (x,))


def closures(op: Any, x: Tensor, p: Tensor, scale: float) -> Any:
    return op.cond(p, lambda: x * scale, lambda: x + scale)


def varying_sizes(op: Any, x: Tensor, p: Tensor) -> Any:
    return op.cond(p, lambda x: x.sum(0) / x.shape[0], lambda x: x.mean(0) + x.shape[0], (x[1:],))


def python_predicate(op: Any, x: Tensor) -> Any:
    return op.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x - 1, (x,))


def without_gradients(op: Any, x: Tensor, p: Tensor) -> Any:
    with torch.no_grad():
        y = op.cond(p, lambda x: x @ W, lambda x: x + 1, (x,))
    return y * x


def no_grad_in_a_branch(op: Any, x: Tensor, p: Tensor) -> Any:
    def yes(x: Tensor) -> Tensor:
        with torch.no_grad():
            factor = x.exp()
        return factor * x

    return op.cond(p, yes, lambda x: x + 1, (x,))


def containers_of_a_branch(op: Any, x: Tensor, p: Tensor) -> Any:
    def yes(x: Tensor) -> Tensor:
        parts = []
        for n in range(3):
            parts.append(x * n)
        return torch.stack(parts)

    return op.cond(p, yes, lambda x: torch.stack([x, x, x]), (x,))


def rows_of_one(op: Any, x: Tensor, p: Tensor) -> Any:
    return op.cond(p, lambda x: x[:, :1].t() * 2, lambda x: x[:, 0].view(1, 3) + 1, (x,)) * 2


def one_after_another(op: Any, x: Tensor, p: Tensor) -> Any:
    a = op.cond(p, lambda x: x + 1, lambda x: x * 2, (x,))
    b = op.cond(a.sum() > 0, lambda x: x.sin(), lambda x: x * V, (a,))
    return a + b, b * 2


def writes_around(op: Any, x: Tensor, p: Tensor) -> Any:
    y, z = x * 2, x.detach() * 2
    y.add_(1)
    z.add_(1)
    a = op.cond(p, lambda: y + z, lambda: y - z)
    z.mul_(3)
    return a, z


def random_numbers(op: Any, x: Tensor, p: Tensor) -> Any:
    a = op.cond(p, lambda x: x * torch.rand_like(x), lambda x: nn.functional.dropout(x), (x,))
    return a * torch.rand(4, dtype=D)


def checkpointed(op: Any, x: Tensor, p: Tensor) -> Any:
    def block(x: Tensor) -> Any:
        return op.cond(p, lambda x: x.sin() * V, lambda x: x.cos(), (x.exp(),)).tanh()

    return checkpoint(block, x, use_reentrant=False) * 2


def a_branch_without_gradients(op: Any, x: Tensor, p: Tensor) -> Any:
    return op.cond(p, lambda x: x * V, lambda x: torch.ones_like(x), (x,)) * 2


PAIRS = [(rand(3, 4), p) for p in (YES, NO, YES)]
BRANCHES = {
    branches: PAIRS,
    predicate_from_data: [(POSITIVE,), (NEGATIVE,)],
    containers: PAIRS,
    nested: [(rand(3, 4), p, q) for p in (YES, NO) for q in (YES, NO)],
    closures: [(rand(3, 4), p, scale) for p in (YES, NO) for scale in (1.5, 2.5)],
    varying_sizes: [(rand(n, 4), p) for n in (4, 6, 7) for p in (YES, NO)],
    python_predicate: [(rand(n, 4),) for n in (3, 5)],
    without_gradients: PAIRS,
    no_grad_in_a_branch: PAIRS,
    containers_of_a_branch: PAIRS,
    rows_of_one: PAIRS,
    one_after_another: PAIRS,
    writes_around: PAIRS,
    random_numbers: PAIRS,
    checkpointed: PAIRS,
    a_branch_without_gradients: PAIRS[:1],
}


def steps(op: Any, x: Tensor) -> Any:
    count = torch.zeros((), dtype=torch.int64)
    return op.while_loop(lambda n, x: n < 5, lambda n, x: (n + 1, (x @ W).tanh()), (count, x))


def steps_from_data(op: Any, x: Tensor) -> Any:
    return op.while_loop(lambda x: x.sum() < 50, lambda x: (x * 1.5 + V.abs(),), (x,))


def carried_ints(op: Any, x: Tensor) -> Any:
    n, y = op.while_loop(lambda n, x: 2 * n < 9, lambda n, x: (n + 1, x * n + V), (0, x))
    return n + 1, y[:n] * n


def recurrence(op: Any, x: Tensor) -> Any:
    def step(c: Tensor, x: Tensor) -> Any:
        new = (c @ W + x).tanh()
        return new, new * 2

    return op.scan(step, torch.zeros(4, dtype=D), x)


def scan_of_containers(op: Any, x: Tensor) -> Any:
    def step(c: Any, d: Any) -> Any:
        h, k = (c["h"] * d[0] + V).sin(), c["k"] + d[1].sum()
        return {"h": h, "k": k}, (h * k, d[1] + h)

    zero = torch.zeros((), dtype=D)
    return op.scan(step, {"h": torch.zeros(4, dtype=D), "k": zero}, [x, x + 1])


def scan_of_columns_backwards(op: Any, x: Tensor) -> Any:
    init = x.detach()[:, 0] * 0
    last, made = op.scan(lambda c, x: (c + x, c * x), init, x, dim=1, reverse=True)
    return last, made.flatten().sort().values  # torch 2.11 leaves the dimension at the front


def rows(op: Any, x: Tensor) -> Any:
    return op.map(lambda d, v: (d[0] * d[1] + v, d[0].sum()), [x, x.cos()], V)


def products(op: Any, x: Tensor) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    return op.associative_scan(combine, (x, x + 1), 1, reverse=True, combine_mode="generic")


def branch_in_a_scan(op: Any, x: Tensor) -> Any:
    def step(c: Tensor, x: Tensor) -> Any:
        new = op.cond(x.sum() > 0, lambda c: c * V, lambda c: c + x, (c,))
        return new, new + 1

    return op.scan(step, torch.ones(4, dtype=D), x)


def map_in_a_loop(op: Any, x: Tensor) -> Any:
    def step(x: Tensor) -> Any:
        return (op.map(lambda row: row * 1.5 + V.abs(), x),)

    return op.while_loop(lambda x: x.sum() < 50, step, (x,))


LOOPS = [steps, carried_ints, recurrence, scan_of_containers, scan_of_columns_backwards]
LOOPS += [rows, products, branch_in_a_scan]
ENDED = POSITIVE.detach() * 100
REPEATED = {
    **{loop: [(rand(n, 4),) for n in (5, 6, 8)] for loop in LOOPS},
    steps_from_data: [
        (POSITIVE,),
        (POSITIVE.detach(),),
        (ENDED,),
        (ENDED.clone().requires_grad_(),),
    ],
    map_in_a_loop: [(POSITIVE,), (POSITIVE.detach() * 2,)],
}
PROGRAMS = {**BRANCHES, **REPEATED}


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program_is_one_graph_and_gives_what_plain_python_gives(program: Any, backend: str) -> None:
    compiled = jitmagic.jit(program, backend=backend)
    for args in PROGRAMS[program]:
        assert_alike(program, compiled, args, weights=(W, V))
    assert not breaks_of(compiled)


def test_change_of_the_predicate_compiles_nothing() -> None:
    compiled = jitmagic.jit(branches)
    for _, p in PAIRS:
        compiled(TORCH, rand(3, 4), p)[0, 0].backward()
    records = [r for r in jitmagic.api.handle_of(compiled).journal if r.result("trace")]
    assert len(records) == 1
    assert counts_of(compiled).graphs == 1


def test_module_gives_its_branches_parameters() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, dtype=D), nn.LayerNorm(4, dtype=D)

        def forward(self, op: Any, x: Tensor) -> Any:
            return op.cond(x.sum() > 0, self.a, self.b, (x,)).relu()

    module = Gate()
    compiled = jitmagic.jit(module.forward)
    for x in (POSITIVE, NEGATIVE, POSITIVE):
        assert_alike(module.forward, compiled, (x,), weights=[*module.parameters()])
    assert counts_of(compiled).breaks == 0


def test_operators_are_called_by_their_names_in_torch_ops() -> None:
    def program(op: Any, x: Tensor, p: Tensor) -> Any:
        cond = torch.ops.higher_order.cond if op is TORCH else op.cond
        return cond(p, lambda x: x * V, lambda x: x + V, (x,))

    compiled = jitmagic.jit(program)
    for args in PAIRS:
        assert_alike(program, compiled, args, weights=(V,))
    assert not breaks_of(compiled)


def test_formula_of_the_pointwise_associative_scan() -> None:
    def program(op: Any, x: Tensor) -> Any:
        if op is PLAIN:
            return x.cumprod(0)
        return associative_scan_op(lambda a, b: a * b, [x], ())[0]

    # The function of torch that calls the operator takes tensors on GPUs only; the operator's
    # formula is a global of that function's module.
    compiled = jitmagic.jit(program)
    assert_alike(program, compiled, (rand(5, 4),))
    assert generic_associative_scan is not None
    assert not breaks_of(compiled)


def test_write_to_a_result_ends_the_graph_after_the_operator() -> None:
    def program(op: Any, x: Tensor, p: Tensor) -> Any:
        a = op.cond(p, lambda: x * V, lambda: x.sin())
        a += x
        return a * V

    compiled = jitmagic.jit(program)
    for p in (YES, NO):
        assert_alike(program, compiled, (rand(3, 4), p), weights=(V,))
    assert "iadd" in breaks_of(compiled)[0]


def test_int_beyond_the_range_of_carried_ints_runs_in_eager() -> None:
    def program(op: Any, x: Tensor) -> Any:
        return op.while_loop(lambda n, x: n < 2**60, lambda n, x: (n * 2**20, x + 1), (1, x))

    found = jitmagic.jit(program)(TORCH, torch.zeros(2))
    assert found[0] == 2**60
    assert torch.equal(found[1], torch.full((2,), 3.0))


def test_results_require_grad_whichever_branch_is_taken() -> None:
    compiled = jitmagic.jit(a_branch_without_gradients)
    x = rand(3, 4)
    compiled(TORCH, x, NO).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(3, 4, dtype=D))


@pytest.mark.filterwarnings("ignore:.*differentiated twice")
@pytest.mark.parametrize("program", [branches, recurrence, steps], ids=lambda p: p.__name__)
def test_second_derivatives(program: Any) -> None:
    compiled, x = jitmagic.jit(program), rand(3, 4)
    args = (YES,) if program is branches else ()
    found = []
    for run, op in ((compiled, TORCH), (program, PLAIN)):
        made = run(op, x, *args)
        made = made[-1] if isinstance(made, tuple) else made
        (first,) = torch.autograd.grad(made.sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, W]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_of_the_caller(mode: Any) -> None:
    compiled = jitmagic.jit(recurrence)
    with mode():
        assert_alike(recurrence, compiled, (rand(5, 4, grad=False),))


def test_autocast_casts_in_a_branch() -> None:
    def program(op: Any, x: Tensor, p: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return op.cond(p, lambda x: x @ x, lambda x: (x @ x) * 2, (x,)).float()

    compiled = jitmagic.jit(program)
    x = torch.rand(4, 4)
    for p in (YES, NO):
        assert_alike(program, compiled, (x, p))
    assert counts_of(compiled).breaks == 0


def test_autocast_inside_a_branch_and_a_step() -> None:
    def low(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ x
            return (z @ z).float()

    def program(op: Any, x: Tensor, p: Tensor) -> Any:
        y = op.cond(p, low, lambda x: x @ x, (x,)) @ x
        return op.scan(lambda c, x: (low(c + x), x @ x), y, torch.stack([y, x]), dim=0)

    compiled = jitmagic.jit(program)
    x = torch.rand(4, 4) / 4
    for p in (YES, NO):
        assert_alike(program, compiled, (x, p))
    assert counts_of(compiled).breaks == 0


# -- programs that torch refuses ------------------------------------------------------------------


class Counter:
    count = 0


SEEN: list[int] = []
COUNTER = Counter()


def appends(x: Tensor) -> Tensor:
    SEEN.append(1)
    return x + 1


def sets_an_attribute(x: Tensor) -> Tensor:
    COUNTER.count += 1
    return x + 1


def prints(x: Tensor) -> Tensor:
    print("in a branch")
    return x + 1


def raises(x: Tensor) -> Tensor:
    raise ValueError("in a branch")


def branches_on_data(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


REFUSED = {
    appends: "it changes an object from outside of it",
    sets_an_attribute: "it changes an object from outside of it",
    prints: "print() writes output",
    raises: "it raises ValueError",
    branches_on_data: "a branch depends on tensor data",
    Tensor.relu_: "it writes to a tensor from outside of it",
    Tensor.t: "a result shares memory with an input",
    Tensor.float: "its results have other shapes, strides or dtypes in the branches",
    (lambda x: x[:1] + 1): "its results have other shapes, strides or dtypes in the branches",
    (lambda x: (x, x + 1)): "a result shares memory",
    (lambda x: (x * 2, x + 1)): "its results differ between the branches",
    (lambda x: (x + 1, None)): "its results differ between the branches",
}


@pytest.mark.parametrize("branch", REFUSED, ids=lambda branch: branch.__name__)
def test_break_says_why_a_function_is_refused(branch: Any) -> None:
    def program(x: Tensor, p: Tensor) -> Any:
        return torch.cond(p, branch, lambda x: x + 1, (x,))

    with pytest.raises(jitmagic.Unsupported) as refused:
        jitmagic.jit(program, fullgraph=True)(rand(4, 4, grad=False), YES)
    assert f"torch.cond takes is not supported: {REFUSED[branch]}" in str(refused.value)
    assert SEEN == []
    assert COUNTER.count == 0


def test_write_to_a_container_of_the_frame_is_refused() -> None:
    def program(x: Tensor, p: Tensor) -> Any:
        found: list[int] = []

        def branch(x: Tensor) -> Tensor:
            found.append(1)
            return x * 2

        return torch.cond(p, branch, lambda x: x + 1, (x,)), len(found)

    with pytest.raises(jitmagic.Unsupported, match="changes an object from outside"):
        jitmagic.jit(program, fullgraph=True)(rand(3, 4, grad=False), YES)


def test_error_of_a_branch_is_raised_if_it_is_taken() -> None:
    def program(x: Tensor, i: Tensor, p: Tensor) -> Any:
        return torch.cond(p, lambda: x[i], lambda: x[:1] + 1)

    compiled = jitmagic.jit(program)
    x, place = rand(3, 4, grad=False), torch.tensor([5])
    torch.testing.assert_close(compiled(x, place, NO), x[:1] + 1)
    with pytest.raises(IndexError):
        compiled(x, place, YES)
