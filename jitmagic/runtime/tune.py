"""Autotunes: measures several implementations of a kernel or a graph and picks the fastest.

In: a plan with alternative texts for its kernels (a KernelChoice each), and tensors to run it on.
Out: a Tuned: the config of every kernel, and a Trial for everything measured. The plan runs once
step by step in the Python executor; at the first launch of a kernel its candidates are timed on the
tensors of that launch. `pick` does the same for whole executables.

Invariants: a candidate wins only if its results equal the default's (sums may be reassociated) and
it is faster beyond noise. What a kernel writes is restored before each run. The caller's tensors
and random generators are left unchanged, also after Ctrl-C. Decisions are cached next to the
kernels, keyed by texts, device, threads and versions, so a warm process measures nothing. A plan
with operators outside ATen is not tuned, because running those again could have visible side
effects.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch

from ..codegen.plan import Call, Config, KernelChoice, KernelSource, Launch, Plan
from ..devices import Target, row_of
from ..errors import CompileFailed
from ..lazy_dataclass import dataclass, field, replace
from ..options import Options
from ..torch_types import Executable
from .load import load
from .native import slots_in
from .plan_interpreter import PlanRunner
from .store import Store, content_key, store_of

__all__ = ["Build", "Timer", "Trial", "Tuned", "clock", "pick", "tune", "tune_products"]

ROUNDS = 5  # measurements of each candidate, interleaved; the best counts
BATCH = 2e-3  # seconds of one measurement, in which short kernels run many times
MARGIN = 0.97  # a winner takes at most this fraction of the default's time
SLACK = 64  # roundings of the largest element by which reassociated sums may differ
SLACK_HALF = 2  # the same for 16 bits, rounded once from wider sums
MAX_PRODUCTS = 8  # products tuned: each needs a build of the whole graph
_PRODUCT = "product "
_KERNEL_OF = {True: "generated kernel", False: "library kernel"}
_VERSION = "1"  # version of the file format

Timer = Callable[[Executable, torch.device], float]
Build = Callable[[Plan, KernelSource], Executable]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement: `subject` with `config` took `seconds` per run (0: it did not run).

    outcome: "chosen" | "slower" | "wrong result" | "failed: why". `measured`: in this process, not
    an earlier one.
    """

    subject: str
    config: str
    seconds: float
    outcome: str
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Tuned:
    """Holds the `configs` that differ from the heuristics' choice, and the `reason` why tuning was
    skipped.
    """

    configs: Mapping[str, Config] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    reason: str = ""


def clock(run: Executable, device: torch.device) -> float:
    """Return the seconds of one call, averaged over a batch."""
    if row_of(device).runs_cuda:
        return _clock_cuda(run, device)
    started = time.perf_counter()
    run()
    once = time.perf_counter() - started
    calls = max(1, min(1000, int(BATCH / max(once, 1e-7))))
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - started) / calls


def _clock_cuda(run: Executable, device: torch.device, calls: int = 20) -> float:
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls


# -- kernels --------------------------------------------------------------------------------------


def tune(
    plan: Plan,
    choices: Sequence[KernelChoice],
    inputs: Callable[[], Sequence[torch.Tensor]],
    target: Target,
    options: Options,
    *,
    report: Report = lambda text: None,
    timer: Timer = clock,
    build: Build | None = None,
) -> Tuned:
    """Return the best config of every kernel; `inputs` is called if something must be measured."""
    store = store_of(options)
    open_ones = [choice for choice in choices if len(choice.configs) > 1]
    known = {c.kernel: _recall(_key_of(c, target), store, _configs_of(c)) for c in open_ones}
    trials_of = {name: trials for name, trials in known.items() if trials is not None}
    missing = [choice for choice in open_ones if choice.kernel not in trials_of]
    reason = "" if open_ones else f"there is nothing to choose for the kernels of {target.tier}"
    if missing:
        tensors = inputs()
        reason = _refusal(plan, tensors)
        if not reason:
            tuner = _Tuner(
                plan, choices, missing, build or _builder(target, options), timer, report
            )
            tuner.keep = lambda choice, trials: _remember(_key_of(choice, target), trials, store)
            reason = tuner.run(tensors)
            trials_of.update(tuner.found)
    return Tuned(
        _chosen(open_ones, trials_of), tuple(t for ts in trials_of.values() for t in ts), reason
    )


