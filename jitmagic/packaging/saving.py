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
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import torch

from ..api import original_of, tagged_copy, tagged_handle
from ..artifact.code_objects import function_data
from ..artifact.codec import Json
from ..artifact.vocabulary import vocabulary
from ..artifact.writing import ArtifactWriter
from ..bytecode import FrameSnapshot
from ..codegen.plan import KernelSource
from ..construction import Construction, construction_of
from ..devices import Target
from ..errors import Unsupported, UsageError
from ..frame.binding import bind, values_of
from ..frame.native import Entry
from ..frame.original import parameter_count
from ..guards.guard import GlobalState, Guard, StateRead, TensorMatch
from ..guards.kinds import KINDS
from ..guards.read import read_source
from ..guards.source import Source, describe
from ..lazy_dataclass import fields
from ..platforms import instruction_sets
from ..runtime.store import content_key, store_of
from ..runtime.toolchain import library_image
from ..trace.result import Effect, Exit, FromSource, Recipe, Trace
from .archive import write_archive
from .cxx import save_cxx
from .examples import calls_of
from .program import Program

__all__ = ["FORMAT", "save"]

FORMAT = 1


def save(
    fn: Any,
    path: str | Path,
    *examples: Any,
    dynamic: Any = None,
    weights: bool = True,
    options: dict[str, Any] | None = None,
    cxx: bool = False,
) -> None:
    """Compile `fn` for the calls that `examples` show, and write it to a file.

    fn: a function or an nn.Module; it is not called
    examples: the arguments of one call, `save(f, path, x, y)`, or several calls, each a tuple of
        arguments or a dict of arguments by name: `save(f, path, (x1, y1), (x2, y2))`
    dynamic: as for `jitmagic.jit`
    weights: whether the values of parameters and buffers are in the file; if not, `load` takes them
    options: as for `jitmagic.jit`
    cxx: write a file that C++ and C programs run without Python, for inference

    Under `torch.no_grad()` the file is for inference. Otherwise it has the backward too, if an
    argument or a parameter requires grad. Raises Unsupported at a graph break, and CannotKeep for
    what a file cannot hold, such as a write to an attribute.
    """
    if cxx:
        if not weights:
            raise UsageError("a program for C++ needs its weights: leave out weights=False")
        save_cxx(fn, path, *examples, dynamic=dynamic, options=options)
        return
    made = _Saved(fn, dynamic, options or {})
    for args, kwargs in calls_of(examples):
        made.add(args, kwargs)
    write_archive(path, made.files(weights))


