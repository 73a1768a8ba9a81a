"""Loads a compiled function or module from a file.

In: a file that `jitmagic.save` has written. Out: a callable of the function's arguments. A module
is an nn.Module with the parameters and buffers that its graph reads. A call that the file has no
entry for raises CallNotSaved, which says what differs. Kernels are in the file, those for all sizes
and of backwards too; further kernels that some sizes need are compiled when a call has these sizes.
Python code in the file is that of jitmagic's residual functions; it and the kernels are loaded
after their checksums have been compared.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CellType
from typing import Any

import torch

from ..artifact import registrations
from ..artifact.codec import Json, Reader
from ..artifact.entry import OtherCall, bound_entry, read_warning
from ..artifact.guards import Mismatch, resolve
from ..artifact.later import LaterBuilds
from ..artifact.reading import ArtifactReader
from ..artifact.vocabulary import vocabulary
from ..bytecode import FrameSnapshot
from ..call_warnings import CallWarning, show_warnings
from ..codegen.plan import Call, KernelSource, Plan
from ..dependencies import require
from ..devices import Target
from ..errors import ArtifactRefused, CallNotSaved, CannotKeep
from ..frame.native import Dispatcher, Entry
from ..guards.check import check, why
from ..guards.guard import Guard
from ..late import load as load_late
from ..options import make_options
from ..records import Journal, Occasion, Recording
from ..runtime.store import content_key
from ..torch_types import Values
from .archive import FORMAT, read_archive
from .program import Program, read_program
from .targets import lacking

__all__ = ["LoadedFunction", "load"]

Weights = Mapping[str, torch.Tensor] | str | Path


def load(path: str | Path, weights: Weights | None = None) -> Any:
    """Load what `jitmagic.save` has written; no source of the function is needed.

    weights: values of parameters and buffers by name, as `state_dict()` has them, or the path of a
        safetensors file; they replace those in the file, which may have none

    Returns a function, or an nn.Module, to be called with arguments like those of the examples.
    Raises ArtifactRefused, which says what is wrong with the file or differs on this machine.
    """
    files = read_archive(path)
    document = _document(path, files)
    try:
        return _loaded(path, document, files, _values(weights))
    except (LookupError, TypeError, ValueError, AttributeError, CannotKeep) as error:
        if isinstance(error, ArtifactRefused):
            raise
        raise ArtifactRefused(path, f"it is malformed ({type(error).__name__}: {error})") from error


def _document(path: str | Path, files: Mapping[str, memoryview]) -> dict[str, Any]:
    """Return artifact.json of a file for this torch, Python and format."""
    try:
        document = json.loads(bytes(files["artifact.json"]))
        here = {"format": FORMAT, "kind": "python", "torch": torch.__version__,
                "python": sys.implementation.cache_tag}  # fmt: skip
        for fact, value in here.items():
            if document[fact] != value:
                raise ArtifactRefused(path, f"its {fact} is {document[fact]}, this is {value}")
        if why := lacking(document):
            raise ArtifactRefused(path, why, "save it with target=... for this machine")
    except (LookupError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, ArtifactRefused):
            raise
        raise ArtifactRefused(path, f"its description is malformed ({error})") from error
    return document  # type: ignore[no-any-return]


def _values(weights: Weights | None) -> Mapping[str, torch.Tensor]:
    if isinstance(weights, str | Path):
        require("load(path, weights=...) with a file", "safetensors")
        found: Mapping[str, torch.Tensor] = load_late("packaging.safetensors_files").load_file(
            weights
        )
        return found
    return weights or {}


def _loaded(
    path: str | Path,
    document: dict[str, Any],
    files: Mapping[str, memoryview],
    weights: Mapping[str, torch.Tensor],
) -> Any:
    for entry in document["entries"]:
        _require_operators(path, entry["shared"])
    shared = document["shared"]
    reader = Reader(vocabulary(), shared, {"ref": lambda reader, data: resolve(data["to"])})
    program = read_program(path, document, files, weights, reader)
    function = LoadedFunction(document, _signature(document["signature"], reader), program, files)
    if not document["is_module"]:
        return function
    program.module._set_call(function)
    return program.module


def _require_operators(path: str | Path, shared: list[Json]) -> None:
    """Raise ArtifactRefused if an entry calls an operator that nothing has registered yet."""
    for one in registrations.operators_in(shared):
        try:
            registrations.require_operator(one)
        except Mismatch as error:
            module = one["module"] or "the library that registers it"
            raise ArtifactRefused(path, str(error), f"import {module} first") from None


def _signature(parameters: list[Json], reader: Reader) -> inspect.Signature:
    made = []
    for one in parameters:
        default = reader.read(one["default"]) if "default" in one else inspect.Parameter.empty
        kind = getattr(inspect.Parameter, one["kind"])
        made.append(inspect.Parameter(one["name"], kind, default=default))
    return inspect.Signature(made)


class LoadedFunction:
    """Calls the compiled entries of a file."""

    def __init__(
        self,
        document: dict[str, Any],
        signature: inspect.Signature,
        program: Program,
        files: Mapping[str, memoryview],
    ) -> None:
        self.__name__ = self.__qualname__ = document["name"]
        self.__signature__ = signature
        self._stored = list(document["entries"])
        names = tuple(signature.parameters)
        self._owner = (program.module,) if document["has_owner"] else ()
        self._cells = tuple(CellType() for _ in range(document["cells"]))
        self._program, self._files = program, files
        self._is_inference = not any(entry["grad"] for entry in self._stored)
        self._code = _code_with(names)
        self._plain = all(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            for p in signature.parameters.values()
        )
        self._count = len(names) - len(self._owner)
        arity = len(names) + len(self._cells)
        self._dispatcher = Dispatcher(document["name"], arity, self._missed, _raise)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._plain and not kwargs and len(args) == self._count:
            values = (*self._owner, *args, *self._cells)
        else:
            bound = self.__signature__.bind(*self._owner, *args, **kwargs)
            bound.apply_defaults()
            values = (*bound.arguments.values(), *self._cells)
        if self._is_inference and torch.is_grad_enabled():
            with torch.no_grad():
                return self._dispatcher(*values)
        return self._dispatcher(*values)

    def _missed(self, values: Values) -> Any:
        """Bind an entry that fits the call; raises CallNotSaved if there is none."""
        failing, others = list[Iterable[Guard]](), list[str]()
        count = len(values) - len(self._cells)
        snapshot = FrameSnapshot(
            self._code, values[:count], self._cells, self._program.globals, {}, self.__name__,
            self.__name__,
        )  # fmt: skip
        for stored in self._stored:
            try:
                entry, warned = _entry(stored, snapshot, self._files)
            except OtherCall as error:
                failing.append(error.guards)
                continue
            except (Mismatch, CannotKeep) as error:
                others.append(str(error))
                continue
            show_warnings(warned)  # raises those of a filter in each call, as eager does
            self._stored.remove(stored)
            self._dispatcher.add(entry)
            return self._dispatcher(*values)
        failing += [entry.notes for entry in self._dispatcher.entries]
        failed = (check(guards, snapshot) for guards in failing)
        reasons = [why(one, snapshot) for one in failed if one is not None]
        raise CallNotSaved(self.__name__, [*reasons, *others])

    def __repr__(self) -> str:
        return f"<loaded {self.__name__}{self.__signature__}>"


def _code_with(names: tuple[str, ...]) -> Any:
    return (lambda: None).__code__.replace(co_varnames=names, co_nlocals=len(names))


def _raise(entry: Entry, values: Values, error: Exception) -> Any:
    raise error


def _entry(
    stored: Json, snapshot: FrameSnapshot, files: Mapping[str, memoryview]
) -> tuple[Entry, list[CallWarning]]:
    """Return an entry bound to the call's objects, and the warnings that its call shows. Raises
    Mismatch if the call does not fit it.
    """
    reader = _FileReader(stored["shared"], snapshot, files)
    guards = reader.read(stored["guards"])
    entry, _ = bound_entry(reader, guards, stored["result"], snapshot, hooked=False)
    entry.notes = guards
    return entry, [read_warning(reader, *data) for data in stored["warned"]]


class _FileReader(ArtifactReader):
    """Reads an entry whose kernels are files of the archive."""

    def __init__(
        self, shared: list[Json], snapshot: FrameSnapshot, files: Mapping[str, memoryview]
    ) -> None:
        options = make_options({"persist": False})
        record = Recording(snapshot.name, Journal(), 0, 1, Occasion())
        later = LaterBuilds(options, record)
        super().__init__(None, shared, snapshot, later, registrations.READERS)
        self._files = files

    def images_of(self, source: KernelSource | None) -> Mapping[str, bytes] | None:
        """Return the kernels that are in the file."""
        if source is None or source.language not in ("cpp", "triton"):
            return None
        if source.language == "triton":
            found = {
                name: data for name, data in self._files.items() if name.startswith("kernels/")
            }
            return {name.removeprefix("kernels/"): bytes(data) for name, data in found.items()}
        names = {one.text: f"kernels/{content_key(one.text)}.so" for one in source.units}
        return {text: bytes(self._files[name]) for text, name in names.items()}

    def check_target(self, plan: Plan, source: KernelSource | None, target: Target) -> None:
        """Raise Mismatch if kernels are for another machine; `load` has compared those in files,
        but for kernels that draw as eager's do on one GPU (loops/philox_state.py).
        """
        calls = (step.op for step in plan.steps if isinstance(step, Call))
        draws = any(op._schema.name == "jitmagic::philox_state" for op in calls)
        if draws or (source is not None and source.language not in ("cpp", "triton")):
            super().check_target(plan, source, target)

    def retry(self, is_locked: bool) -> Any:
        """Return what a residual calls when its graph has raised."""
        return _cannot_retry


def _cannot_retry(*values: object) -> None:
    raise CannotKeep("the graph raised, and the file has no source to run in its place")
