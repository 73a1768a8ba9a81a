"""LazyModule: a GraphModule whose Python code is written when somebody runs or reads it.

Compiles read nodes: of ten modules that one makes, hardly any runs as Python, and to write and
compile its text takes 0.2 ms and 30 us a node. Whoever is handed one outside the package gets it
written (`written`), as a module made by torch.fx is.
"""

from __future__ import annotations

import math
from typing import Any

from torch.fx import GraphModule

__all__ = ["LazyModule", "written"]

# Names in the repr() of a complex number; fx knows those of a float.
_PARTS = {"nanj": complex(0.0, math.nan), "infj": complex(0.0, math.inf)}


class LazyModule(GraphModule):
    """What `recompile` makes out of date is written at the next call, or look at the code."""

    _written = False

    def recompile(self) -> Any:
        self._written = False
        type(self).forward = _write_then_run
        return None

    def write(self) -> None:
        """Make `forward` what the graph says now, if it is not yet."""
        if not self._written:
            super().recompile()
            type(self).forward.__globals__.update(_PARTS)
            self._written = True

    @property
    def code(self) -> str:
        self.write()
        code: str = self._code
        return code

    def __str__(self) -> str:
        self.write()
        return super().__str__()

    def __reduce__(self) -> Any:
        return _plain(self).__reduce__()

    def __reduce_package__(self, exporter: Any) -> Any:
        return _plain(self).__reduce_package__(exporter)


def written(gm: GraphModule) -> GraphModule:
    """The module, with its code: `gm.forward` is the function that fx writes."""
    if isinstance(gm, LazyModule):
        gm.write()
    return gm


def _write_then_run(self: LazyModule, *args: Any) -> Any:
    self.write()
    return self.forward(*args)


def _plain(gm: LazyModule) -> GraphModule:
    """Pickles hold the text of a module, which `recompile` of torch's own returns."""
    return GraphModule(gm, gm.graph, type(gm).__name__)
