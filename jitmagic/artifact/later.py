"""Compiles what an entry of another process lacks, by the stages of the compiler.

Input: graphs of an entry, as graph_texts.py has read them. Output: executables. Only calls that
need a backward that was never compiled, or sizes for which there are no kernels, get here; the
compiler is imported then.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from ..late import load as load_late
from ..lazy_dataclass import dataclass
from ..options import Options
from ..records import Recording
from ..torch_types import Executable

__all__ = ["LaterBuilds"]


@dataclass(frozen=True, slots=True)
class LaterBuilds:
    """Compiles with these options, recorded like the later compiles of any entry."""

    options: Options
    record: Recording

    def build(self, graph: GraphModule) -> Executable:
        """Compile a backward graph."""
        made: Executable = load_late("compile.pipeline").compile_backward(
            graph, self.options, self.record
        )
        return made

    def size_compiler(self, state: Any) -> Any:
        """Return what compiles a graph for further sizes."""
        pipeline = load_late("compile.pipeline")
        made = pipeline.SizedState(*state)
        return pipeline.size_compiler(self.record.name, made, self.options, self.record)

    def sized_backwards(self, graphs: Any) -> Any:
        """Return what compiles backwards for further sizes."""
        pipeline = load_late("compile.pipeline")
        made = pipeline.SizedGraphs(*graphs)
        return pipeline.sized_backwards(made, self.options, self.record)

    def warn_of_replay(self, is_outdated: bool) -> None:
        """Warn that a backward runs op by op."""
        load_late("compile.pipeline").warn_of_replay(self.record, is_outdated)
