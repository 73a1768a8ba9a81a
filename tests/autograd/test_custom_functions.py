"""torch.autograd.Function in compiled code: results, gradients and second gradients are eager's."""

from __future__ import annotations

import re

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.graph.show import show
from jitmagic.trace.result import Break, Trace
from tests.covering import covered
from tests.programs.counts import counts_of

from . import custom
from .custom import (
    CASES,
    Clipped,
    Constant,
    Dropped,
    Exp,
    InPlace,
    Reversal,
    Same,
    Straight,
    Surrogate,
    TwoUnused,
    x,
)
from .lifting import close
from .refused import REFUSED, SEEN

pytestmark = pytest.mark.filterwarnings("ignore:.*op by op:jitmagic.errors.FallbackWarning")

grad = torch.autograd.grad
BACKENDS = ["eager", "aot_eager", "native"]


def results_of(function, inputs):
    made = function(*inputs)
    made = made if isinstance(made, tuple) else (made,)
    return [r for r in made if isinstance(r, torch.Tensor)], [
        r for r in made if not isinstance(r, torch.Tensor)
    ]


def shown(function, inputs, twice):
    """Results, what autograd says of them, gradients, gradients of gradients."""
    tensors, others = results_of(function, inputs)
    facts = [(r.requires_grad, r.is_leaf, r.dtype, tuple(r.shape)) for r in tensors]
    wanted = [i for i in inputs if i.requires_grad]
    ends = [r for r in tensors if r.requires_grad]
    values = [r.detach() for r in tensors]
    if not ends:
        return values, (facts, others)
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype).view(r.shape) for r in ends]
    loss = sum((r * w).sum() for r, w in zip(ends, weights, strict=True))
    first = grad(loss, wanted, create_graph=twice, allow_unused=True)
    values += [None if g is None else g.detach() for g in first]
    curved = [g for g in first if g is not None and g.requires_grad]
    if curved:
        values += grad(sum((g * g).sum() for g in curved), wanted, allow_unused=True)
    return values, (facts, others)


def wide(inputs):
    return [i.detach().double().requires_grad_(i.requires_grad) for i in inputs]


@covered(name=CASES, backend=BACKENDS, twice=[False, True])
def test_device_programs_equal_eager(name, backend, twice):
    case = CASES[name]
    compiled = jitmagic.jit(case.function, backend=backend)
    twice = twice and case.twice
    try:
        case.function(*case.inputs())
    except TypeError as error:  # torch 2.11: "apply() takes no keyword arguments"
        with pytest.raises(TypeError, match=re.escape(str(error))):
            compiled(*case.inputs())
        return
    for _ in range(2):
        ours, ours_said = shown(compiled, case.inputs(), twice)
        eager, eager_said = shown(case.function, case.inputs(), twice)
        exact, _ = shown(case.function, wide(case.inputs()), twice)
        assert repr(ours_said) == repr(eager_said)
        for a, e, w in zip(ours, eager, exact, strict=True):
            assert (a is None) == (e is None)
            if a is not None:
                close(a, e, w)
    counts = counts_of(compiled)
    assert (counts.graphs, counts.breaks) == (case.graphs, case.graphs - 1)


# ------------------------------------------------------------------------------------ gradcheck


@pytest.mark.parametrize("name", ["own result", "two parts", "nested in the backward", "dirty"])
def test_gradients_of_gradients_are_derivatives(name):
    case = CASES[name]
    compiled = jitmagic.jit(case.function)
    inputs = tuple(wide(case.inputs()))
    assert torch.autograd.gradcheck(compiled, inputs)
    assert torch.autograd.gradgradcheck(compiled, inputs)


# ------------------------------------------------------- parts of the results, one after another


def missing(a):
    s, c = TwoUnused.apply(a * 1.5)
    return s * 2, c * 3, a.sin()


USES = {
    "the first": lambda r: r[0].sum().backward(),
    "the second": lambda r: r[1].sum().backward(),
    "another": lambda r: r[2].sum().backward(),
    "one after the other": lambda r: (r[0].sum() + r[1].sum() + r[2].sum()).backward(),
    "the first, then another": lambda r: [r[i].sum().backward() for i in (0, 2)],
    "twice": lambda r: [r[0].sum().backward(retain_graph=True), r[1].sum().backward()],
    "freed": lambda r: [r[0].sum().backward(), r[1].sum().backward()],
}


def outcome(function, use, *inputs):
    """Return the gradients that `use` computes, or the error."""
    torch.manual_seed(0)
    try:
        made = function(*inputs)
        use(made)
    except RuntimeError as error:
        return type(error), str(error).partition(".")[0]
    return [i.grad for i in inputs]


def check(function, use, inputs=lambda: (x(),), **options):
    compiled = jitmagic.jit(function, **options)
    for _ in range(2):
        ours, eager = outcome(compiled, use, *inputs()), outcome(function, use, *inputs())
        torch.testing.assert_close(ours, eager, equal_nan=True) if isinstance(eager, list) else None
        assert isinstance(eager, list) or ours == eager
    return compiled


@pytest.mark.parametrize("use", USES)
def test_a_backward_runs_if_a_gradient_reaches_it(use):
    """Without one eager does not run it, with one it makes zeros of those that are missing."""
    check(missing, USES[use])


@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.filterwarnings("ignore:.*:jitmagic.errors.FallbackWarning")
def test_a_gradient_of_the_forward_s_own_is_given_only_if_asked_for(wanted):
    compiled = check(lambda a: (Constant.apply(a), a * 2), lambda r: r[wanted].sum().backward())
    assert "depends on no tangent" in reasons(compiled)[0]