class _Saved:
    """The contents of a file under construction."""

    def __init__(self, fn: Any, dynamic: Any, options: dict[str, Any]) -> None:
        chosen = {"fullgraph": True, "keep": "compiled", **options, "persist": False}
        if dynamic is not None:
            chosen["dynamic"] = dynamic
        self.fn = original_of(fn)
        self.copy = tagged_copy(fn, chosen)
        self.handle = tagged_handle(self.copy)
        is_module = isinstance(self.fn, torch.nn.Module)
        self.function = original_of(type(self.fn).forward) if is_module else self.fn
        self.owner = self.fn if is_module else getattr(self.fn, "__self__", None)
        self.entries: list[Json] = []
        self.writers: list[_SavedWriter] = []
        self.values: dict[Source, Any] = {}  # of the program: what is no argument

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile for one call, and add its entry."""
        if isinstance(self.fn, torch.nn.Module):
            values = values_of(self.function, (self.fn, *args), kwargs)
        else:
            values = bind(self.copy, args, kwargs)[1]
        if not self.handle.compile_for(values):
            raise Unsupported(
                f"{self.handle.label} is not compiled: {self.handle.outcome}", "", None
            )
        entry = self.handle.dispatcher.entries[0]
        for later in entry.notes.pending():
            later()
        traces = (record.result("trace") for record in reversed(list(self.handle.journal)))
        traced = next(one for one in traces if isinstance(one, Trace))
        snapshot = self.handle.original.snapshot(values)
        self.entries.append(self._entry(entry, traced, snapshot))

    def _entry(self, entry: Entry, traced: Trace, snapshot: FrameSnapshot) -> Json:
        own = self._own_arguments(snapshot)
        lifted = {}
        for source in (*traced.sources, *_sources_in((traced.exit, traced.effects))):
            if not _is_of_arguments(source, own):
                lifted[source] = read_source(source, snapshot)
        for source, value in lifted.items():
            Program().put(source, value)  # raises for a source that a file does not have
            self.values.setdefault(source, value)
        guards = [guard for guard in entry.notes.guards if _stays(guard, own, lifted)]
        writer = _SavedWriter(self.handle, vocabulary(), snapshot, guards, {})
        self.writers.append(writer)
        return writer.entry(entry, guards)

    def _own_arguments(self, snapshot: FrameSnapshot) -> frozenset[int]:
        """Return the indices of the arguments that callers of the file pass."""
        first = 0 if self.owner is None else 1
        return frozenset(range(first, parameter_count(snapshot.code)))

    def files(self, weights: bool) -> dict[str, bytes]:
        """Return the files of the archive."""
        files: dict[str, bytes] = {}
        names = _names_of(self.owner)
        described = []
        writer = ArtifactWriter(
            self.handle, vocabulary(), self.handle.original.snapshot(()), (), {}
        )
        tensors = {s: value for s, value in self.values.items() if isinstance(value, torch.Tensor)}
        others = [(s, value) for s, value in self.values.items() if s not in tensors]
        for number, (source, tensor) in enumerate(tensors.items()):
            name = f"tensors/{number}"
            if weights:
                files[name] = _bytes_of(tensor)
            described.append({
                "source": writer.write(source), "name": names.get(id(tensor), describe(source)),
                "file": name if weights else None, "dtype": writer.write(tensor.dtype),
                "shape": list(tensor.shape), "stride": list(tensor.stride()),
                "device": str(tensor.device), "requires_grad": tensor.requires_grad,
                "is_parameter": isinstance(tensor, torch.nn.Parameter),
            })  # fmt: skip
        for made in self.writers:
            files |= made.kernels
        document = {
            "format": FORMAT,
            "kind": "python",
            "name": self.handle.label,
            "torch": torch.__version__,
            "python": sys.implementation.cache_tag,
            "instructions": instruction_sets(),
            "is_module": isinstance(self.fn, torch.nn.Module),
            "has_owner": self.owner is not None,
            "signature": _signature(self.function, writer),
            "cells": len(self.handle.original.code.co_freevars),
            "tensors": described,
            "objects": [[writer.write(part) for part in pair] for pair in others],
            "shared": writer.shared,
            "entries": self.entries,
        }
        return {"artifact.json": json.dumps(document, separators=(",", ":")).encode(), **files}


class _SavedWriter(ArtifactWriter):
    """Writes an entry with its kernels as files."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.kernels: dict[str, bytes] = {}
        self.code = (lambda: None).__code__  # code of the program is written in full

    def entry(self, entry: Entry, guards: list[Guard]) -> Json:
        """Return the document of one entry."""
        form, residual = entry.notes.form, None
        if form is None:
            residual = function_data(self, cast(FunctionType, entry.run))
        has_graph = form is not None and form.has_graph
        return {
            "guards": self.write(tuple(guards)),
            "sources": None if form is None else self.write(form.sources),
            "template": None if form is None else self.write(form.template),
            "run": self.write(entry.run) if has_graph else None,
            "residual": residual,
            "grad": torch.is_grad_enabled(),
            "shared": self.shared,
        }

    def _executable(self, value: Any) -> Json:
        made: Construction = construction_of(value)
        if made.factory in ("load", "load_template"):
            source, target = made.arguments[1], made.arguments[-1]
            self._add_kernels(source, target)
        return super()._executable(value)

    def _add_kernels(self, source: KernelSource | None, target: Target) -> None:
        if source is None or source.language != "cpp":
            return
        store = store_of(self.handle.options)
        for unit in source.units:
            image = library_image(unit.text, target, store)
            if image is not None:
                self.kernels[f"kernels/{content_key(unit.text)}.so"] = image


def _sources_in(part: Any) -> Iterator[Source]:
    """Yield the sources that the result of a frame and its effects read."""
    if isinstance(part, FromSource):
        yield part.source
    elif isinstance(part, tuple | list):
        for item in part:
            yield from _sources_in(item)
    elif isinstance(part, Recipe | Effect | Exit):
        for one in fields(part):  # type: ignore[arg-type]
            yield from _sources_in(getattr(part, one.name))


def _is_of_arguments(source: Source, own: frozenset[int]) -> bool:
    """Return whether a path begins at an argument that callers of the file pass."""
    return getattr(source.root, "index", -1) in own


def _stays(guard: Guard, own: frozenset[int], lifted: Iterable[Source]) -> bool:
    """Return whether a guard is about arguments, the tensors in the file, or the process."""
    if isinstance(guard, GlobalState | StateRead):
        return True
    sources = KINDS[type(guard)].sources(guard)
    known = frozenset(lifted)
    if isinstance(guard, TensorMatch) and guard.source in known:
        return True
    return bool(sources) and all(_is_of_arguments(s, own) or s in known for s in sources)


def _names_of(owner: Any) -> dict[int, str]:
    """Return the names of a module's parameters and buffers, by the id of the tensor."""
    if not isinstance(owner, torch.nn.Module):
        return {}
    named = (*owner.named_parameters(), *owner.named_buffers())
    return {id(tensor): name for name, tensor in reversed(named)}


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor in row-major order."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""


def _signature(function: Any, writer: ArtifactWriter) -> list[Json]:
    """Return name, kind and default of each parameter."""
    parameters = []
    for one in inspect.signature(function, follow_wrapped=False).parameters.values():
        has_default = one.default is not inspect.Parameter.empty
        default = {"default": writer.write(one.default)} if has_default else {}
        parameters.append({"name": one.name, "kind": one.kind.name, **default})
    return parameters