def _configs_of(choice: KernelChoice) -> set[tuple[str, str]]:
    return {(choice.kernel, config.label) for config in choice.configs}


def _chosen(
    choices: Sequence[KernelChoice], trials_of: Mapping[str, Sequence[Trial]]
) -> dict[str, Config]:
    """Return the configs of the winners that are not the default."""
    configs = {}
    for choice in choices:
        winner = [trial.config for trial in trials_of.get(choice.kernel, ()) if _won(trial)]
        for config in choice.configs[1:]:
            if config.label in winner:
                configs[choice.kernel] = config
    return configs


def _won(trial: Trial) -> bool:
    return trial.outcome == "chosen"


def _refusal(plan: Plan, inputs: Sequence[torch.Tensor]) -> str:
    """Return why the plan must not be run for measurements, or "". The inputs of a backward are
    synthetic, but a library's workspace cannot be synthesised, since its contents come from the
    forward.
    """
    workspaces = {n for n, tensor in enumerate(inputs) if tensor.dtype is torch.uint8}
    for step in plan.steps:
        if not isinstance(step, Call):
            continue
        if step.op.namespace != "aten":
            return f"{step.op} is not an ATen operator: a second run of it might be observed"
        if any(isinstance(part, torch.Generator) for part in (*step.args, *step.kwargs.values())):
            return f"{step.op} draws from a generator of its own"
        if any(slot.index in workspaces for slot in slots_in((step.args, *step.kwargs.values()))):
            return f"{step.op} reads opaque bytes of a library"
    return ""


def _builder(target: Target, options: Options) -> Build:
    plainly = replace(options, cuda_graphs=False)

    def build(plan: Plan, source: KernelSource) -> Executable:
        return load(plan, source, target, plainly).run

    return build


class _Tuner:
    """Runs the plan once and measures each kernel of `missing` at its first launch."""

    def __init__(
        self,
        plan: Plan,
        choices: Sequence[KernelChoice],
        missing: Sequence[KernelChoice],
        build: Build,
        timer: Timer,
        report: Report,
    ) -> None:
        self.plan, self.choices, self.missing = plan, choices, list(missing)
        self.build, self.timer, self.report = build, timer, report
        self.found: dict[str, tuple[Trial, ...]] = {}
        self.keep: Callable[[KernelChoice, Sequence[Trial]], None] = lambda choice, trials: None

    def run(self, inputs: Sequence[torch.Tensor]) -> str:
        """Measure all kernels; returns why it stopped early, or an empty string."""
        mutated = set(self.plan.mutated)
        own = [_copy(x) if n in mutated else x.detach() for n, x in enumerate(inputs)]
        try:
            with _same_random_numbers(self.plan.device):
                kernels = {choice.kernel: self._kernel(choice) for choice in self.choices}
                PlanRunner(self.plan, kernels)(*own)
        except (RuntimeError, IndexError) as error:
            return _failure(error)
        return ""

    def _kernel(self, choice: KernelChoice) -> Callable[[list[torch.Tensor]], object]:
        """Return the kernel for the Python executor: the default, measured once against the
        others.
        """
        default: list[Executable] = []

        def launch(arguments: list[torch.Tensor]) -> object:
            if not default:
                default.append(self.build(self._alone(choice), choice.sources[0]))
                if choice in self.missing:
                    self._measure(choice, default[0], arguments)
            default[0](*arguments)
            return None

        return launch

    def _alone(self, choice: KernelChoice) -> Plan:
        """Return a plan of one launch on tensors that are passed in."""
        count = len(choice.sources[0].symbols[choice.kernel])
        launch = Launch(choice.kernel, tuple(range(count)))
        written = tuple(range(count - choice.written, count))
        device = self.plan.device
        return Plan(choice.kernel, count, (), (launch,), (), 0, device, written)

    def _measure(
        self, choice: KernelChoice, default: Executable, arguments: list[torch.Tensor]
    ) -> None:
        number = 1 + self.missing.index(choice)
        count = len(choice.configs)
        self.report(f"kernel {number} of {len(self.missing)}: {choice.kernel} in {count} ways")
        written = arguments[len(arguments) - choice.written :]
        before = [_copy(tensor) for tensor in written]

        def restore() -> None:
            for tensor, saved in zip(written, before, strict=True):
                tensor.copy_(saved)

        def way(run: Executable) -> Executable:
            def once() -> tuple[torch.Tensor, ...]:
                run(*arguments)
                return tuple(written)

            return once

        built = [default, *self._candidates(choice)]
        runs = [run if isinstance(run, str) else way(run) for run in built]
        labels = [config.label for config in choice.configs]
        ways = list(zip(labels, runs, strict=True))
        trials = pick(choice.kernel, ways, self.timer, self.plan.device, restore)
        self.found[choice.kernel] = trials
        self.keep(choice, trials)

    def _candidates(self, choice: KernelChoice) -> list[Executable | str]:
        """Build all but the default in parallel: compilers do not hold the GIL."""
        plan, sources = self._alone(choice), choice.sources[1:]
        pool = ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1))
        try:
            return list(pool.map(lambda source: _built(lambda: self.build(plan, source)), sources))
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C no further one starts


