"""Writes one entry of a dispatcher as bytes, and makes an entry of them in another process.

In: an Entry, whose notes have its guards and form, and the frame that it was compiled for. Out:
`entry_bytes`. The reverse takes a frame of a call: it binds the guards to the objects of the frame,
and makes the executable only if they hold. Everything malformed or changed is a Mismatch.
"""

from __future__ import annotations

import json
import os
import weakref
import zlib
from collections.abc import Mapping
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..bytecode import FrameSnapshot
from ..call_warnings import CallWarning, raises_warnings
from ..errors import CannotKeep, UserLine
from ..frame.handle import Handle
from ..frame.ledger import Variant
from ..frame.native import Entry, EntryForm, GuardProgram, lower_guards
from ..guards.guard import Guard
from ..guards.source import Source
from ..late import late_names
from ..lazy_dataclass import dataclass
from ..records import Eager
from .code_objects import function_data
from .codec import Json
from .collectives import COLLECTIVE_WRITERS
from .guards import Mismatch
from .later import LaterBuilds
from .vocabulary import vocabulary
from .writing import ArtifactWriter

if TYPE_CHECKING:
    from .reading import ArtifactReader
else:
    late_names(globals(), {"artifact.reading": "ArtifactReader"})

__all__ = [
    "FORMAT", "OtherCall", "StoredEntry", "bound_entry", "compiled_data", "entry_bytes",
    "read_entry", "read_warning", "warning_data",
]  # fmt: skip

FORMAT = 1
_MOST_BYTES = 1 << 30  # of a document
_LEVEL = 1  # of compression: kernels are text, 5 times as short


_NOTES = ("outcome", "ends", "comparable", "symbols", "speculates", "loops")


def entry_bytes(
    handle: Handle, entry: Entry, snapshot: FrameSnapshot, header: dict[str, Any]
) -> tuple[bytes, list[Any]]:
    """Return the data of an entry of a handle, and its parts that may change (`on_change`). Raises
    CannotKeep. `header`: facts for people.
    """
    notes: Variant = entry.notes
    writer = ArtifactWriter(handle, vocabulary(), snapshot, notes.guards, COLLECTIVE_WRITERS)
    document = {
        "format": FORMAT,
        "header": header,
        "guards": writer.write(notes.guards),
        "result": _result_data(writer, entry),
        "hook": entry.hook,
        "mutates": entry.mutates,
        "notes": {name: writer.write(getattr(notes, name)) for name in _NOTES},
        "constants": _writable(writer, notes.constants),
        "warned": [_own_warning(writer, one) for one in notes.warned],
    }
    text = json.dumps({"shared": writer.shared, **document}, separators=(",", ":"))
    return zlib.compress(text.encode(), _LEVEL), writer.growing


def _writable(writer: ArtifactWriter, constants: Mapping[Any, UserLine | None]) -> Json:
    """Return those of a variant's constants that are sizes and numbers of the call."""
    pairs = []
    for origin, line in constants.items():
        with suppress(CannotKeep):
            pairs.append([writer.write(origin), writer.write(line)])
    return pairs


def warning_data(writer: ArtifactWriter, one: CallWarning) -> list[Json]:
    """Return the data of a warning that the trace has shown. Raises CannotKeep for one that is more
    than its text, or whose text may be another one in the next call.
    """
    kind = type(one.message)
    if one.varies:
        raise CannotKeep(f"a warning that may name sizes of the call: {one.text}")
    if one.message.args != (one.text,):
        raise CannotKeep(f"a {kind.__qualname__}, which is more than its text")
    return [writer.write(kind), one.text, one.filename, one.lineno, one.is_once]


def read_warning(
    reader: ArtifactReader, kind: Json, text: str, file: str, lineno: int, is_once: bool
) -> CallWarning:
    """Return a warning from its data; raises Mismatch if its class is no class of warnings."""
    category = reader.read(kind)
    if not isinstance(category, type) or not issubclass(category, Warning):
        raise Mismatch(f"{category!r} is no class of warnings")
    return CallWarning(category(text), file, lineno, is_once)


def _own_warning(writer: ArtifactWriter, one: CallWarning) -> Json:
    """Return the data of a warning, without the file if that is the function's own."""
    kind, text, file, *rest = warning_data(writer, one)
    own = file == writer.code.co_filename
    if not own and not os.path.exists(file):  # another cell, whose file has a new name
        raise CannotKeep(f"a warning at a line of {file}, which is no file")
    return [kind, text, None if own else file, *rest]


def _result_data(writer: ArtifactWriter, entry: Entry) -> Json:
    """Return what a call of the entry runs: a graph and a template, a residual, or plain Python."""
    if isinstance(entry.notes.outcome, Eager):
        return {"eager": "hooked" if entry.run == writer.handle.run_hooked else "original"}
    return compiled_data(writer, entry, entry.run)


