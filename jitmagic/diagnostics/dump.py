"""dump: everything an explanation knows, as a folder of files that run.

dump(explanation, folder)   graphs as graph_N.py (importable), generated kernels with their suffix,
                            guards as text, the report as text and HTML
"""

from __future__ import annotations

from pathlib import Path

from .explanation.explain import Explanation
from .explanation.html import html_report
from .explanation.report import full_report

__all__ = ["dump"]

# What a name or a source holds that UTF-8 has not (lone surrogates) is written as an escape.
_TEXT = {"encoding": "utf-8", "errors": "backslashreplace"}
_SUFFIX = {"cpp": ".cpp", "triton": ".py", "numba": ".py"}


def dump(found: Explanation, folder: str | Path) -> Path:
    """Write the files; an existing folder is added to. Returns the folder."""
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
