"""Writes graphs as texts of their own, and reads them.

In: a GraphModule, or a tuple of graphs with the Sizes and Predicates that they share. Out: a text,
which is parsed when a stage asks for the graph: a call never does. graph/data/ makes the data.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from torch.fx import GraphModule

from ..late import load as load_late
from .codec import Json, Reader, Writer
from .guards import refer, resolve
from .vocabulary import vocabulary

__all__ = ["graph_of", "graph_text", "restored", "stored_text"]


class _GraphWriter(Writer):
    """Writes data of graphs, whose functions modules name."""

    def other(self, value: Any) -> Json:
        return {"$": "ref", "to": refer(value)}


def graph_text(graph: GraphModule) -> str:
    """Return a graph as text. Raises CannotKeep."""
    return _text(load_late("graph.data.writing").graph_data(graph))


def graph_of(text: str) -> GraphModule:
    """Return the graph of a text."""
    made: GraphModule = load_late("graph.data.reading").graph_of(_read(text))
    return made


def stored_text(value: tuple[Any, ...]) -> str:
    """Return graphs, with the Sizes that they share, as text. Raises CannotKeep."""
    return _text(load_late("graph.data.writing").stored(value))


def restored(text: str) -> tuple[Any, ...]:
    """Return the graphs of a text."""
    made: tuple[Any, ...] = load_late("graph.data.reading").restored(_read(text))
    return made


def _text(data: object) -> str:
    writer = _GraphWriter(_vocabulary())
    written = writer.write(data)
    return json.dumps({"shared": writer.shared, "data": written}, separators=(",", ":"))


def _read(text: str) -> Any:
    document = json.loads(text)
    special = {"ref": lambda reader, data: resolve(data["to"])}
    return Reader(_vocabulary(), document["shared"], special).read(document["data"])


@cache
def _vocabulary() -> dict[str, type]:
    forms = load_late("graph.data.forms")
    return vocabulary() | {name: getattr(forms, name) for name in forms.__all__}