def test_gradients_between_results():
    def use(results):
        (between,) = grad(results[1].sum(), results[0], retain_graph=True)
        (results[0] * between).sum().backward()

    def program(a):
        h = Exp.apply(a)
        return h, Straight.apply(h, 8) * 2

    check(program, use)


# ------------------------------------------------------------------------ memory that is shared


def total(made):
    (made if isinstance(made, torch.Tensor) else sum(made)).sum().backward()


SHARED = {
    "a view of an input": lambda a: Reversal.apply(a, 0.5),
    "a view of another result": lambda a: (lambda h: (h, Reversal.apply(h, 0.5)))(a * 2),
    "the input": lambda a: Same.apply(a),
}


@pytest.mark.parametrize("name", SHARED)
def test_results_that_share_memory_are_eager_s(name):
    compiled = check(SHARED[name], total)
    assert "shares memory" in reasons(compiled)[0]


def written(a):
    made = Straight.apply(a, 8)
    made.mul_(3)
    return made


def saved_written(a):
    h = a * 1
    made = Clipped.apply(h, -0.5)
    h.add_(1)
    return made


def result_written(a):
    made = Exp.apply(a * 1)
    made.mul_(2)
    return made


def view_written(a):
    h = a * 1
    flat = h.view(-1)
    return InPlace.apply(h).sum() + flat.sum()


WRITES = [written, view_written, lambda a: InPlace.apply(a)]
REFUSED_BY_EAGER = [saved_written, result_written, lambda a: Same.apply(a).mul_(2)]


@pytest.mark.parametrize("function", WRITES)
def test_writes_around_a_call(function):
    check(function, total)


@pytest.mark.parametrize("function", REFUSED_BY_EAGER)
@pytest.mark.filterwarnings("ignore:.*:jitmagic.errors.FallbackWarning")
def test_writes_that_eager_refuses(function):
    assert outcome(function, total, x())[0] is RuntimeError
    check(function, total)


def test_an_input_is_written_to():
    function = jitmagic.jit(lambda a: InPlace.apply(a) + 1, fullgraph=True)
    given, same = x(grad=False), x(grad=False)
    torch.testing.assert_close(function(given), same * 2 + 1)
    torch.testing.assert_close(given, same * 2)


# ---------------------------------------------------------------------------- modes, state, guards


def test_once_differentiable_raises_on_double_backward():
    function = jitmagic.jit(CASES["once"].function)
    a = x()
    (first,) = grad(function(a).pow(2).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_random_numbers_of_the_forward():
    check(lambda a: Dropped.apply(a, 0.4), total, fullgraph=True)


def test_what_the_backward_reads_is_guarded(monkeypatch):
    function = jitmagic.jit(CASES["surrogate"].function)
    outer = jitmagic.jit(CASES["nested in the forward"].function)
    for slope, scale in ((10.0, 3.0), (2.0, 5.0)):
        monkeypatch.setattr(Surrogate, "slope", slope)
        monkeypatch.setattr(custom, "SCALE", scale)
        for compiled, name in ((function, "surrogate"), (outer, "nested in the forward")):
            ours, eager = (outcome(f, total, x()) for f in (compiled, CASES[name].function))
            torch.testing.assert_close(ours, eager)


def test_another_backward_is_another_program(monkeypatch):
    function = jitmagic.jit(lambda a: Straight.apply(a, 4))
    outcome(function, total, x())
    monkeypatch.setattr(Straight, "backward", staticmethod(lambda ctx, g: (g * 7, None)))
    torch.testing.assert_close(outcome(function, total, x()), [torch.full((3, 4), 7.0)])


def test_a_break_between_two_calls():
    def program(a):
        made = Clipped.apply(a, -0.5)
        jitmagic.graph_break()
        return Exp.apply(made)

    check(program, total)


# ----------------------------------------------------------------------------- what is not followed


def reasons(compiled):
    records = handle_of(compiled).journal
    traces = [t for r in records if isinstance(t := r.result("trace"), Trace)]
    return [t.exit.reason.message for t in traces if isinstance(t.exit, Break)]


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_functions_break_with_a_reason(name):
    function, why = REFUSED[name]

    def use(made):
        made.sum().backward()

    SEEN.clear()
    compiled = check(function, use)
    assert why in reasons(compiled)[0]
    assert len(SEEN) == (4 if name in ("side effect", "context escapes") else 0)


def test_the_backward_is_shown():
    text = show_trace(CASES["clipped"])
    assert "Clipped_apply(" in text
    assert "def Clipped_apply.backward(" in text


def show_trace(case):
    compiled = jitmagic.jit(case.function)
    compiled(*case.inputs())
    (record,) = handle_of(compiled).journal
    return show(record.result("trace").graph)


class AsksForLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx, gradient):
        (a,) = ctx.saved_tensors
        if not gradient.is_contiguous():
            gradient = gradient.contiguous()
        return 2 * gradient.view(-1).view(a.shape) * a


LAYOUTS = {
    "of a sum": lambda y: y.sum(),
    "transposed": lambda y: (y.t() @ torch.ones(3, 2)).sum(),
    "a part": lambda y: y[:, 1].sum(),
    "contiguous": lambda y: (y * y).sum(),
    "after the graph": lambda y: y,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loss", LAYOUTS.values(), ids=list(LAYOUTS))
def test_a_backward_asks_whether_its_gradient_is_contiguous(loss, backend) -> None:
    def run(a):
        return loss(AsksForLayout.apply(a * 2))

    compiled = jitmagic.jit(run, backend=backend, fullgraph=True)
    found = []
    for call in (run, compiled):
        a = torch.arange(12.0).view(3, 4).requires_grad_()
        made = call(a)
        (made.t() if made.dim() else made).sum().backward()
        found.append(a.grad)
    assert torch.equal(*found)
    assert found[0].stride() == found[1].stride()
