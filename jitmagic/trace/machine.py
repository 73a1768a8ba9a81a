"""The interpreter: `trace` turns a frame snapshot into a Trace.

The machine interprets the frame's bytecode over Values (values/base.py); each opcode has a handler
in opcodes/. Calls of Python functions are inlined: the same machine interprets them in a frame of
their own. Code that cannot be traced ends the attempt, and the frame is traced again up to the
root frame's instruction that ran into it (restarts.py). No state is rolled back. Live objects are
read and never changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING

from ..budget import OutOfTime
from ..bytecode.snapshot import FrameSnapshot
from ..call_warnings import noted_warnings
from ..errors import UserLine
from ..graph.builder import GraphBuilder
from ..guards.guard import AutocastDetails, Guard, IdentityIs
from ..guards.source import Argument, Source
from ..guards.state import read_autocast_details, read_state
from ..late import late_names
from ..options import Options
from ..symbols.context import Specialize
from ..symbols.size import Size
from .assumptions import Assumptions
from .attempts import next_attempt
from .breaks import (
    EscapingException,
    GraphBreak,
    InlineTooDeep,
    ManyIterations,
    MutatedGenerator,
    TensorBranch,
    TooManyInstructions,
    TorchCallFailed,
    UnsupportedOperation,
)
from .dead_calls import check_dead_calls
from .effects import EffectLog, ExitBuilder, TooManyRecipes, distinct_objects
from .fresh_values import fresh_value
from .graph_notes import GraphNotes
from .input_memory import check_histories
from .knowledge import Knowledge, reached_again
from .opcodes.registry import handler_for
from .python_loops.peeled import check_peeled
from .python_loops.plain import (
    LoopWatch,
    check_instruction,
    effort_of,
    seen_loops,
)
from .python_loops.rolled import check_head
from .residual.finalizers import check_dropped, names_kept_bound, passes_last_reference
from .residual.undo import can_assert
from .restarts import Reached, Restart, Stop, check_branch, release_tracebacks
from .result import Break, BreakReason, Draw, Effect, Exit, Recipe, Return, Trace
from .state import Frame, GuardBook, Program, Returned, Signal, program_of, user_lines
from .suspended import suspended
from .values.autograd.traced_backwards import SavedObjects, release_facts
from .values.base import Args, Builder, CannotRebuild, Kwargs, Lazy, ObservedError, Value
from .values.containers.generators import GeneratorValue
from .values.containers.mappings import DictValue
from .values.numbers.varying_counts import loop_test_position
from .values.objects.classes import ClassValue, class_value
from .values.objects.constants import ATOMS
from .values.objects.exceptions import ExceptionValue
from .values.objects.functions import FunctionValue
from .values.objects.namespaces import frame_globals
from .values.tensors.leaves import output_leaves
from .values.tensors.tensor_hooks import TensorHooks
from .varying.attempt_symbols import Symbols, undecided_reason
from .wrap import Wrapper, wrap_object

if TYPE_CHECKING:
    from .values.autograd.backward_facts import BackwardFacts
    from .values.autograd.later_hooks import register_at_exit
    from .values.objects.binding import bind_arguments
else:
    late_names(
        globals(),
        {
            "trace.values.autograd.later_hooks": "register_at_exit",
            "trace.values.objects.binding": "bind_arguments",
        },
    )

__all__ = ["Machine", "trace"]


_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def trace(
    snapshot: FrameSnapshot,
    options: Options,
    stop: Stop | None = None,
    assumed: Assumptions = Assumptions(),  # noqa: B008  # frozen
) -> Trace:
    """Interpret a frame symbolically; reads live objects, changes none and compiles nothing.

    `stop`: end before this instruction at the latest (tests use it to break everywhere).
    """
    programs: dict[CodeType, Program] = {}
    first = stop, assumed
    while True:
        machine = Machine(snapshot, options, stop, programs, assumed)
        try:
            with noted_warnings() as warned:
                traced = machine.run()
            return replace(traced, warned=tuple(warned))
        except OutOfTime as over:
            over.guards = machine.guards.finish(machine.entry_state)
            raise
        except Exception as error:  # `next_attempt` raises again what asks for no other attempt
            stop, assumed = next_attempt(machine, error, stop, first)
            release_tracebacks(error)
        finally:
            machine.forget()


class Machine:
    """One attempt at a trace. `Machine` in values/base.py is the part that values use."""

    def __init__(
        self,
        snapshot: FrameSnapshot,
        options: Options,
        stop: Stop | None,
        programs: dict[CodeType, Program],
        assumed: Assumptions,
    ) -> None:
        self.options, self.assumed = options, assumed
        self.symbols = Symbols(assumed, self.guard, partial(loop_test_position, self))
        self.snapshot = snapshot
        self.effects = EffectLog()
        # Read once, at the entry: later changes of these modes are recorded in the graph.
        self.entry_state = read_state()
        state = self.entry_state
        graph = GraphBuilder(state.grad_enabled, lambda: self._steps, state.transformed)
        self.notes = GraphNotes(graph)
        self.graph.fresh_size = self._fresh_size
        self.autocast: AutocastDetails | None = None
        self.frames: list[Frame] = []
        self.stop = stop
        self._programs = programs
        self.known = Knowledge()
        self._generators: list[GeneratorValue] = []
        self.owners, self.literals = dict[int, Value](), dict[int, Value]()  # by id
        self._hooks: list[Callable[[Builder], None]] = []
        self.backward_facts: BackwardFacts | None = None  # of a backward that is being traced
        self._steps: int = 0
        self._step_mark = 0  # number of guards when the root's instruction began
        self.instructions = 0
        self.watch = LoopWatch(assumed)
        self.root = self._root_frame()

    # -- the attempt -----------------------------------------------------------------------------

    def run(self) -> Trace:
        """Interpret the root frame to its end or to where this attempt has to stop."""
        try:
            signal = self.resume(self.root)
        except Reached:
            check_peeled(self)
            return self._finish(self._break)
        except ObservedError as observed:
            check_branch(self.notes.marks)
            reason = EscapingException.of(error=observed.error.python_type(self).__name__)
            raise self._restart(reason, mark=observed.mark or 0) from None
        except GraphBreak as broken:
            if isinstance(broken.reason, TorchCallFailed):
                check_branch(self.notes.marks)
            raise self._restart(broken.reason, broken.where, mark=broken.mark) from None
        except Specialize as special:
            undecided = undecided_reason(special, self.assumed.speculates_in)
            if undecided is None:
                raise
            raise self._restart(undecided, self.symbols.where) from None
        except RecursionError:  # this interpreter uses several Python frames per inlined call
            raise self._restart(InlineTooDeep.of(limit=len(self.frames) + 1)) from None
        assert isinstance(signal, Returned)
        check_peeled(self)
        return self._finish(lambda builder: Return(builder(signal.value)))

    def _fresh_size(self, least: int, most: int) -> Size | None:
        self.symbols.results = self.graph.sizes.inputs
        return self.symbols.data_size(least, most, self.where())

    def forget(self) -> None:
        """Release all references: reference cycles would keep the call's arguments alive."""
        for generator in self._generators:
            del generator.resume, generator.must_close  # closures over the generator itself
        release_facts(self.notes)
        self.symbols.forget()
        vars(self).clear()

    def _restart(
        self,
        reason: BreakReason,
        where: UserLine | None = None,
        step: int | None = None,
        mark: int | None = None,
    ) -> Restart:
        because = () if mark is None else self.guards.led_to(reason, self._step_mark, mark)
        if step is None:
            step = self.step
            # A loop too long to unroll ends the graph at its second iteration, not at the limit:
            # the resume function there is one iteration, compiled once for all that follow.
            too_long = isinstance(reason, TooManyInstructions | ManyIterations)
            if too_long and self.watch.first_jump_back is not None:
                step = min(step, self.watch.first_jump_back)
        return Restart(Stop(step, reason, where or self.root.line(), because))

    def _finish(self, make_exit: Callable[[ExitBuilder], Exit]) -> Trace:
        # Effects before guards: describing an exit reads live objects, which adds guards.
        exit_, effects, draws = self._describe_end(make_exit)
        self.guard(*self.known.unread())
        seen = [value for _, value in self.known.memo.values()]
        distinct_objects(self, list(self.effects.mutated.values()), seen)
        distinct_objects(self, list(self.known.keys.values()), list(self.known.keys.values()))
        because = self.stop.because if self.stop and isinstance(exit_, Break) else ()
        self.guard(*because)
        name = self.snapshot.name
        casts = self.notes.cached_casts(self.assumed.written_later)
        graph, inputs = self.notes.finish(name)
        guards = self.guards.finish(self.entry_state)
        constants = (*self.symbols.constants.values(), *self.symbols.counted())
        trace = Trace(
            name,
            graph,
            inputs,
            guards,
            effects,
            exit_,
            instructions=self.instructions,
            mutated=self.graph.written(),
            because=because,
            specialized=constants,
            lock=self.effects.lock,
            draws=draws,
            casts=casts,
            held=tuple(self.notes.of(SavedObjects)),
            has_ones=self.symbols.has_ones,
            loops=seen_loops(self, isinstance(exit_, Break)),
        )
        # If an assertion fails, eager runs the call from the frame's start.
        if self.graph.assertions and not can_assert(trace.inputs[n].spec for n in trace.mutated):
            what = "an assertion, after which eager cannot run from the start"
            step = self.graph.assertions[0].meta["step"]
            raise self._restart(TensorBranch.of(what=what), step=step)
        return trace

    def _describe_end(
        self, make_exit: Callable[[ExitBuilder], Exit]
    ) -> tuple[Exit, tuple[Effect, ...], tuple[Draw, ...]]:
        """Return how the frame ends, its effects and the random numbers that it draws."""
        builder = ExitBuilder(self, self.graph)
        try:
            exit_ = make_exit(builder)
            self.effects.describe(builder)
            if self.notes.of(TensorHooks):
                register_at_exit(self, builder)
            for hook in self._hooks:
                hook(builder)
            for generator in self._generators:
                generator.check_droppable()
            draws = self.effects.draws(builder)
            effects = builder.effects()
            check_histories(self.notes)
            output_leaves(self.graph)
            check_dead_calls(self.graph)
        except CannotRebuild as lost:
            cause = f": {self.stop.reason.message}" if self.stop is not None else ""
            reason = lost.reason or MutatedGenerator.of(what=lost.what, cause=cause)
            where = None if lost.reason else self.root.line()
            # The value cannot be rebuilt in Python: the graph has to end before it was created.
            raise Restart(Stop(lost.created_at_step, reason, where)) from None
        except TooManyRecipes as long:  # later calls that pass these guards run as eager too
            because = tuple(self.guards.since(0))
            raise Restart(Stop(1, long.reason, self.root.line(), because)) from None
        return exit_, effects, draws

    def _break(self, builder: ExitBuilder) -> Break:
        """Describe the state of the root frame before the instruction to stop at."""
        assert self.stop is not None
        stack = tuple(None if value is None else builder(value) for value in self.root.stack)
        body = self.root.program.body
        cell_names = {*body.cellvars, *body.freevars}
        slots = {name: builder(value) for name, value in self.root.slots.items()}
        locals_: Mapping[str, Recipe] = {n: r for n, r in slots.items() if n not in cell_names}
        cells: Mapping[str, Recipe] = {n: r for n, r in slots.items() if n in cell_names}
        reason, line, at = self.stop.reason, self.root.line(), self.root.at
        held, callee_holds = names_kept_bound(self), passes_last_reference(self)
        where = self.stop.where or line
        return Break(reason, where, at, stack, locals_, cells, held, line, callee_holds)

    # -- frames ----------------------------------------------------------------------------------

    def _root_frame(self) -> Frame:
        snapshot = self.snapshot
        program = program_of(snapshot.code, self._programs)
        body = program.body
        values = (*snapshot.args, *snapshot.cells)
        names = (*body.parameters, *body.freevars)
        slots = {
            name: self.lazy(value, Argument(index, name))
            for index, (name, value) in enumerate(zip(names, values, strict=True))
        }
        return Frame(program, slots, frame_globals(self, snapshot.globals))

    @property
    def frame(self) -> Frame:
        """The frame being interpreted."""
        return self.frames[-1]

    def catches(self) -> bool:
        return any(frame.program.catches_at(frame.at) for frame in self.frames)

    def handled(self) -> Value | None:
        return next((one.handling[-1] for one in reversed(self.frames) if one.handling), None)

    def resume(self, frame: Frame) -> Signal:
        self.frames.append(frame)
        try:
            while True:
                signal = self.execute(frame)
                frame.at = frame.next
                if signal is not None:
                    return signal
        finally:
            self.frames.pop()

    def execute(self, frame: Frame) -> Signal:
        """Interpret one instruction."""
        if frame is self.root:  # graphs end here only: an inlined callee cannot resume
            self._begin_step()
        self.instructions += 1
        # The guards after `mark` are what this instruction read: a break rests on those facts.
        instruction, mark = frame.instruction, len(self.guards)
        frame.next = frame.at + 1
        try:
            check_instruction(self, frame)
            return handler_for(instruction.op)(self, frame, instruction)
        except GraphBreak as broken:
            if broken.where is None:
                broken.where, broken.mark = self.where(), mark
            raise
        except Specialize:
            self.symbols.where = self.symbols.where or self.where()
            raise
        except ObservedError as observed:
            observed.mark = mark if observed.mark is None else observed.mark
            self.unwind(frame, observed)
            return None

    def _begin_step(self) -> None:
        self._steps += 1
        self._step_mark = len(self.guards)
        if self.stop is not None and self._steps == self.stop.step:
            raise Reached
        check_dropped(self)
        check_head(self)

    def unwind(self, frame: Frame, observed: ObservedError) -> None:
        handler = frame.program.handler_at(frame.at)
        if handler is None:
            raise observed
        observed.error.raised = True
        del frame.stack[handler.depth :]
        if handler.lasti:  # CPython pushes the instruction's offset there, for RERAISE
            frame.push(self.constant(frame.at))
        frame.push(observed.error)
        frame.next = handler.target

    # -- the interface that values use -----------------------------------------------------------

    @property
    def graph(self) -> GraphBuilder:
        return self.notes.graph

    @property
    def guards(self) -> GuardBook:
        return self.known.book

    @property
    def step(self) -> int:
        return self._steps

    def guard(self, *guards: Guard) -> None:
        for guard in guards:
            facts = self.backward_facts
            book = self.known.book if facts is None else facts.book_for(guard)
            book.add(guard, self.where)

    def relies_on(self, guard: Guard) -> bool:
        return guard in self.known.book

    def where(self) -> UserLine:
        return next(user_lines(self.frames or [self.root]))

    def lines(self) -> tuple[UserLine, ...]:
        return tuple(user_lines(self.frames or [self.root]))

    def wrap(self, obj: object, source: Source, make: Wrapper = wrap_object) -> Value:
        facts = self.backward_facts
        if facts is not None and (shared := facts.shared(obj, source)) is not None:
            return shared
        kind = type(obj)
        if kind in ATOMS:  # by value: the identity of two equal ints must not be guarded
            return wrap_object(self, obj, source)
        known = self.known.memo.get(id(obj))
        if known is not None:
            if make is wrap_object:
                known[1].observe(self)
            return reached_again(self, obj, known[1], source)
        value = make(self, obj, source)
        self.known.memo[id(obj)] = obj, value
        return value

    def lazy(self, obj: object, source: Source, *, certain: bool = True) -> Value:
        value = Lazy(obj, source, certain)
        if not certain:
            self.known.found.append((value, source))
        return value

    def guard_distinct_key(self, value: Value) -> None:
        if value.source is not None:
            self.known.keys[id(value)] = value

    def constant(self, obj: object) -> Value:
        return fresh_value(self, obj)

    def error(self, kind: type[BaseException], *args: object, exact: bool = False) -> ObservedError:
        values = [arg if isinstance(arg, Value) else self.constant(arg) for arg in args]
        exception = ExceptionValue(self, self.class_of(kind, None), values)
        exception.exact = exact or not args
        return ObservedError(exception)

    def class_of(self, kind: type, source: Source | None) -> ClassValue:
        if (cls := self.known.classes.get(kind)) is None:
            cls = self.known.classes[kind] = class_value(kind, source)
        if cls.source is None:  # the tracer referred to it before, and the program reads it now
            cls.source = source
        return cls

    def globals_of(self, namespace: dict[str, object], make: Callable[[], DictValue]) -> DictValue:
        known = self.known.memo.get(id(namespace))
        if known is None:
            known = self.known.memo[id(namespace)] = namespace, make()
        names = known[1]
        assert isinstance(names, DictValue)
        if not names.by_identity and names.source is not None:  # another path has led to it
            self.guard(IdentityIs(names.source, namespace))
        return names

    def rely_on_autocast(self) -> AutocastDetails:
        rest = read_autocast_details()
        self.entry_state = replace(self.entry_state, autocast_details=rest)
        return rest

    def at_exit(self, hook: Callable[[Builder], None]) -> None:
        self._hooks.append(hook)

    def inline(self, function: Value, args: Args, kwargs: Kwargs) -> Value:
        assert isinstance(function, FunctionValue)
        if len(self.frames) > self.options.inline_depth:
            raise GraphBreak(InlineTooDeep.of(limit=self.options.inline_depth))
        if function.code.co_flags & _ASYNC:
            raise GraphBreak(UnsupportedOperation.of(what="a coroutine", types=function.describe()))
        frame = self._callee(function, args, kwargs)
        if function.code.co_flags & inspect.CO_GENERATOR:
            generator = suspended(self, frame)
            self._generators.append(generator)
            self.resume(frame)  # ends at RETURN_GENERATOR
            return generator
        effort_before = effort_of(self)
        signal, self.watch.returned[function.code] = self.resume(frame), effort_before
        assert isinstance(signal, Returned)
        return signal.value

    def class_names(self, body: Value) -> dict[str, Value]:
        assert isinstance(body, FunctionValue)
        frame = self._callee(body, [], {})
        self.resume(frame)
        return frame.names

    def _callee(self, function: FunctionValue, args: Args, kwargs: Kwargs) -> Frame:
        program = program_of(function.code, self._programs)
        slots = bind_arguments(self, function, args, kwargs)
        for name, cell in zip(program.body.freevars, function.closure, strict=True):
            slots[name] = cell.realize(self)
        return Frame(program, slots, function.globals)
