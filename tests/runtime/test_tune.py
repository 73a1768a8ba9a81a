"""mode="max-autotune": what may win, what is left alone, what is remembered; clocks are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.codegen import choices, render
from jitmagic.codegen.config import CppConfig
from jitmagic.codegen.plan import Config, KernelSource, Plan
from jitmagic.devices import Target, find_target
from jitmagic.loops.lower import lower
from jitmagic.options import Options, make_options
from jitmagic.runtime import tune as tuning
from jitmagic.runtime.examples import example
from jitmagic.runtime.load import load
from jitmagic.runtime.tune import Trial, Tuned, pick, tune
from jitmagic.schedule import Schedule, product_choices, schedule
from tests.codegen.interpreted import run_interpreted
from tests.loops.recording import record
from tests.schedule.programs import PROGRAMS, made_inputs

CPU = torch.device("cpu")
H200 = Target("cuda", "triton", "for tests", "sm_90", 1, 0, 50 << 20, "", 132)


def two_threads(options: Options) -> Target:
    return replace(find_target(CPU, options), threads=2)


def planned(fn: Any, *inputs: Tensor, **options: Any) -> tuple[Schedule, Target, Options]:
    with torch.random.fork_rng(devices=[]):
        graph, _ = record(fn, *[x.clone() for x in inputs])
    chosen = make_options(options)
    target = two_threads(chosen)
    return schedule(lower(graph, "test"), target, chosen), target, chosen


def tuned(fn: Any, inputs: list[Tensor], folder: Any, **more: Any) -> tuple[Tuned, list[str]]:
    """Return the decision and the progress messages."""
    done, target, options = planned(fn, *inputs, cache_dir=str(folder))
    said: list[str] = []
    plan, _ = render(done, target)
    given = choices(done, target)
    return tune(plan, given, lambda: inputs, target, options, report=said.append, **more), said


def stages_of(run: Any) -> list[tuple[str, Tuned]]:
    """Return the tuning records of a tagged function's compiles."""
    stages = [stage for compiled in handle_of(run).journal for stage in compiled.stages]
    return [(s.stage.partition(": ")[0], s.result) for s in stages if s.stage.endswith("tune")]


def trials_of(run: Any) -> list[Trial]:
    return [trial for _, found in stages_of(run) for trial in found.trials]


class Clock:
    """Every run takes 1 s, except that of the n-th candidate asked about, which takes less."""

    def __init__(self, fast: int) -> None:
        self.fast, self.seen = fast, list[Any]()

    def __call__(self, run: Any, device: torch.device) -> float:
        run()
        if run not in self.seen:
            self.seen.append(run)
        return 0.5 if self.seen.index(run) == self.fast else 1.0


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1)


def test_the_fastest_wins_and_is_what_the_renderer_is_given(tmp_path):
    x = torch.randn(4, 32)
    found, said = tuned(softmax, [x], tmp_path, timer=Clock(2))
    (kernel,) = found.configs
    (winner,) = [trial for trial in found.trials if trial.outcome == "chosen"]
    assert winner == Trial(kernel, found.configs[kernel].label, 0.5, "chosen")
    assert [trial.outcome for trial in found.trials].count("slower") == len(found.trials) - 1
    assert found.trials[0].config == "default"
    assert said == [f"kernel 1 of 1: {kernel} in {len(found.trials)} ways"]
    done, target, options = planned(softmax, x, cache_dir=str(tmp_path))
    plain, chosen = render(done, target)[1], render(done, target, found.configs)
    assert plain.text != chosen[1].text
    (got,) = load(*chosen, target, options).run(x)
    torch.testing.assert_close(got, softmax(x))


def test_candidate_within_noise_does_not_win(tmp_path):
    found, _ = tuned(softmax, [torch.randn(4, 32)], tmp_path, timer=lambda run, device: 1.0)
    assert not found.configs
    assert [t.config for t in found.trials if t.outcome == "chosen"] == ["default"]


