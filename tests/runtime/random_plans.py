"""Random plans: memory of every kind, views, writes in place, and operators."""

from __future__ import annotations

import ctypes
import random

import torch

from jitmagic.codegen.plan import Alloc, Call, Free, Launch, Layout, Plan, Pool, Reuse, Slot, View
from jitmagic.runtime.native import CpuEntry, make_executable

CPU, F32, SIZE = torch.device("cpu"), torch.float32, 6
KERNEL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
aten = torch.ops.aten


@torch.library.custom_op("random_plans::add_", mutates_args=("x",))
def add_(x: torch.Tensor, number: int) -> None:
    x.add_(number)


LAYOUT = Layout((SIZE,), (1,), F32, CPU, True)


def _mixed(reads: list[torch.Tensor], out: torch.Tensor, adds: bool) -> None:
    total = sum((n + 1) * read.cumsum(0).sum() for n, read in enumerate(reads)) / 8
    made = torch.arange(out.numel(), dtype=F32) - total % 5
    out.copy_(out + made if adds else made)


def kernel_named(name: str) -> CpuEntry:
    """A kernel over buffers of these sizes, of which the last is written: "adds_6_3"."""
    kind, *sizes = name.split("_")

    def run(pointers: int) -> int:
        places = (ctypes.c_void_p * len(sizes)).from_address(pointers)
        *reads, out = (
            torch.frombuffer((ctypes.c_float * int(size)).from_address(place), dtype=F32)
            for place, size in zip(places, sizes)
        )
        _mixed(reads, out, kind == "adds")
        return 0

    function = KERNEL(run)
    return CpuEntry(ctypes.cast(function, ctypes.c_void_p).value or 0, function)


def bind(plan: Plan):
    names = {step.kernel for step in plan.steps if isinstance(step, Launch)}
    return make_executable(plan, {name: kernel_named(name) for name in names})


