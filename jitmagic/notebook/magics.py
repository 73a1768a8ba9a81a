"""%load_ext jitmagic: the %%compile cell magic. The one file that imports IPython.

`%%compile` runs a cell with its functions and classes tagged and its top-level tensor code
compiled. What it does to the notebook is undone by `%unload_ext jitmagic`: tagged names get their
plain selves back, the magic is gone, no hook stays behind.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.display import display

from ..api import jit, original_of, prepare
from ..diagnostics.explain import Explanation, explanation_of
from ..errors import OptionError, TaggingError
from ..options import BACKENDS, MODES
from .cell import Definition, Plain, Run, split_cell
from .display import CellReport

__all__ = ["CompileMagics", "load", "unload"]

Tagged = Callable[..., Any]


class _Parser(argparse.ArgumentParser):
    """Usage errors are IPython's, one line, no exit."""

    def error(self, message: str) -> Any:
        raise UsageError(f"%%compile: {message}\n{self.format_usage().strip()}")


def _parser() -> _Parser:
    parser = _Parser(prog="%%compile", add_help=False, allow_abbrev=False)
    parser.add_argument("--mode", choices=MODES, default="default")
    parser.add_argument("--backend", default="native", help=", ".join(BACKENDS) + " or a name")
    parser.add_argument("--fullgraph", action="store_true")
    parser.add_argument("--dynamic", action="store_true", default=None)
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--time", action="store_true")
    return parser


@magics_class
class CompileMagics(Magics):
    """Holds what was tagged, so that unloading can put it back."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.tagged: dict[str, object] = {}

    @cell_magic
    def compile(self, line: str, cell: str) -> Any:
        """%%compile [--mode M --backend B --fullgraph --dynamic --explain --time]"""
        options = self._options(line)
        show, clock = options.pop("explain"), options.pop("time")
        source = self.shell.transform_cell(cell)
        filename = self.shell.compile.cache(source, self.shell.execution_count, cell)
        started = time.perf_counter()
        value, ran = self._run(source, filename, options)
        seconds = time.perf_counter() - started
        found = [explanation_of(target) for target in ran]
        if clock:
            display(CellReport(seconds, sum(_compile_seconds(e) for e in found)))
        if show:
            for explanation in found:
                if explanation.graph_count or explanation.graph_break_count:
                    display(explanation)
        return value

    def _options(self, line: str) -> dict[str, Any]:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%%compile: {error}") from error
        options = vars(_parser().parse_args(words))
        if options["backend"] not in BACKENDS:
            named = self.shell.user_ns.get(options["backend"])
            if not callable(named):
                raise UsageError(str(OptionError("backend", options["backend"], BACKENDS)))
            options["backend"] = named
        return options

    def _run(self, source: str, filename: str, options: dict[str, Any]) -> tuple[Any, list[Tagged]]:
        namespace = self.shell.user_ns
        value: Any = None
        ran: list[Tagged] = []
        for part in split_cell(source, filename):
            if isinstance(part, Run):
                target = jit(FunctionType(part.code, namespace), **options)
                value = target()
                ran.append(target)
                continue
            exec(part.code, namespace)
            if isinstance(part, Definition):
                ran += self._tag(part.name, options)
            assert isinstance(part, (Definition, Plain))
        return value, ran

    def _tag(self, name: str, options: dict[str, Any]) -> list[Tagged]:
        """Tag what a definition bound, if it is something that can be tagged."""
        defined = self.shell.user_ns[name]
        if isinstance(defined, type) and not issubclass(defined, torch.nn.Module):
            return _tag_methods(defined, options)
        if not isinstance(defined, (type, FunctionType)):
            return []
        try:
            tagged = jit(defined, **options)
        except TaggingError as error:  # a generator, say: it stays what it is
            print(f"%%compile: {name} runs as it is: {error}", file=sys.stderr)
            return []
        self.shell.user_ns[name] = tagged
        self.tagged[name] = tagged
        return [tagged]

    def restore(self) -> None:
        """Give every tagged name its plain self back, unless the user rebound it."""
        for name, tagged in self.tagged.items():
            if self.shell.user_ns.get(name) is tagged:
                self.shell.user_ns[name] = original_of(tagged)
        self.tagged.clear()


def _tag_methods(cls: type, options: dict[str, Any]) -> list[Tagged]:
    """Plain methods of a plain class; special methods stay as they are."""
    made: list[Tagged] = []
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and not name.startswith("__"):
            setattr(cls, name, jit(method, **options))
            made.append(getattr(cls, name))
    return made


def _compile_seconds(explanation: Explanation) -> float:
    return sum(seconds for _, seconds in explanation.compile_times)


_LOADED: dict[int, CompileMagics] = {}


def load(shell: InteractiveShell) -> None:
    """%load_ext jitmagic"""
    magics = CompileMagics(shell)
    shell.register_magics(magics)
    _LOADED[id(shell)] = magics
    prepare()


def unload(shell: InteractiveShell) -> None:
    """%unload_ext jitmagic"""
    magics = _LOADED.pop(id(shell), None)
    if magics is None:
        return
    magics.restore()
    shell.magics_manager.magics["cell"].pop("compile", None)
    shell.magics_manager.registry.pop("CompileMagics", None)