def test_decisions_are_remembered_by_text_device_and_threads(tmp_path):
    x = torch.randn(4, 32)
    first, _ = tuned(softmax, [x], tmp_path, timer=Clock(1))

    def never() -> Any:
        raise AssertionError("a warm process measures nothing")

    done, target, options = planned(softmax, x, cache_dir=str(tmp_path))
    arguments = render(done, target)[0], choices(done, target), never
    again = tune(*arguments, target, options, timer=Clock(2))
    assert again.configs == first.configs
    assert again.trials == tuple(replace(trial, measured=False) for trial in first.trials)
    for other in (replace(target, isa="another"), replace(target, threads=3)):
        with pytest.raises(AssertionError, match="measures nothing"):
            tune(*arguments, other, options)


@pytest.mark.parametrize("fault", ["wrong", "refused", "raises"])
def test_wrong_result_cannot_win(tmp_path, fault):
    """The builder sabotages every candidate; each would be the fastest."""
    x = torch.randn(4, 32)

    def build(plan: Plan, source: KernelSource) -> Any:
        run = load(plan, source, target, options).run
        if source.text == default.text:
            return run
        if fault == "refused":
            raise jitmagic.ToolchainError("cc", "cc x", "no registers left")

        def bad(*arguments: Tensor) -> Any:
            if fault == "raises":
                raise RuntimeError("out of resources")
            made = run(*arguments)
            arguments[-1][3, 5] += 1e-3
            return made

        return bad

    done, target, options = planned(softmax, x, cache_dir=str(tmp_path))
    given = choices(done, target)
    default = given[0].sources[0]
    found = tune(
        render(done, target)[0], given, lambda: [x], target, options, timer=Clock(1), build=build
    )
    assert not found.configs
    outcome = {"wrong": "wrong result", "refused": "failed: cc failed"}.get(
        fault, "failed: out of resources"
    )
    assert {t.outcome for t in found.trials[1:]} == {outcome}
    assert {t.seconds for t in found.trials[1:]} == {0.0}
    assert found.trials[0].outcome == "chosen"


def test_inputs_and_random_numbers_stay_as_they_were(tmp_path):
    def step(x: Tensor, state: Tensor) -> Tensor:
        state.copy_(state + x.sum(-1))
        return torch.softmax(x * torch.rand_like(x), -1) + state[:, None]

    x, whole = torch.randn(4, 32), torch.randn(4, 2)
    state = whole[:, 1]  # with gaps: the copy has them too
    before, drawn = [x.clone(), whole.clone()], torch.get_rng_state()
    found, _ = tuned(step, [x, state], tmp_path, timer=Clock(1))
    assert found.trials
    assert not found.reason
    assert torch.equal(x, before[0])
    assert torch.equal(whole, before[1])
    assert torch.equal(torch.get_rng_state(), drawn)