class RandomPlan:
    """Writes a plan of `length` launches and calls; `foreign` of the calls cannot be recorded."""

    def __init__(self, seed: int, length: int, foreign: float = 0.4) -> None:
        self.random, self.foreign = random.Random(seed), foreign
        self.inputs = self.random.randint(1, 4)
        self.constants = (torch.arange(SIZE, dtype=F32),)
        self.count = self.inputs + 1
        self.sizes = dict.fromkeys(range(self.count), SIZE)  # of live slots
        self.roots: dict[int, int] = {}  # of live views
        self.steps: list = []
        self.pool: dict[int, int] = {}
        self.written: set[int] = set()
        for _ in range(length):
            self.work()
        self.plan = Plan(
            "random", self.inputs, self.constants, tuple(self.steps), self.outputs(),
            64 * (max(self.pool.values(), default=0) + 1), CPU, tuple(sorted(self.written)),
        )  # fmt: skip

    def slot(self, size: int = SIZE) -> int:
        self.count += 1
        self.sizes[self.count - 1] = size
        return self.count - 1

    def live(self) -> int:
        return self.random.choice(list(self.sizes))

    def memory(self) -> list[int]:
        """Live memory of the plan's own."""
        return [slot for slot in self.sizes if slot > self.inputs and slot not in self.roots]

    def work(self) -> None:
        if self.random.random() < 0.4:
            self.view()
        reads = [self.live() for _ in range(self.random.randint(1, 3))]
        kinds = self.launch, self.launch, self.adding, self.call, self.out, self.inplace, self.alias
        self.random.choice(kinds)(reads)
        if self.random.random() < 0.4 and (own := self.memory()):
            self.free(self.random.choice(own))

    def view(self) -> None:
        base = self.live()
        if self.sizes[base] == SIZE:
            start = self.random.randint(0, 3)
            root = self.roots.get(base, base)
            made = self.slot(3)
            self.roots[made] = root
            self.steps.append(View(made, base, (3,), (1,), start, F32))

    def new(self, reads: list[int]) -> int:
        """Memory that the next step writes."""
        kind = self.random.choice([Alloc, Pool, Reuse])
        bases = [s for s in self.memory() if s not in self.pool and self.sizes[s] == SIZE]
        facts = (SIZE,), (1,), F32, CPU
        if kind is Reuse and bases:
            base = self.random.choice(bases)
            made = self.slot()
            self.steps.append(Reuse(made, base, *facts))
            self.dying = base
            reads[:] = [slot for slot in reads if self.roots.get(slot, slot) != base]
            return made
        made = self.slot()
        if kind is Pool:
            used = {self.pool[slot] for slot in self.pool if slot in self.sizes}
            self.pool[made] = next(n for n in range(self.count) if n not in used)
            self.steps.append(Pool(made, 64 * self.pool[made], *facts))
        else:
            self.steps.append(Alloc(made, *facts))
        return made

    def free(self, root: int) -> None:
        for slot in [*(view for view, at in self.roots.items() if at == root), root]:
            self.steps.append(Free(slot))
            self.sizes.pop(slot)
            self.roots.pop(slot, None)

    def launch(self, reads: list[int]) -> None:
        self.dying = None
        out = self.new(reads)
        self.run("mixed", reads, out)
        if self.dying is not None:
            self.free(self.dying)

    def adding(self, reads: list[int]) -> None:
        out = self.live()
        if self.roots.get(out, out) != self.inputs:  # the constant
            self.run("adds", reads, out)

    def run(self, kind: str, reads: list[int], out: int) -> None:
        reads = [slot for slot in reads if self.roots.get(slot, slot) != self.roots.get(out, out)]
        name = "_".join([kind, *(str(self.sizes[slot]) for slot in (*reads, out))])
        self.note(out)
        self.steps.append(Launch(name, (*reads, out), (out,)))

    def note(self, out: int) -> None:
        root = self.roots.get(out, out)
        assert root != self.inputs
        if root < self.inputs:
            self.written.add(root)

    def call(self, reads: list[int]) -> None:
        given, whole = Slot(reads[0]), self.sizes[reads[0]] == SIZE
        made = self.slot(self.sizes[reads[0]])
        foreign = self.random.random() < self.foreign
        more = False, (LAYOUT if whole else None,), foreign
        self.steps.append(Call(aten.mul.Tensor, (given, 0.75), {}, (made,), *more))

    def alias(self, reads: list[int]) -> None:
        """Add a call that returns memory of its argument, as its schema says."""
        if bases := [slot for slot in self.memory() if slot not in self.pool]:
            base = self.random.choice(bases)
            made = self.slot(self.sizes[base])
            self.steps.append(Call(aten.alias.default, (Slot(base),), {}, (made,)))

    def out(self, reads: list[int]) -> None:
        whole = [slot for slot in reads if self.sizes[slot] == SIZE]
        made = self.slot()
        self.steps.append(Alloc(made, (SIZE,), (1,), F32, CPU))
        if whole:
            self.steps.append(Call(aten.neg.out, (Slot(whole[0]),), {}, (made,), out=True))
        else:
            self.run("mixed", reads, made)

    def inplace(self, reads: list[int]) -> None:
        into = self.live()
        if self.roots.get(into, into) == self.inputs:
            return
        self.note(into)
        foreign = self.random.random() < self.foreign
        given = (Slot(into), self.random.randint(1, 3))
        if foreign:
            add = torch.ops.random_plans.add_.default
            self.steps.append(Call(add, given, {}, (), foreign=True))
        else:
            self.steps.append(Call(aten.add_.Scalar, given, {}, (None,)))

    def outputs(self) -> tuple[int | None, ...]:
        may = [slot for slot in self.sizes if self.roots.get(slot, slot) not in self.pool]
        return (*(self.random.choice(may) for _ in range(self.random.randint(1, 6))), None)