def compiled_data(writer: ArtifactWriter, entry: Entry, residual: Any) -> Json:
    """Return a graph and a template, or else the residual function."""
    form = entry.notes.form
    if form is not None:
        return {"sources": writer.write(form.sources), "template": writer.write(form.template),
                "run": writer.write(entry.run) if form.has_graph else None}  # fmt: skip
    if type(residual) is not FunctionType:
        raise CannotKeep("a frame that holds a lock")
    return {"residual": function_data(writer, residual)}


class OtherCall(Mismatch):
    """A call does not pass the guards of an entry."""

    def __init__(self, guards: tuple[Guard, ...]) -> None:
        super().__init__("it was compiled for other calls")
        self.guards = guards


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """The document of an entry, parsed, and not bound to a frame yet."""

    document: dict[str, Any]

    @classmethod
    def of(cls, data: bytes) -> StoredEntry:
        """Parse the bytes. Raises Mismatch if they are no entry of this format."""
        try:
            document = json.loads(zlib.decompressobj().decompress(data, _MOST_BYTES))
        except (zlib.error, ValueError, RecursionError) as error:
            raise Mismatch(str(error)) from None
        if type(document) is not dict or document.get("format") != FORMAT:
            raise Mismatch("another format")
        return cls(document)

    @property
    def header(self) -> dict[str, Any]:
        """Facts for people: the name of the function, when it was compiled, how long that took."""
        header: dict[str, Any] = self.document["header"]
        return header


def read_entry(
    handle: Handle, stored: StoredEntry, snapshot: FrameSnapshot, later: LaterBuilds
) -> tuple[Entry, list[Any]]:
    """Return the entry, bound to the objects of a frame whose call fits it, and its parts that may
    change. Raises Mismatch if it does not fit, if the program has changed, or if the document is
    malformed.
    """
    try:
        return _read(handle, stored.document, snapshot, later)
    except Mismatch:
        raise
    except Exception as error:  # a malformed document may raise anything: the call is compiled
        raise Mismatch(f"{type(error).__name__}: {error}") from error


def _read(
    handle: Handle, document: Any, snapshot: FrameSnapshot, later: LaterBuilds
) -> tuple[Entry, list[Any]]:
    reader = ArtifactReader(handle, document["shared"], snapshot, later)
    guards, result = reader.read(document["guards"]), document["result"]
    if "eager" in result:
        program, _ = _program(guards, (), snapshot)
        run = handle.run_hooked if result["eager"] == "hooked" else handle.original
        entry, form = Entry(program, run), None
    else:
        entry, form = bound_entry(reader, guards, result, snapshot, document["hook"])
    notes = {name: reader.read(part) for name, part in document["notes"].items()}
    for retry in reader.retries:
        retry.set_entry(entry)
    reader.snapshot = None  # a backward that is read later must not keep the call's tensors
    entry.mutates = document["mutates"]
    caches: Any = tuple(map(weakref.ref, reader.caches))
    constants = dict(reader.read(document["constants"]))
    warned = tuple(_warning(reader, *data) for data in document["warned"])
    entry.notes = Variant(
        guards, form=form, later=caches, constants=constants, warned=warned, **notes
    )
    entry.notes.files = reader.files  # grows when a backward is read
    return entry, reader.growing


def bound_entry(
    reader: ArtifactReader,
    guards: tuple[Guard, ...],
    result: Json,
    snapshot: FrameSnapshot,
    hooked: bool,
) -> tuple[Entry, EntryForm | None]:
    """Return an entry of `compiled_data` whose guards hold for a call. Raises Mismatch."""
    if "residual" in result:
        program, _ = _program(guards, (), snapshot)
        return Entry(program, reader.read(result["residual"]), None, None, hooked), None
    form = EntryForm(
        reader.read(result["sources"]), reader.read(result["template"]), result["run"] is not None
    )
    program, registers = _program(guards, form.wanted, snapshot)
    return form.entry(program, reader.read(result["run"]), registers, hooked), form


def _program(
    guards: tuple[Guard, ...], wanted: tuple[Source, ...], snapshot: FrameSnapshot
) -> tuple[GuardProgram, Any]:
    """Return the native guards, and the registers of the sources. Raises Mismatch if they fail."""
    steps, registers = lower_guards(guards, wanted, snapshot.globals, snapshot.builtins)
    program = GuardProgram(steps)
    if not program.check((*snapshot.args, *snapshot.cells)):
        raise OtherCall(guards)
    return program, registers


def _warning(
    reader: ArtifactReader, kind: Json, text: str, name: str | None, *rest: Any
) -> CallWarning:
    """Return a warning; raises Mismatch if a filter makes it an error: tracing then finds the call
    that raises it.
    """
    file = reader.code.co_filename if name is None else name
    made = read_warning(reader, kind, text, file, *rest)
    category = type(made.message)
    if raises_warnings(category):
        raise Mismatch(f"the filters of this process make {category.__qualname__} an error")
    return made