def test_ctrl_c_leaves_everything_as_it_was_and_keeps_what_was_decided(tmp_path):
    def two(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state.copy_(state * 2)
        ordered = torch.sort(torch.softmax(x * torch.rand_like(x), -1))[0]
        return ordered, torch.softmax(ordered * 3, -1)

    x, state = torch.randn(4, 32), torch.randn(4)
    kept, drawn = state.clone(), torch.get_rng_state()
    seen = set()

    def interrupted(run: Any, device: torch.device) -> float:
        run()
        seen.add(run)
        if len(seen) > limit:  # in the middle of the second kernel
            raise KeyboardInterrupt
        return 1.0

    done, target, options = planned(two, x, state, cache_dir=str(tmp_path))
    given = [choice for choice in choices(done, target) if len(choice.configs) > 1]
    assert len(given) >= 2
    limit = len(given[0].configs)
    arguments = render(done, target)[0], choices(done, target), lambda: [x, state], target, options
    with pytest.raises(KeyboardInterrupt):
        tune(*arguments, timer=interrupted)
    assert torch.equal(state, kept)
    assert torch.equal(torch.get_rng_state(), drawn)
    again = tune(*arguments, timer=Clock(10**6))
    remembered = {trial.subject for trial in again.trials if not trial.measured}
    assert remembered == {given[0].kernel}


def test_a_plan_that_fails_is_left_to_fail_later(tmp_path):
    table, index = torch.randn(10, 64), torch.tensor([1, 2, 30])

    def gather(table: Tensor, index: Tensor) -> Tensor:
        return torch.softmax(table[index], -1)

    graph, _ = record(gather, table, torch.tensor([1, 2, 3]))
    options = make_options({"cache_dir": str(tmp_path)})
    target = two_threads(options)
    done = schedule(lower(graph, "test"), target, options)
    plan = render(done, target)[0]
    found = tune(plan, choices(done, target), lambda: [table, index], target, options)
    assert found.reason.startswith("running it failed: IndexError")
    assert not found.trials


def test_plans_with_custom_operators_are_not_tuned(tmp_path):
    calls = []
    with torch.library._scoped_library("jitmagic_tune_test", "DEF") as library:
        library.define("seen(Tensor x) -> Tensor")
        library.impl("seen", lambda x: calls.append(1) or x.clone(), "CompositeExplicitAutograd")
        op = torch.ops.jitmagic_tune_test.seen.default
        done, target, options = planned(softmax, torch.randn(4, 32), cache_dir=str(tmp_path))
        plan = render(done, target)[0]
        step = tuning.Call(op, (), {}, ())
        found = tune(
            replace(plan, steps=(*plan.steps, step)), choices(done, target), list, target, options
        )
    assert "jitmagic_tune_test.seen" in found.reason
    assert not calls
    assert not found.trials


def test_pick_restores_before_every_run_and_has_one_winner():
    state = torch.zeros(3)

    def once() -> list[Tensor]:
        state.add_(1)
        return [state]

    def other() -> list[Tensor]:
        return once()

    trials = pick("s", [("a", once), ("b", other)], Clock(1), CPU, state.zero_)
    assert [t.outcome for t in trials] == ["slower", "chosen"]
    assert torch.equal(state, torch.zeros(3))


@pytest.mark.parametrize(
    ("got", "expected", "alike"),
    [
        (torch.tensor([1.0, 1e6 + 1]), torch.tensor([1.0, 1e6]), True),
        (torch.tensor([1.0, 1.001]), torch.tensor([1.0, 1.0]), False),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), True),
        (torch.tensor([float("inf"), 1.0]), torch.tensor([1.0, 1.0]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([1.0]).bfloat16(), torch.tensor([1.05]).bfloat16(), False),
        (torch.zeros(0), torch.zeros(0), True),
        (None, None, True),
    ],
)
def test_sums_may_be_reassociated_and_nothing_else(got, expected, alike):
    assert tuning._is_close(got, expected) is alike


def test_made_up_inputs_have_the_layout_and_valid_values():
    made = example((3, 4), (8, 2), torch.float32, CPU)
    assert (made.shape, made.stride()) == ((3, 4), (8, 2))
    assert bool(((made >= 0.5) & (made <= 1.5)).all())
    drawn = torch.get_rng_state()
    assert torch.equal(example((2,), (1,), torch.int64, CPU), torch.zeros(2, dtype=torch.int64))
    assert example((2, 0), (1, 1), torch.float16, CPU).shape == (2, 0)
    assert torch.equal(torch.get_rng_state(), drawn)


# -- candidates: data for the renderers ----------------------------------------------------------


def test_labels_show_what_differs():
    assert Config().label == CppConfig().label == "default"
    assert CppConfig("one", 2).label == "threads=one registers=2"


@pytest.mark.parametrize("name", ["softmax_large", "layer_norm_saved", "chain_large", "mlp"])
def test_the_default_is_the_text_of_default_mode(name):
    program = PROGRAMS[name]
    graph, _ = record(program.fn, *made_inputs(program))
    target = two_threads(Options())
    done = schedule(lower(graph, name), target, Options())
    _, source = render(done, target)
    for choice in choices(done, target):
        assert choice.configs[0] == Config()
        function = choice.sources[0].text.partition('extern "C"')[2]
        assert function in source.text
        texts = [one.text for one in choice.sources]
        assert len(set(texts)) == len(texts)


CPP = ["relu_sum", "softmax_large", "layer_norm_backward", "arg_reductions", "half_chain"]
CPP += ["everything_sum_large", "transposed_large", "embedding", "column_sum_large"]


