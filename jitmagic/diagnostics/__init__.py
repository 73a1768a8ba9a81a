"""diagnostics: reads the records that pipeline keeps and shows them. No stage knows of this room."""

from __future__ import annotations

from .explain import BreakReport, Explanation, KernelReport, explain, explanation_of

__all__ = ["BreakReport", "Explanation", "KernelReport", "explain", "explanation_of"]