def _built(make: Callable[[], Executable]) -> Executable | str:
    try:
        return make()
    except CompileFailed as error:
        return f"failed: {str(error).splitlines()[0]}"


# -- matrix products ------------------------------------------------------------------------------


def tune_products(
    products: Mapping[str, tuple[Sequence[str], bool]],
    make: Callable[[Mapping[str, bool]], tuple[Plan, Executable]],
    inputs: Callable[[], Sequence[torch.Tensor]],
    facts: str,
    target: Target,
    options: Options,
    *,
    report: Report = lambda text: None,
    timer: Timer = clock,
) -> tuple[dict[str, bool], Tuned]:
    """Decide which products use generated kernels: switch each in turn and measure the whole graph.

    products: description -> (names of the steps, whether they are generated by default); make:
    deviations from the default -> the plan and its executable; facts: the program, as text.
    """
    asked = dict(list(products.items())[:MAX_PRODUCTS])
    store, key = store_of(options), decision_key(target, facts, repr(asked))
    ways = {(f"{_PRODUCT}{label}", kernel) for label in asked for kernel in _KERNEL_OF.values()}
    trials = _recall(key, store, ways) if asked else ()
    reason = ""
    if trials is None:
        trials, reason = _try_products(asked, make, inputs, report, timer)
        if not reason:
            _remember(key, trials, store)
    generated: dict[str, bool] = {}
    for trial in trials:
        names, by_itself = asked[trial.subject.removeprefix(_PRODUCT)]
        if _won(trial) and trial.config != _KERNEL_OF[by_itself]:
            generated.update(dict.fromkeys(names, not by_itself))
    return generated, Tuned({}, trials, reason)


def _try_products(
    products: Mapping[str, tuple[Sequence[str], bool]],
    make: Callable[[Mapping[str, bool]], tuple[Plan, Executable]],
    inputs: Callable[[], Sequence[torch.Tensor]],
    report: Report,
    timer: Timer,
) -> tuple[tuple[Trial, ...], str]:
    plan, best = make({})
    given = inputs()
    if reason := _refusal(plan, given):
        return (), reason
    own = [_copy(x) if n in plan.mutated else x.detach() for n, x in enumerate(given)]
    trials: list[Trial] = []
    try:
        with _same_random_numbers(plan.device):
            drawn, decided = torch.get_rng_state(), dict[str, bool]()

            def restore() -> None:
                torch.set_rng_state(drawn)
                for n in plan.mutated:
                    own[n].copy_(given[n])

            for number, (label, (names, by_itself)) in enumerate(products.items(), 1):
                report(f"product {number} of {len(products)}: {label}")
                other = {**decided, **dict.fromkeys(names, not by_itself)}
                built = _built(lambda other=other: make(other)[1])  # type: ignore[misc]
                ways = [(_KERNEL_OF[by_itself], best), (_KERNEL_OF[not by_itself], built)]
                bound = [(w, r if isinstance(r, str) else partial(r, *own)) for w, r in ways]
                found = pick(f"{_PRODUCT}{label}", bound, timer, plan.device, restore)
                trials += found
                if _won(found[1]):
                    assert not isinstance(built, str)
                    best, decided = built, other
    except (RuntimeError, IndexError) as error:
        return (), _failure(error)
    return tuple(trials), ""


def _failure(error: Exception) -> str:
    """Describe the failure in words: it only ends the tuning; eager or the load stage raises the
    error.
    """
    return f"running it failed: {type(error).__name__}: {str(error).splitlines()[0]}"