@pytest.mark.parametrize("name", CPP)
def test_every_cpp_candidate_computes_the_same(name, tmp_path):
    """Through the tuner itself: none is refused by the compiler, none is wrong."""
    program = PROGRAMS[name]
    inputs = made_inputs(program)
    found, _ = tuned(program.fn, inputs, tmp_path, timer=lambda run, device: 1.0)
    assert not found.reason or "nothing to choose" in found.reason
    assert {t.outcome for t in found.trials} <= {"chosen", "slower"}


def test_stages_are_loads_in_flight():
    """Triton pipelines a loop over plain loads only where the loop itself asks for it."""
    graph, _ = record(softmax, torch.randn(600, 17000))
    done = schedule(lower(graph, "test"), H200, Options())
    (choice,) = [c for c in choices(done, H200) if any("stages" in x.label for x in c.configs)]
    for config, source in zip(choice.configs, choice.sources, strict=True):
        staged = f"num_stages={getattr(config, 'stages', 0)})" in source.text
        assert staged == ("stages" in config.label)


TRITON = ["softmax_parts", "layer_norm_saved", "chain_large", "transposed_large", "relu_sum"]


@pytest.mark.parametrize("name", TRITON)
def test_triton_candidates_compute_the_same(name):
    pytest.importorskip("triton")
    program = PROGRAMS[name]
    inputs = made_inputs(program)
    graph, _ = record(program.fn, *inputs)
    done = schedule(lower(graph, name), H200, Options())
    given = choices(done, H200)
    assert any(len(choice.configs) > 2 for choice in given)
    expected, _ = run_interpreted(render(done, H200)[1], render(done, H200)[0], inputs)
    for number in range(1, max(len(choice.configs) for choice in given)):
        overrides = {c.kernel: c.configs[number] for c in given if number < len(c.configs)}
        plan, source = render(done, H200, overrides)
        got, _ = run_interpreted(source, plan, inputs)
        assert all(tuning._is_close(a, b) for a, b in zip(got, expected, strict=True)), overrides


def test_triton_is_tuned_with_a_made_up_device(tmp_path):
    """The whole of the Triton path except the launches themselves."""
    x = torch.randn(300, 700)
    graph, _ = record(softmax, x)
    options = make_options({"cache_dir": str(tmp_path)})
    done = schedule(lower(graph, "test"), H200, options)
    (choice,) = choices(done, H200)
    wanted = next(c for c in choice.configs if c.label.startswith("warps"))

    def build(plan: Plan, source: KernelSource) -> Any:
        warps = source.grids[choice.kernel].num_warps

        def run(*arguments: Tensor) -> int:
            arguments[-1].copy_(softmax(arguments[0]))
            return warps

        return run

    def timer(run: Any, device: torch.device) -> float:
        run()
        return 0.5 if run is timed[1 + choice.configs.index(wanted) - 1] else 1.0

    timed: list[Any] = []
    real = tuning._checked

    def checked(run: Any, expected: list[Any], restore: Any) -> str:
        timed.append(run)
        return real(run, expected, restore)

    plan = render(done, H200)[0]
    patch = pytest.MonkeyPatch()
    patch.setattr(tuning, "_checked", checked)
    patch.setattr(tuning, "_device", lambda target: "made up")
    try:
        found = tune(plan, [choice], lambda: [x], H200, options, timer=timer, build=build)
    finally:
        patch.undo()
    assert found.configs == {choice.kernel: wanted}
    assert render(done, H200, found.configs)[1].grids[choice.kernel].num_warps == wanted.warps


# -- products ------------------------------------------------------------------------------------


def test_products_are_decided_by_measuring_the_whole():
    graph, _ = record(lambda x, a, b: torch.relu(x @ a) @ b, *_matrices())
    options = Options()
    target = two_threads(options)
    program = lower(graph, "test")
    products = product_choices(program, target, options)
    assert list(products) == ["4 x 32 @ 32 x 16", "4 x 16 @ 16 x 8"]
    assert all(by_itself for _, by_itself in products.values())
    names = products["4 x 16 @ 16 x 8"][0]
    plan, _ = render(schedule(program, target, options, dict.fromkeys(names, False)), target)
    calls = [step for step in plan.steps if isinstance(step, tuning.Call)]
    assert len(calls) == 1


