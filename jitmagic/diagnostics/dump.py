"""dump: writes an explanation as a folder of files; the graphs can be imported.

dump(explanation, folder)   graphs as graph_N.py (importable), generated kernels with their suffix,
                            guards as text, the report as text and HTML
"""

from __future__ import annotations

from pathlib import Path

from .explanation.explain import Explanation
from .explanation.html import html_report
from .explanation.report import full_report
from .folder import write_text

__all__ = ["dump"]

_SUFFIX = {"cpp": ".cpp", "triton": ".py", "numba": ".py"}


def dump(found: Explanation, folder: str | Path) -> Path:
    """Write the files into `folder`, which may exist. Returns the folder."""
    root = Path(folder)
    write_text(root / "report.txt", full_report(found))
    write_text(root / "report.html", html_report(found))
    write_text(root / "guards.txt", "\n".join(found.guards) + "\n")
    for number, graph in enumerate(found.graphs):
        write_text(root / f"graph_{number}.py", _graph_text(graph))
    texts = dict.fromkeys((kernel.text, kernel.language) for kernel in found.kernels)
    for number, (text, language) in enumerate(texts):
        write_text(root / f"kernels_{number}{_SUFFIX.get(language, '.txt')}", text)
    return root


def _graph_text(graph: object) -> str:
    code = getattr(graph, "code", "")
    return f"import torch\nfrom torch import device\nfrom math import inf, nan\n{code}"