# -- alternatives ---------------------------------------------------------------------------------


def pick(
    subject: str,
    ways: Sequence[tuple[str, Executable | str]],
    timer: Timer,
    device: torch.device,
    restore: Callable[[], None],
) -> tuple[Trial, ...]:
    """Return one trial per alternative, exactly one of them chosen. The first is the default and
    defines the expected results. An alternative is a callable that returns its results, or the
    reason why it cannot be built.
    """
    runs: dict[str, Executable] = {}
    verdicts: dict[str, str] = {}
    expected: list[torch.Tensor | None] = []
    for label, run in ways:
        verdict = run if isinstance(run, str) else _checked(run, expected, restore)
        if verdict:
            verdicts[label] = verdict
        else:
            assert not isinstance(run, str)
            runs[label] = run
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for label, run in runs.items():
            restore()
            best[label] = min(best[label], timer(run, device))
    restore()
    first = ways[0][0]
    winner = min(best, key=lambda label: best[label])
    if best[winner] > MARGIN * best[first]:
        winner = first
    return tuple(
        Trial(subject, label, best.get(label, 0.0), verdicts.get(label) or _outcome(label, winner))
        for label, _ in ways
    )


def _outcome(label: str, winner: str) -> str:
    return "chosen" if label == winner else "slower"


def _checked(
    run: Executable, expected: list[torch.Tensor | None], restore: Callable[[], None]
) -> str:
    """Return what is wrong with the results; the first call sets the expected ones."""
    restore()
    if not expected:
        expected.extend(None if t is None else t.clone() for t in run())
        return ""
    try:
        got = run()
    except (RuntimeError, IndexError) as error:  # for example a launch that the driver refuses
        return f"failed: {str(error).splitlines()[0]}"
    same = all(_is_close(a, b) for a, b in zip(got, expected, strict=True))
    return "" if same else "wrong result"


def _is_close(got: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    """Return whether both are equal, up to roundings of the largest finite element for floats."""
    if got is None or expected is None:
        return got is expected
    if not expected.dtype.is_floating_point or not expected.numel():
        return torch.equal(got, expected)
    wide = torch.float64 if expected.dtype == torch.float64 else torch.float32
    a, b = got.to(wide), expected.to(wide)
    sizes = b.abs()[b.isfinite()]
    largest = float(sizes.max()) if sizes.numel() else 0.0
    roundings = SLACK_HALF if expected.dtype.itemsize <= 2 else SLACK
    room = roundings * torch.finfo(expected.dtype).eps
    return torch.allclose(a, b, rtol=room, atol=room * largest, equal_nan=True)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor.detach())


@contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """Restore random generators afterwards."""
    with torch.random.fork_rng([device] if row_of(device).runs_cuda else []), torch.no_grad():
        yield


# -- the disk -------------------------------------------------------------------------------------


def _key_of(choice: KernelChoice, target: Target) -> str:
    labels = [config.label for config in choice.configs]
    grids = [source.grids.get(choice.kernel) for source in choice.sources]
    texts = [source.text for source in choice.sources]
    return decision_key(target, *labels, repr(grids), *texts)


def decision_key(target: Target, *parts: str) -> str:
    """Return the key of a decision: same parts, device and versions."""
    return content_key("tune", _VERSION, torch.__version__, repr(target), _device(target), *parts)


def _device(target: Target) -> str:
    on_cuda = row_of(torch.device(target.device)).runs_cuda
    return torch.cuda.get_device_name() if on_cuda else torch.__config__.show()


def _recall(key: str, store: Store, known: Container[tuple[str, str]]) -> tuple[Trial, ...] | None:
    """Return the stored trials if all are of `known` (subject, config), else None: measure."""
    data = store.get(key, ".tuned")
    if data is None:
        return None
    try:
        kept = json.loads(data)
        trials = tuple(
            Trial(str(subject), str(how), float(took), str(said), False)
            for subject, how, took, said in kept
        )
    except (ValueError, TypeError):
        return None
    return trials if all((trial.subject, trial.config) in known for trial in trials) else None


def _remember(key: str, trials: Sequence[Trial], store: Store) -> None:
    text = json.dumps([(t.subject, t.config, t.seconds, t.outcome) for t in trials])
    store.put(key, ".tuned", text.encode())