def _matrices() -> list[Tensor]:
    return [torch.randn(4, 32), torch.randn(32, 16), torch.randn(16, 8)]


def test_a_product_that_loses_goes_to_the_library(monkeypatch, tmp_path):
    x, a, b = _matrices()
    clock = Clock(1)
    monkeypatch.setattr(tuning.tune_products, "__kwdefaults__", {"report": print, "timer": clock})
    run = jitmagic.jit(
        lambda x: torch.relu(x @ a) @ b,
        mode="max-autotune",
        options={"cache_dir": str(tmp_path)},
    )
    torch.testing.assert_close(run(x), torch.relu(x @ a) @ b)
    first = [t for t in trials_of(run) if t.subject == "product 4 x 32 @ 32 x 16"]
    assert [(t.config, t.outcome) for t in first] == [
        ("generated kernel", "slower"),
        ("library kernel", "chosen"),
    ]
    (compiled,) = handle_of(run).journal
    plan, _ = compiled.result("forward: render")
    assert sum(isinstance(step, tuning.Call) for step in plan.steps) == 1


# -- end to end ----------------------------------------------------------------------------------


def test_a_model_in_training_is_tuned(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))
    x = torch.randn(16, 64)
    expected = model(x).square().mean()
    expected.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    options = {"cache_dir": str(tmp_path)}
    run = jitmagic.jit(lambda x: model(x).square().mean(), mode="max-autotune", options=options)
    got = run(x)
    got.backward()
    torch.testing.assert_close(got, expected)
    for p, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, grad)
    assert {graph for graph, _ in stages_of(run)} == {"forward", "backward"}
    tried = trials_of(run)
    assert all(t.measured for t in tried)
    winners = [t.subject for t in tried if t.outcome == "chosen"]
    assert sorted(winners) == sorted({t.subject for t in tried})
    jitmagic.reset()
    run(x).backward()
    assert [replace(t, measured=True) for t in trials_of(run)] == tried
    assert not any(t.measured for t in trials_of(run))


@pytest.mark.parametrize(("layer", "layers"), [(nn.LSTM, 2), (nn.GRU, 1), (nn.RNN, 1)])
def test_a_workspace_of_a_library_is_not_made_up(layer, layers, tmp_path):
    """A backward is tuned on made-up tensors; oneDNN would read these bytes as its own."""
    torch.manual_seed(0)
    model, x = layer(4, 6, layers), torch.randn(2, 5, 4)  # each step of GRU and RNN is tuned
    options = {"cache_dir": str(tmp_path)}
    run = jitmagic.jit(lambda x: model(x)[0] * 2, mode="max-autotune", options=options)
    (model(x)[0] * 2).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    run(x).sum().backward()
    for p, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, grad)


def test_tiers_without_a_choice_say_so(tmp_path):
    pytest.importorskip("numba")
    options = {"cpu_tier": "numba", "cache_dir": str(tmp_path)}
    run = jitmagic.jit(softmax, mode="max-autotune", options=options)
    x = torch.randn(4, 5)
    torch.testing.assert_close(run(x), softmax(x))
    ((_, found),) = stages_of(run)
    assert not found.trials
    assert found.reason == "there is nothing to choose for the kernels of numba"


def test_default_mode_tunes_nothing(tmp_path):
    run = jitmagic.jit(softmax, options={"cache_dir": str(tmp_path)})
    run(torch.randn(4, 5))
    (compiled,) = handle_of(run).journal
    assert not [s.stage for s in compiled.stages if s.stage.endswith("tune")]


@pytest.mark.parametrize(
    ("mode", "graphs", "tunes"),
    [
        ("default", False, False),
        ("reduce-overhead", True, False),
        ("max-autotune", True, True),
        ("max-autotune-no-cudagraphs", False, True),
    ],
)
def test_what_the_modes_imply(mode, graphs, tunes):
    options = make_options(mode=mode)
    assert (options.cuda_graphs, options.tunes) == (graphs, tunes)
