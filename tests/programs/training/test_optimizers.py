"""Whole training steps: the optimizer's update is compiled, and does what eager does.

Each scenario trains two copies of a model, one with a tagged step. Compared are losses, parameters,
the optimizer's state (keys, step counts, moments), and what was compiled.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from tests.covering import covered

from ..counts import Counts, counts_of, eager_of

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
AGREES = 1e-6  # relative to the largest element


class Small(nn.Module):
    """Weights, biases and a scalar, so that 0-dim parameters take part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 20), nn.Linear(20, 4)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(torch.tanh(self.first(x))) * self.scale
        return made


def batches(count: int, dtype: torch.dtype, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(8, 12, generator=generator).to(device, dtype),
            torch.randn(8, 4, generator=generator).to(device, dtype),
        )
        for _ in range(count)
    ]


@dataclass
class Training:
    """One model being trained. Only the update may be tagged, so gradients are computed alike."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    update: Callable[[], None]

    @classmethod
    def of(cls, model: nn.Module, make: MakeOptimizer, tagged: bool, **options: Any) -> Training:
        optimizer = make(model)

        def update() -> None:
            optimizer.step()

        return cls(model, optimizer, jitmagic.jit(update, **options) if tagged else update)

    def run(self, steps: int, after: Callable[[], object] = lambda: None) -> None:
        like = next(self.model.parameters())
        for x, y in batches(steps, like.dtype, like.device):
            self.optimizer.zero_grad()
            F.mse_loss(self.model(x), y).backward()
            self.update()
            after()

    @property
    def counts(self) -> Counts:
        return counts_of(self.update)


def pair(
    make: MakeOptimizer,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    **options: Any,
) -> tuple[Training, Training]:
    """The same model twice: trained as eager, and with a tagged update."""
    torch.manual_seed(3)
    model = Small().to(device, dtype)
    other = copy.deepcopy(model)
    return Training.of(model, make, False), Training.of(other, make, True, **options)


def agree(eager: Any, ours: Any, tolerance: float) -> None:
    """Same structure; tensors relative to their largest element, everything else equal."""
    assert type(eager) is type(ours)
    if isinstance(eager, Tensor):
        assert (eager.dtype, eager.shape) == (ours.dtype, ours.shape)
        bound = tolerance * eager.double().abs().amax()
        assert ((eager.double() - ours.double()).abs() <= bound).all(), (eager, ours)
    elif isinstance(eager, dict):
        assert list(eager) == list(ours)
        for key in eager:
            agree(eager[key], ours[key], tolerance)
    elif isinstance(eager, list | tuple):
        assert len(eager) == len(ours)
        for one, other in zip(eager, ours, strict=True):
            agree(one, other, tolerance)
    else:
        assert eager == ours


def same(eager: Training, ours: Training, tolerance: float = AGREES) -> None:
    """Parameters, and the optimizer's state with its keys and step counts."""
    agree(dict(eager.model.state_dict()), dict(ours.model.state_dict()), tolerance)
    agree(eager.optimizer.state_dict(), ours.optimizer.state_dict(), tolerance)


