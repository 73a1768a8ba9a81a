"""Which tests run in which process under `make test`, decided in the controller.

Those of a file share a process, its fixtures and its caches; all that need the GPU share one. A
scheduler of our own: xdist_group does nothing under pytest 9.2 with xdist 3.8, which writes groups
into a field that pytest does not read any more. Whatever it does for a test takes the same time
however many there are: xdist looks an item up in the list of all, and counts all that were done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdist.scheduler import LoadScopeScheduling

__all__ = ["ByFile"]


class Collection(list[str]):
    """Items, and where each stands."""

    def __init__(self, items: Sequence[str]) -> None:
        super().__init__(items)
        self._places = {item: place for place, item in enumerate(items)}

    def index(self, item: str, *_: Any) -> int:
        return self._places[item]


class ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "device" if file.startswith("tests/device/") else file

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = Collection(collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        self._forget(node, self.registered_collections[node][item_index])
        self._reschedule(node)

    def _reschedule(self, node: Any) -> None:
        """Where two workers crash, the first that takes a place has xdist ask for the second too,
        which is still collecting: it is asked for again when that is done.
        """
        if node in self.registered_collections:
            super()._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        """A test in which a worker crashed has failed, once: xdist gives it to each worker that
        takes the place of the last. Those behind it in its file are run by another.
        """
        pending = (nodeid for unit in self.assigned_work[node].values() for nodeid in unit)
        crashed = next(pending, None)
        if crashed is not None:
            self._forget(node, crashed)
        super().remove_node(node)
        return crashed

    def _forget(self, node: Any, nodeid: str) -> None:
        """What was done is not counted again after each test."""
        work, scope = self.assigned_work[node], self._split_scope(nodeid)
        del work[scope][nodeid]
        if not work[scope]:
            del work[scope]
