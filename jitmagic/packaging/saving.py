"""Saves a compiled function or module to a file.

In: a function or a module, and arguments of calls. Each is compiled, without being called, as one
graph; its trace says which tensors it reads. Out: an archive (archive.py) with

    artifact.json   the signature, the entries (guards, executables, results), versions, and for
                    each tensor that is no argument its source, its name and its spec
    kernels/*.so    the compiled kernels, under the SHA-256 of their text
    tensors/*       the bytes of those tensors, unless `weights` is False

Guards on arguments stay. Those on the program hold now, and are left out.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from ..api import original_of, tagged_copy, tagged_handle
from ..artifact import registrations
from ..artifact.codec import Json
from ..artifact.entry import compiled_data, warning_data
from ..artifact.vocabulary import vocabulary
from ..artifact.writing import ArtifactWriter
from ..bytecode import FrameSnapshot
from ..call_warnings import CallWarning
from ..codegen.plan import KernelSource, Plan
from ..compile.entries import residual_function
from ..construction import Construction, construction_of
from ..devices import Gpu, Target
from ..errors import CannotKeep, Unsupported, UsageError
from ..frame.binding import bind, values_of
from ..frame.handle import Handle
from ..frame.locked_frames import RetryEager
from ..frame.native import Entry, TimedGraph
from ..guards.source import Argument, Item, Source
from ..lazy_dataclass import dataclass, replace
from ..runtime.alignment import aligned_arguments
from ..runtime.store import content_key, store_of
from ..runtime.toolchain import library_image
from ..runtime.triton_kernels import cubin_files
from ..torch_types import Values
from ..trace.result import Trace
from .archive import FORMAT, write_archive
from .cxx import save_cxx
from .examples import calls_of, with_copies
from .lifting import Lifted, lift, tensors_of_program, written_and_read
from .program import Names
from .state import State, other_numbers
from .targets import compiling_for_file, entry_elsewhere, needed
from .values import ProgramValues

__all__ = ["save"]


def save(
    fn: Any,
    path: str | Path,
    *examples: Any,
    dynamic: Any = None,
    weights: bool = True,
    options: dict[str, Any] | None = None,
    cxx: bool = False,
    target: str | None = None,
) -> None:
    """Compile `fn` for the calls that `examples` show, and write it to a file.

    fn: a function or an nn.Module; it is not called
    examples: the arguments of one call, `save(f, path, x, y)`, or several calls, each a tuple of
        arguments or a dict of arguments by name: `save(f, path, (x1, y1), (x2, y2))`
    dynamic: as for `jitmagic.jit`
    weights: whether the values of parameters and buffers are in the file; if not, `load` takes them
    options: as for `jitmagic.jit`
    cxx: write a file that C++ and C programs run without Python, for inference
    target: the processor that will run the file, "avx2", "avx512" or "aarch64", or the GPU, for
        inference, "sm_80", "sm_90" or "sm_100"; None: those of this machine

    Under `torch.no_grad()` the file is for inference. Otherwise it has the backward too, if an
    argument or a parameter requires grad. Raises Unsupported at a graph break, and CannotKeep for
    what a file cannot hold, such as a list that calls append to and read.
    """
    if cxx:
        if not weights:
            raise UsageError("a program for C++ needs its weights: leave out weights=False")
        save_cxx(fn, path, *examples, dynamic=dynamic, options=options, target=target)
        return
    made = _Saved(fn, dynamic, options or {})
    with compiling_for_file(target, made.handle.options) as processor:
        for args, kwargs in calls_of(examples):
            made.add(args, kwargs, isinstance(processor, Gpu))
        made.write_entries()
        files = made.files(weights, needed(processor, made.kernels))
    write_archive(path, files)


@dataclass(frozen=True, slots=True)
class _Call:
    """The call of an example, compiled."""

    entry: Entry
    traced: Trace
    snapshot: FrameSnapshot
    is_elsewhere: bool


class _Saved:
    """The contents of a file under construction."""

    def __init__(self, fn: Any, dynamic: Any, options: dict[str, Any]) -> None:
        chosen = {"fullgraph": True, "keep": "compiled", **options, "persist": False}
        if dynamic is not None:
            chosen["dynamic"] = dynamic
        self.fn, self.options = original_of(fn), chosen
        self.copy = tagged_copy(fn, chosen)
        self.handle = tagged_handle(self.copy)
        self.is_module = isinstance(self.fn, torch.nn.Module)
        method = type(self.fn).forward if self.is_module else getattr(self.fn, "__func__", self.fn)
        self.function = original_of(method)
        self.owner = self.fn if self.is_module else getattr(self.fn, "__self__", None)
        module = self.fn if self.is_module else None
        self.names = Names(_owner_source(self.function) if self.owner is not None else None, module)
        self.calls: list[_Call] = []
        self.values = ProgramValues(self.names)
        self.entries: list[Json] = []
        self.kernels: dict[str, bytes] = {}

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_elsewhere: bool) -> None:
        """Compile for one call. `is_elsewhere`: its tensors stand for those of another machine."""
        call = self._compiled(self._values(args, kwargs), is_elsewhere)
        # Callers of the file have other tensors than the program, and so the example gets copies.
        if held := tensors_of_program(call.entry.notes.guards, call.snapshot, self.names):
            args, kwargs = with_copies((args, kwargs), held)
            call = self._compiled(self._values(args, kwargs), is_elsewhere)
        self.calls.append(call)

    def _values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values:
        if self.is_module:
            return values_of(self.function, (self.fn, *args), kwargs)
        return bind(self.copy, args, kwargs)[1]

    def _compiled(self, values: Values, is_elsewhere: bool) -> _Call:
        entry = entry_elsewhere(self.handle, values) if is_elsewhere else self._entry_for(values)
        if entry is None:
            raise Unsupported(
                f"{self.handle.label} is not compiled: {self.handle.outcome}", "", None
            )
        for later in entry.notes.pending():
            later()
        traces = (record.result("trace") for record in reversed(list(self.handle.journal)))
        traced = next(one for one in traces if isinstance(one, Trace))
        return _Call(entry, traced, self.handle.original.snapshot(values), is_elsewhere)

    def _entry_for(self, values: Values) -> Entry | None:
        return self.handle.dispatcher.entries[0] if self.handle.compile_for(values) else None

    def write_entries(self) -> None:
        """Write the entries of all calls, with their kernels, and note the values they read."""
        state = self._compile_with_state()
        self.values.add_state(state)
        for call, lifted in zip(self.calls, self._lifted(state), strict=True):
            self.values.add(lifted)
            writer = _SavedWriter(self.handle, call.snapshot, lifted)
            self.entries.append(writer.entry(call.entry, call.traced))
            self.kernels |= writer.kernels

    def _lifted(self, state: State) -> list[Lifted]:
        """Return what each call reads and writes of the program."""
        return [
            lift(call.traced, call.entry.notes.guards, call.snapshot, self.names, state)
            for call in self.calls
        ]

    def _compile_with_state(self) -> State:
        """Return what calls both read and write, after compiling again if numbers are in it, which
        are constants of the calls so far.
        """
        state = State()
        for write in written_and_read(self._lifted(state)):
            state.add(write)
        numbers = dict.fromkeys(
            guard
            for call in self.calls
            for guard in other_numbers(call.entry.notes.guards, state, call.snapshot)
        )
        if numbers:
            self.copy = tagged_copy(self.fn, self.options)
            self.handle = tagged_handle(self.copy)
            self.handle.ledger.noted = tuple(numbers)
            self.calls = [
                self._compiled((*call.snapshot.args, *call.snapshot.cells), call.is_elsewhere)
                for call in self.calls
            ]
        return state

    def files(self, weights: bool, needs: dict[str, Any]) -> dict[str, bytes]:
        """Return the files of the archive; `needs`: facts of the machine that runs it."""
        snapshot = self.handle.original.snapshot(())
        writer = ArtifactWriter(self.handle, vocabulary(), snapshot, (), {})
        program, tensors = self.values.data(writer, weights)
        document = {
            "format": FORMAT,
            "kind": "python",
            "name": self.handle.label,
            "torch": torch.__version__,
            "python": sys.implementation.cache_tag,
            **needs,
            "is_module": self.is_module,
            "has_owner": self.owner is not None,
            "signature": _signature(self.function, writer),
            "cells": len(self.handle.original.code.co_freevars),
            **program,
            "shared": writer.shared,
            "entries": self.entries,
        }
        text = json.dumps(document, separators=(",", ":"))
        return {"artifact.json": text.encode(), **tensors, **self.kernels}


class _SavedWriter(ArtifactWriter):
    """Writes an entry with its kernels as files."""

    def __init__(self, handle: Handle, snapshot: FrameSnapshot, lifted: Lifted) -> None:
        super().__init__(handle, vocabulary(), snapshot, lifted.guards, registrations.WRITERS)
        self.lifted = lifted
        self._is_in_source = False
        self.kernels: dict[str, bytes] = {}
        self.code = (lambda: None).__code__  # code of the program is written in full

    def write(self, value: Any) -> Json:
        """Return the JSON of a value; a source of the program is written as that in the file."""
        if self._is_in_source or not isinstance(value, Source):
            return super().write(value)
        self._is_in_source = True  # the parts of a source are written as they are
        try:
            return super().write(self.lifted.renamed.get(value, value))
        finally:
            self._is_in_source = False

    def entry(self, entry: Entry, traced: Trace) -> Json:
        """Return the document of one entry."""
        residual = entry.run if entry.notes.form is not None else self._residual(entry, traced)
        return {
            "guards": self.write(self.lifted.guards),
            "result": compiled_data(self, entry, residual),
            "grad": torch.is_grad_enabled(),
            "warned": [*self._warnings(entry.notes.warned)],
            "shared": self.shared,
        }

    def _warnings(self, warned: Iterable[CallWarning]) -> Iterator[Json]:
        """Yield the data of the warnings of the trace, without those that cannot be kept."""
        for one in warned:
            with suppress(CannotKeep):
                yield warning_data(self, one)

    def _residual(self, entry: Entry, traced: Trace) -> FunctionType:
        """Return the residual function of an entry, which reads the program as the file has it."""
        if type(entry.run) is not FunctionType:
            raise CannotKeep("a frame that holds a lock")
        constants = entry.run.__code__.co_consts
        graph = next((one for one in constants if isinstance(one, TimedGraph)), None)
        snapshot, retry = (
            self.handle.original.snapshot(()),
            RetryEager(self.handle, is_locked=False),
        )
        kept = replace(traced, effects=self.lifted.effects)
        return residual_function(self.handle, snapshot, kept, graph, retry, self.lifted.renamed)

    def _executable(self, value: Any) -> Json:
        made: Construction = construction_of(value)
        if made.factory in ("load", "load_template"):
            plan, source, target = *made.arguments[:2], made.arguments[-1]
            self._add_kernels(plan, source, target)
        return super()._executable(value)

    def _add_kernels(self, plan: Plan, source: KernelSource | None, target: Target) -> None:
        store = store_of(self.handle.options)
        if source is not None and source.language == "triton":
            for inputs in (True, False):
                aligned = aligned_arguments(plan, inputs)
                for name, data in cubin_files(source, aligned, target, store).items():
                    self.kernels[f"kernels/{name}"] = data
        if source is None or source.language != "cpp":
            return
        for unit in source.units:
            image = library_image(unit.text, target, store)
            if image is not None:
                self.kernels[f"kernels/{content_key(unit.text)}.so"] = image


def _owner_source(function: Any) -> Source:
    """Return the source of the object that a method is called on: its first argument."""
    first = next(iter(inspect.signature(function, follow_wrapped=False).parameters.values()))
    is_packed = first.kind is inspect.Parameter.VAR_POSITIONAL
    return Item(Argument(0, first.name), 0) if is_packed else Argument(0, first.name)


def _signature(function: Any, writer: ArtifactWriter) -> list[Json]:
    """Return name, kind and default of each parameter."""
    parameters = []
    for one in inspect.signature(function, follow_wrapped=False).parameters.values():
        has_default = one.default is not inspect.Parameter.empty
        default = {"default": writer.write(one.default)} if has_default else {}
        parameters.append({"name": one.name, "kind": one.kind.name, **default})
    return parameters