def train(make: MakeOptimizer, steps: int = 20, **more: Any) -> tuple[Training, Training]:
    """Both trained on the same batches, without warnings, compared, handed back."""
    eager, ours = pair(make, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (eager, ours):
            made.run(steps)
    same(eager, ours)
    return eager, ours


def listed(make: MakeOptimizer) -> MakeOptimizer:
    """The optimizer whose update works on lists, torch's choice on a GPU."""

    def made(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = make(model)
        for group in optimizer.param_groups:
            group["foreach"] = True
        return optimizer

    return made


OPTIMIZERS: dict[str, tuple[MakeOptimizer, int]] = {
    # The update, and how many graphs it is compiled to over its steps: SGD's first step with
    # momentum makes its buffers.
    "adam": (lambda m: torch.optim.Adam(m.parameters()), 1),
    "radam": (lambda m: torch.optim.RAdam(m.parameters(), 1e-2), 3),  # a branch on its step count
    "radam_decay": (
        lambda m: torch.optim.RAdam(m.parameters(), weight_decay=0.1, decoupled_weight_decay=True),
        3,
    ),
    "adam_decay": (lambda m: torch.optim.Adam(m.parameters(), 1e-2, weight_decay=0.01), 1),
    "adam_amsgrad": (lambda m: torch.optim.Adam(m.parameters(), amsgrad=True), 1),
    "adam_maximize": (lambda m: torch.optim.Adam(m.parameters(), 1e-4, maximize=True), 1),
    "adam_betas": (lambda m: torch.optim.Adam(m.parameters(), betas=(0.0, 0.5)), 1),
    "adamw": (lambda m: torch.optim.AdamW(m.parameters(), weight_decay=0.1), 1),
    "sgd": (lambda m: torch.optim.SGD(m.parameters(), 0.05), 1),
    "sgd_momentum": (lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9), 2),
    "sgd_nesterov": (
        lambda m: torch.optim.SGD(
            m.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
        2,
    ),
    "rmsprop": (lambda m: torch.optim.RMSprop(m.parameters(), 1e-3), 1),
    "rmsprop_centered": (
        lambda m: torch.optim.RMSprop(m.parameters(), 1e-3, momentum=0.9, centered=True),
        1,
    ),
    "adagrad": (lambda m: torch.optim.Adagrad(m.parameters(), lr_decay=0.01), 1),
    "adadelta": (lambda m: torch.optim.Adadelta(m.parameters()), 1),
    "adamax": (lambda m: torch.optim.Adamax(m.parameters()), 1),
    "adam_fused": (lambda m: torch.optim.Adam(m.parameters(), fused=True, amsgrad=True), 1),
    "adamw_fused": (lambda m: torch.optim.AdamW(m.parameters(), fused=True), 1),
    "sgd_fused": (
        lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, fused=True, nesterov=True),
        2,
    ),
    "adagrad_fused": (lambda m: torch.optim.Adagrad(m.parameters(), fused=True), 1),
}


@covered(name=OPTIMIZERS, foreach=[False, True], backend=["native", "aot_eager"])
def test_the_update_is_compiled_and_agrees(name: str, foreach: bool, backend: str) -> None:
    make, graphs = OPTIMIZERS[name]
    _, ours = train(listed(make) if foreach else make, backend=backend)
    assert eager_of(ours.update) == []
    assert ours.counts.breaks == 0
    assert ours.counts.graphs <= graphs + 1  # the first step makes the optimizer's state


# Not with momentum: torch's kernel (2.13, CPU) skips half of a vector of bfloat16, and its buffers
# begin as memory that nobody wrote.
@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.AdamW(m.parameters(), 1e-2, fused=True),
        lambda m: torch.optim.SGD(m.parameters(), 0.05, fused=True),
        lambda m: torch.optim.Adagrad(m.parameters(), fused=True),
    ],
    ids=["adamw", "sgd", "adagrad"],
)
def test_a_fused_update_of_narrow_numbers_is_the_kernel_itself(make: MakeOptimizer) -> None:
    """It computes in float32: operation by operation each would be rounded to bfloat16."""
    eager, ours = pair(make, dtype=torch.bfloat16)
    for made in (eager, ours):
        made.run(4)
    same(eager, ours, tolerance=0.0)
    assert ours.counts.breaks == 0


def test_two_hundred_steps_of_adam_in_float32() -> None:
    """One kernel for the five counters, one per parameter; rounded as eager rounds."""
    make: MakeOptimizer = lambda m: torch.optim.Adam(m.parameters())  # noqa: E731
    _, ours = train(make, 200, dtype=torch.float32)
    assert ours.counts == Counts(graphs=2, breaks=0, kernels=12)


def test_a_model_may_have_more_parameters_than_a_loop_of_the_user_steps() -> None:
    make, graphs = OPTIMIZERS["adam"]
    _, ours = train(make, 3, options={"unroll_limit": 1500})
    assert eager_of(ours.update) == []
    assert ours.counts.graphs == graphs


def test_a_schedule_of_learning_rates_is_one_graph_and_one_that_makes_the_state() -> None:
    eager, ours = pair(lambda m: torch.optim.Adam(m.parameters(), 1e-2))
    for made in (eager, ours):
        schedule = torch.optim.lr_scheduler.ExponentialLR(made.optimizer, 0.9)
        made.run(20, schedule.step)
    same(eager, ours)
    assert ours.counts.graphs == 2


