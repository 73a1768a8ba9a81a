"""dump: writes an explanation as a folder of files; the graphs can be imported.

dump(explanation, folder)   graphs as graph_N.py (importable), generated kernels with their suffix,
                            guards as text, the report as text and HTML
"""

from __future__ import annotations

from pathlib import Path

from .explanation.explain import Explanation
from .explanation.html import html_report
from .explanation.report import full_report

__all__ = ["dump"]

# Names and sources may hold lone surrogates, which UTF-8 cannot encode: they become escapes.
_TEXT = {"encoding": "utf-8", "errors": "backslashreplace"}
_SUFFIX = {"cpp": ".cpp", "triton": ".py", "numba": ".py"}


def dump(found: Explanation, folder: str | Path) -> Path:
    """Write the files into `folder`, which may exist. Returns the folder."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    (root / "report.txt").write_text(full_report(found), **_TEXT)
    (root / "report.html").write_text(html_report(found), **_TEXT)
    (root / "guards.txt").write_text("\n".join(found.guards) + "\n", **_TEXT)
    for number, graph in enumerate(found.graphs):
        (root / f"graph_{number}.py").write_text(_graph_text(graph), **_TEXT)
    texts = dict.fromkeys((kernel.text, kernel.language) for kernel in found.kernels)
    for number, (text, language) in enumerate(texts):
        (root / f"kernels_{number}{_SUFFIX[language]}").write_text(text, **_TEXT)
    return root


def _graph_text(graph: object) -> str:
    code = getattr(graph, "code", "")
    return f"import torch\nfrom torch import device\nfrom math import inf, nan\n{code}"
