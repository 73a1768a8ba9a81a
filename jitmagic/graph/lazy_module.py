"""A GraphModule that generates its Python code when it is first run or read.

Compiler passes only read nodes: of ten modules created in a compile hardly any runs as Python, and
generating the code costs 0.2 ms plus 30 us a node. A module that leaves the package is passed
through `with_code` first, so that it looks like any other GraphModule.
"""

from __future__ import annotations

import math
from typing import Any

from torch.fx import GraphModule

__all__ = ["LazyModule", "with_code"]

# Names in the repr() of a complex number; fx knows those of a float.
_PARTS = {"nanj": complex(0.0, math.nan), "infj": complex(0.0, math.inf)}


class LazyModule(GraphModule):
    """Postpones the code generation of `recompile` to the next call or look at the code."""

    _written = False

    def recompile(self) -> Any:
        self._written = False
        type(self).forward = _write_then_run
        return None

    def write(self) -> None:
        """Generate `forward` from the graph if it is out of date."""
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


def with_code(gm: GraphModule) -> GraphModule:
    """Return the module with its code generated: `gm.forward` is then the function that fx
    writes.
    """
    if isinstance(gm, LazyModule):
        gm.write()
    return gm


def _write_then_run(self: LazyModule, *args: object) -> Any:
    self.write()
    return self.forward(*args)


def _plain(gm: LazyModule) -> GraphModule:
    """Return an ordinary GraphModule for pickling, which stores the code."""
    return GraphModule(gm, gm.graph, type(gm).__name__)