def test_other_numbers_become_data_when_they_change() -> None:
    """OneCycleLR moves beta1 at every step: the second value makes the last graph."""
    eager, ours = pair(lambda m: torch.optim.Adam(m.parameters(), 1e-2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (eager, ours):
            cycle = torch.optim.lr_scheduler.OneCycleLR(made.optimizer, 0.1, total_steps=21)
            made.run(20, cycle.step)
    same(eager, ours)
    assert ours.counts.graphs == 2


def test_a_momentum_that_changes() -> None:
    eager, ours = pair(lambda m: torch.optim.SGD(m.parameters(), 1e-2, momentum=0.9))
    for made in (eager, ours):
        cycle = torch.optim.lr_scheduler.OneCycleLR(made.optimizer, 0.1, total_steps=21)
        made.run(20, cycle.step)
    same(eager, ours)
    assert ours.counts.graphs == 2  # with new buffers, and with any momentum


def test_a_learning_rate_of_zero_is_data_too() -> None:
    """Warm-up begins at zero."""
    eager, ours = pair(lambda m: torch.optim.Adam(m.parameters(), 1e-2))
    for made in (eager, ours):
        warm = torch.optim.lr_scheduler.LambdaLR(made.optimizer, lambda epoch: epoch / 10)
        made.run(10, warm.step)
    same(eager, ours)
    assert ours.counts.graphs == 2


def _two_groups(model: nn.Module) -> torch.optim.Optimizer:
    first = {"params": list(model.first.parameters()), "lr": 1e-2, "weight_decay": 0.1}
    rest = {"params": [*model.second.parameters(), model.scale], "betas": (0.8, 0.99)}
    return torch.optim.AdamW([first, rest], weight_decay=0.0)


def test_groups_of_parameters_have_a_graph_each() -> None:
    _, ours = train(_two_groups)
    assert ours.counts.graphs == 2


def test_more_groups_than_a_function_may_have_variants() -> None:
    make: MakeOptimizer = lambda m: torch.optim.SGD([{"params": [p]} for p in m.parameters()], 0.1)  # noqa: E731
    _, ours = train(make, options={"recompile_limit": 2})
    assert ours.counts.graphs == 1  # all groups are in it


def test_a_parameter_without_gradient_stays() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        model.scale.requires_grad_(False)
        return torch.optim.Adam(model.parameters())

    _, ours = train(make)
    assert float(ours.model.scale) == 1.5


def test_state_that_was_loaded_goes_on() -> None:
    make: MakeOptimizer = lambda m: torch.optim.Adam(m.parameters(), 1e-2)  # noqa: E731
    eager, ours = train(make, 5)
    for made in (eager, ours):
        saved = copy.deepcopy(made.optimizer.state_dict())
        made.run(3)
        made.optimizer.load_state_dict(saved)
        made.run(5)
    same(eager, ours)
    steps = {float(state["step"]) for state in ours.optimizer.state_dict()["state"].values()}
    assert steps == {10.0}
    assert ours.counts.graphs == 2  # without state, and with state, made or loaded


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd_nesterov", "rmsprop", "adagrad"])
def test_parameters_in_bfloat16_are_rounded_as_eager_rounds(name: str) -> None:
    """Sizes that fill vectors: ATen rounds the last elements of others in another way."""
    make, _ = OPTIMIZERS[name]
    torch.manual_seed(3)
    model = nn.Linear(32, 64).to(torch.bfloat16)
    other = copy.deepcopy(model)
    eager, ours = Training.of(model, make, False), Training.of(other, make, True)
    for step in range(10):
        for made in (eager, ours):
            generator = torch.Generator().manual_seed(step)
            for parameter in made.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.grad = noise.to(torch.bfloat16)
            made.update()
    same(eager, ours)


def test_a_subclass_with_a_step_of_its_own_runs_it() -> None:
    class Clipped(torch.optim.Adam):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.clamp_(-0.01, 0.01)
            super().step(closure)

    train(lambda m: Clipped(m.parameters()))


def test_hooks_of_the_optimizer_run() -> None:
    seen: list[str] = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        return optimizer

    train(make, 3)
    assert seen == ["before", "after"] * 6


@pytest.mark.parametrize("step", [-1.0, -5.0, float("nan")])
def test_counters_out_of_bounds_behave_as_eager(step: float) -> None:
    """At step 0 the bias correction is 0 and Python's division raises."""

    def outcome(made: Training) -> object:
        for state in made.optimizer.state.values():
            state["step"].fill_(step)
        try:
            made.run(1)
        except Exception as error:
            return type(error), str(error)
        return [p.isnan().any().item() for p in made.model.parameters()]

    eager, ours = pair(lambda m: torch.optim.Adam(m.parameters(), 1e-2))
    for made in (eager, ours):
        made.run(2)
    assert outcome(eager) == outcome(ours)


def test_a_count_that_is_none_is_followed_as_in_the_call_compiled_for() -> None:
    """RAdam branches on a number computed from its step count, which is no count where it is
    negative: the library's branch is speculated.
    """
    eager, ours = pair(lambda m: torch.optim.RAdam(m.parameters(), 1e-3))
    for made in (eager, ours):
        made.run(1)
        for state in made.optimizer.state.values():
            state["step"].fill_(-8.0)
        made.run(5)
    same(eager, ours)
    assert not eager_of(ours.update)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("first", [0.0, 2.5, 100.0, 2.0**24 + 2])
def test_a_branch_on_a_count_holds_for_calls_that_decide_it_alike(
    foreach: bool, first: float
) -> None:
    """RAdam's first steps differ from later ones; a count may begin at a fraction."""
    eager, ours = pair(lambda m: torch.optim.RAdam(m.parameters(), 1e-3, foreach=foreach))
    for made in (eager, ours):
        made.run(1)
        for state in made.optimizer.state.values():
            state["step"].fill_(first)
        made.run(9)
    same(eager, ours)


def test_averages_that_begin_later() -> None:
    """ASGD asks whether a factor that it keeps in a tensor is one."""
    for foreach in (False, True):
        _, ours = train(lambda m: torch.optim.ASGD(m.parameters(), t0=3, foreach=foreach))  # noqa: B023
        assert ours.counts.breaks == 0
        assert not eager_of(ours.update)


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_other_backends_get_numbers_as_tensors(backend: str) -> None:
    train(lambda m: torch.optim.Adam(m.parameters(), 1e-2), 10, backend=backend)


def test_versions_of_parameters_count_the_update() -> None:
    """A graph that saved a parameter before the step must not be differentiated after it."""
    _, ours = train(lambda m: torch.optim.Adam(m.parameters()), 2)
    loss = (ours.model.scale**2).sum()
    before = ours.model.scale._version
    ours.update()
    assert ours.model.scale._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_parameter_whose_memory_is_shared_with_another() -> None:
    """Views of one flat buffer do not overlap; the same tensor twice does."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        offset = 0
        for parameter in model.parameters():
            parameter.data = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        return torch.optim.SGD(model.parameters(), 0.1)

    eager, ours = pair(make)
    for made in (eager, ours):
        made.run(5)
    same(eager, ours)


def test_a_whole_training_step() -> None:
    """One graph; the first step, which makes the optimizer's state, is another."""
    torch.manual_seed(3)
    model = Small()
    other = copy.deepcopy(model)

    def make_step(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        optimizer = torch.optim.Adam(model.parameters())

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    eager, ours = make_step(model), jitmagic.jit(make_step(other))
    for x, y in batches(200, torch.float32, torch.device("cpu")):
        torch.testing.assert_close(ours(x, y), eager(x, y), rtol=1e-4, atol=1e-6)
    found = counts_of(ours)
    assert (found.graphs, found.breaks) == (2, 0)


@pytest.mark.parametrize("fused", [False, True])
def test_an_update_of_many_parameters_is_one_graph(fused: bool) -> None:
    """The numbers of 130 parameters, 9 nodes for each, count for more than a trace may have."""
    parameters = [nn.Parameter(torch.randn(3)) for _ in range(130)]
    for parameter in parameters:
        parameter.grad = torch.randn(3)
    plain = copy.deepcopy(parameters)
    for copied, parameter in zip(plain, parameters, strict=True):
        copied.grad = parameter.grad.clone()
    made = [torch.optim.AdamW(each, fused=fused) for each in (parameters, plain)]
    for optimizer in made:
        optimizer.step()
    step = jitmagic.jit(made[0].step)
    for _ in range(2):
        step()
        made[1].step()
    torch.testing.assert_close(parameters, plain)
    counts = counts_of(step)
    assert (counts.graphs, counts.breaks) == (1, 0)
