"""Writes one entry of a dispatcher as bytes, and makes an entry of them in another process.

In: an Entry, whose notes have its guards and form, and the frame that it was compiled for. Out:
`entry_bytes`. The reverse takes a frame of a call: it binds the guards to the objects of the frame,
and makes the executable only if they hold. Everything malformed or changed is a Mismatch.
"""

from __future__ import annotations

import json
import weakref
import zlib
from dataclasses import dataclass
from typing import Any

from ..bytecode import FrameSnapshot
from ..errors import CannotKeep, JitmagicError
from ..frame.ledger import EntryForm, Variant
from ..frame.native import Entry, GuardProgram, lower_guards
from .executables import ArtifactReader, ArtifactWriter, Backwards
from .guards import Mismatch
from .vocabulary import vocabulary

__all__ = ["FORMAT", "StoredEntry", "entry_bytes", "read_entry"]

FORMAT = 1
_LEVEL = 1  # of compression: kernels are text, 5 times as short


def entry_bytes(entry: Entry, snapshot: FrameSnapshot, header: dict[str, Any]) -> bytes:
    """Return the data of an entry; raises CannotKeep. `header`: facts for people."""
    notes: Variant = entry.notes
    form = notes.form
    if form is None:
        raise CannotKeep("an entry whose result Python makes")
    writer = ArtifactWriter(vocabulary(), snapshot, notes.guards, {})
    document = {
        "format": FORMAT,
        "header": header,
        "guards": writer.write(notes.guards),
        "form": [writer.write(form.sources), writer.write(form.template), form.has_graph],
        "mutates": entry.mutates,
        "run": writer.write(entry.run) if form.has_graph else None,
        "notes": {
            name: writer.write(getattr(notes, name))
            for name in ("outcome", "ends", "comparable", "symbols", "constants", "speculates", "loops")
        },
    }
    text = json.dumps({"shared": writer.shared, **document}, separators=(",", ":"))
    return zlib.compress(text.encode(), _LEVEL)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """The document of an entry, parsed, and not bound to a frame yet."""

    document: dict[str, Any]

    @classmethod
    def of(cls, data: bytes) -> StoredEntry:
        """Parse the bytes. Raises Mismatch if they are no entry of this format."""
        try:
            document = json.loads(zlib.decompress(data))
        except (zlib.error, ValueError) as error:
            raise Mismatch(str(error)) from None
        if type(document) is not dict or document.get("format") != FORMAT:
            raise Mismatch("another format")
        return cls(document)

    @property
    def header(self) -> dict[str, Any]:
        """Facts for people: the name of the function, when it was compiled, how long that took."""
        header: dict[str, Any] = self.document["header"]
        return header


def read_entry(stored: StoredEntry, snapshot: FrameSnapshot, backwards: Backwards) -> Entry:
    """Return the entry, bound to the objects of a frame whose call fits it. Raises Mismatch if it
    does not fit, if the program has changed, or if the document is malformed.
    """
    try:
        return _read(stored.document, snapshot, backwards)
    except (CannotKeep, LookupError, TypeError, ValueError, AttributeError) as error:
        raise Mismatch(f"{type(error).__name__}: {error}") from error


def _read(document: Any, snapshot: FrameSnapshot, backwards: Backwards) -> Entry:
    shared = document["shared"]
    reader = ArtifactReader(vocabulary(), shared, snapshot, backwards=backwards)
    guards = reader.read(document["guards"])
    sources, template, has_graph = (reader.read(part) for part in document["form"])
    wanted = (*sources, *template.sources)
    steps, registers = lower_guards(guards, wanted, snapshot.globals, snapshot.builtins)
    program = GuardProgram(steps)
    if not program.check((*snapshot.args, *snapshot.cells)):
        raise Mismatch("it was compiled for other calls")
    inputs, read_again = registers[: len(sources)], registers[len(sources) :]
    run = reader.read(document["run"]) if has_graph else no_graph
    reader.snapshot = None  # a backward that is read later must not keep the call's tensors
    shape = template.with_registers(read_again)
    entry = Entry(program, run, inputs if has_graph else (), shape, False)
    entry.mutates = document["mutates"]
    notes = {name: reader.read(part) for name, part in document["notes"].items()}
    form, later = EntryForm(sources, template, has_graph), tuple(map(weakref.ref, reader.caches))
    entry.notes = Variant(guards, form=form, later=later, **notes)
    return entry


def no_graph() -> tuple[object, ...]:
    """Stand in for the executable of a frame that computes nothing."""
    return ()
