"""Makes executables for all sizes again, with the kernels that another process has compiled.

In: templates and the conditions under which they apply, executables for single size tuples, and the
trace or the backward graph as text. Out: an executable that is looked up by sizes. Sizes that
nothing stored serves are compiled from that text, by the compiler's stages (later.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import RLock
from typing import Any

import torch
from torch.fx import GraphModule

from ..construction import StoredBy, construction_of, nothing
from ..protocols import Protocol
from ..runtime import native
from ..symbols.size_programs import SizeProgram
from ..torch_types import Executable
from .codec import Json
from .graph_texts import restored
from .guards import Mismatch
from .later import LaterBuilds

__all__ = ["LoadedBackwards", "SizedReader", "loaded_by_sizes"]


class SizedReader(Protocol):
    """The part of an ArtifactReader that sizes need."""

    later: LaterBuilds
    growing: list[Any]

    def read(self, data: Json) -> Any: ...


def loaded_by_sizes(
    reader: SizedReader,
    places: tuple[tuple[int, int], ...],
    most: int,
    excluded: tuple[tuple[int, ...], ...],
    state: str | None,
    templates: list[tuple[SizeProgram, native.SizeTemplate]],
    alone: dict[tuple[int, ...], Executable],
) -> native.BySizes:
    """Return an executable for the stored sizes; it compiles for others from the stored trace."""
    if state is None:
        raise Mismatch("an executable for some sizes alone")
    compilers: list[Any] = []

    def missed(values: tuple[int, ...], inputs: tuple[torch.Tensor, ...]) -> Executable:
        if not compilers:
            compilers.append(reader.later.size_compiler(restored(state)))
            compilers[0].run = made
        run: Executable = compilers[0].missed(values, inputs)
        return run

    made = native.by_sizes(places, missed, most, excluded)
    _fill(made, templates, alone)
    reader.growing.append(construction_of(made))
    return made


def _fill(run: native.BySizes, templates: Iterable[Any], alone: Mapping[Any, Executable]) -> None:
    for predicates, template in templates:
        native.add_template(run, predicates, template)
    for values, executable in alone.items():
        native.add_alone(run, values, executable)


class LoadedBackwards(StoredBy):
    """The backwards for all sizes that another process has compiled; others are compiled here."""

    WRITER = "sized_backwards"

    def __init__(self, reader: SizedReader, data: Json) -> None:
        self._reader, self._text = reader, data["text"]
        self._stored = {tuple(missing): parts for missing, *parts in data["made"]}
        self._compiler: Any = None
        self.made: dict[tuple[int, ...], native.BySizes] = {}
        self.on_change: Callable[[], None] = nothing
        reader.growing.append(self)
        self._lock = RLock()

    @property
    def compiler(self) -> Any:
        """The SizedBackwards, with its graphs."""
        with self._lock:
            if self._compiler is None:
                self._compiler = self._reader.later.sized_backwards(restored(self._text))
            return self._compiler

    @property
    def graphs(self) -> Any:
        """The graphs, for the data of a further process."""
        return self.compiler.graphs

    def source(self, values: tuple[int, ...]) -> GraphModule:
        """Return the torch-level graph at these sizes."""
        graph: GraphModule = self.compiler.source(values)
        return graph

    def __call__(self, missing: tuple[int, ...]) -> native.BySizes:
        """Return the backward without these tangents, for each size tuple."""
        with self._lock:
            if missing not in self.made:
                self.made[missing] = self._new(missing)
            return self.made[missing]

    def read_all(self) -> None:
        """Read the backwards of all sets of missing tangents that are stored."""
        for missing in self._stored:
            self(missing)

    def _changed(self) -> None:
        self.on_change()

    def _new(self, missing: tuple[int, ...]) -> native.BySizes:
        builders: list[Any] = []

        def missed(values: tuple[int, ...], inputs: object) -> Executable:
            if not builders:
                builders.append(self.compiler.builder(missing))
                builders[0].run = made
            run: Executable = builders[0].missed(values)
            return run

        made = native.by_sizes((), missed, native.SIZES_KEPT)
        if missing in self._stored:
            templates, alone = self._stored[missing]
            _fill(made, self._reader.read(templates), self._reader.read(alone))
        construction_of(made).on_change = self._changed
        return made
