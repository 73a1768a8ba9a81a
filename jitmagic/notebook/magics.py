"""magics: `%load_ext jitmagic`, the %%compile cell magic and the line magics.

`%%compile` runs a cell with its functions and classes tagged and its top-level tensor code
compiled; the cell's effects, output and errors are the same as without it. `%unload_ext jitmagic`
restores the notebook: it binds tagged names to their original objects again and removes magics and
hooks.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import difflib
import itertools
import linecache
import sys
import time
import weakref
from collections.abc import Coroutine, Iterable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from IPython.core.completer import context_matcher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, output_can_be_silenced
from IPython.display import display

from ..api import handle_of, jit, prepare, untag
from ..diagnostics.timing import Timing
from ..errors import RUN_NAME, JitmagicError, notebook_shell
from ..extend.backends import find_backend
from ..late import load as load_module
from ..lazy_dataclass import dataclass, field, fields
from ..lazy_mode import Counts, lazy
from ..options import ALIASES, BACKENDS, make_options
from ..progress import new_wait
from ..torch_types import AnyFunction
from .arguments import declared, defaults_of, parse
from .caching import run_command
from .cell import Definition, Part, Plain, Run, future_flags, split_cell
from .completion import install_completion, remove_completion
from .debugging import hint_about_locals
from .display import (
    DimLine,
    cell_line,
    cell_time,
    install_formatters,
    parts_of,
    remove_formatters,
)
from .inspection import install_inspection, remove_inspection
from .recorded_cell import check_alone, plain_parts, recorded_line
from .tagging import Mark, Tagger, tag_methods
from .timeit import InvalidExpression, split_expression, time_expression
from .tracebacks import restore_tracebacks, trim_traceback

if TYPE_CHECKING:
    from ..diagnostics.explanation.explain import Explanation
    from ..diagnostics.status import Status

__all__ = ["CompileMagics", "load", "unload"]


CELL_SECONDS = 20.0  # limit of one compile in a cell, while the user waits
PATIENCE = 1.0  # seconds that a call waits for kernels before it runs as eager


@magics_class
class CompileMagics(Magics):
    """Implements the magics, and remembers what they tagged, so that unloading can restore it."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.marks: list[Mark] = []

    @output_can_be_silenced
    @cell_magic
    @declared("%%compile")  # type: ignore[untyped-decorator]
    def compile(self, line: str, cell: str) -> object:
        """Run the cell with its functions, classes and top-level tensor code compiled.

        Functions and classes that the cell defines stay compiled in later cells, until they are
        redefined or `%unload_ext jitmagic` is run. A compile that takes longer than a second
        continues in the background, and calls run as eager until it is done. Names, output, the
        value of the last line and errors are the same as without %%compile. With --lazy nothing is
        tagged: operations are recorded, and compiled when a value is needed. `jitmagic.jit` has the
        same options in Python.
        """
        __tracebackhide__ = True
        options = self._options("%%compile", line)
        if options["lazy"]:
            check_alone(options, defaults_of(self.compile))
        wanted = _Wanted(*map(options.pop, _SHOWN))
        further: dict[str, object] = {"notices": "never"} if wanted.quiet else {}
        if not (wanted.explain or wanted.annotate or wanted.time):  # these report on the compile
            further["background"] = PATIENCE
        if make_options().compile_seconds is None:
            further["compile_seconds"] = CELL_SECONDS
        options["options"] = further
        source = _transformed(self.shell, cell)
        caller = sys._getframe(2).f_code  # the cell's code, which called run_cell_magic
        filename = self._cache(_file_text(line, source), caller.co_filename)
        with contextlib.suppress(ImportError):  # IPython without stack_data shows single lines
            load_module("notebook.cell_sources").read_below_magic(filename)
        parts = _split(self.shell, source, filename)
        if wanted.lazy:
            parts = plain_parts(parts)
        self.shell.compile.flags |= future_flags(source)  # IPython keeps them for later cells too
        running = self._run(
            parts, Tagger(filename, options, None if wanted.quiet else display), wanted
        )
        return running if _awaits(parts) else _finish(running)  # _Reader made the cell await it

    def _options(self, magic: str, line: str) -> dict[str, Any]:
        method = self.compile if magic == "%%compile" else self.compile_names
        options = parse(magic, method, line)
        if options["backend"] not in (*BACKENDS, *ALIASES):
            named = self.shell.user_ns.get(options["backend"])
            named = named if callable(named) else find_backend(options["backend"])
            if named is None:
                raise UsageError(
                    f"{magic}: unknown backend {options['backend']!r}; known: "
                    f"{', '.join(BACKENDS)}, or the name of a callable in the notebook"
                )
            options["backend"] = named
        return options

    def _cache(self, source: str, name: str) -> str:
        """Put the cell's source into linecache for tracebacks, and return its file name.

        That is `name`, the file of the calling cell, if the cell consists of this magic.
        """
        if linecache.getline(name, 1).startswith((_CALL, f"await {_CALL}", _HEAD)):
            lines = [f"{line}\n" for line in source.splitlines()]
            linecache.cache[name] = (len(source), None, lines, name)
            return name
        history = self.shell.history_manager
        number = len(history.input_hist_raw) - 1 if history is not None else 0
        return self.shell.compile.cache(source, number, source)

    async def _run(self, parts: list[Part], tagger: Tagger, wanted: _Wanted) -> object:
        """Run the parts and return the cell's value; only asynchronous parts are awaited."""
        __tracebackhide__ = True
        cell = _Cell()
        try:
            if not wanted.lazy:
                return await self._run_parts(parts, tagger, cell)
            cell.recorded = lazy.counts()
            with lazy():
                return await self._run_parts(parts, tagger, cell)
        except BaseException:  # the cell's error, an interrupt too: only its traceback is changed
            trim_traceback(self.shell, CompileMagics._run_parts.__code__)
            raise
        finally:
            self._report(cell, wanted)

    async def _run_parts(self, parts: list[Part], tagger: Tagger, cell: _Cell) -> object:
        __tracebackhide__ = True
        namespace = self.shell.user_ns
        value: Any = None
        for part in parts:
            if part is not parts[0] and self.shell.ast_node_interactivity == "all":
                sys.displayhook(value)
                value = None
            if isinstance(part, Run) and _may_read_frame(part, namespace):
                for code in part.plain:
                    value = eval(code, namespace)
                continue
            if isinstance(part, Run):
                target = tagger.tag(FunctionType(part.code, namespace, RUN_NAME), once=True)
                cell.ran.append(target)
                try:
                    value = target()
                except (JitmagicError, KeyboardInterrupt) as error:
                    _raise_on_cell_line(error, part, tagger.filename)
                continue
            value = eval(part.code, namespace)
            if isinstance(part, Definition):
                cell.ran += self._tag(part.name, tagger)
            elif isinstance(part, Plain) and part.is_async:
                value = await value
        return value

    def _report(self, cell: _Cell, wanted: _Wanted) -> None:
        """Display what the cell's options ask for, even if the cell raised."""
        seconds = time.perf_counter() - cell.started
        line = cell_line(parts_of(cell.ran))
        if cell.recorded is not None:
            line = recorded_line(cell.recorded, lazy.counts())
        if line is not None and not wanted.quiet:
            display(line)
        explains = wanted.explain or wanted.annotate
        if not (explains or wanted.time):
            return
        explained = load_module("diagnostics.explanation.explain").explanation_of
        found = [explained(target, measured=wanted.annotate) for target in cell.ran]
        if wanted.time:
            display(cell_time(seconds, sum(_compile_seconds(e) for e in found)))
        if explains:
            for explanation in _worth_showing(found):
                display(explanation)

    def _tag(self, name: str, tagger: Tagger) -> list[AnyFunction]:
        """Tag what a definition bound, if it is something that can be tagged."""
        defined = self.shell.user_ns[name]
        if isinstance(defined, type) and not issubclass(defined, torch.nn.Module):
            methods = tag_methods(defined, tagger)
            found = tuple((name, weakref.ref(method)) for name, method in methods.items())
            if found:
                self._mark(Mark(name, weakref.ref(defined), found))
            return list(methods.values())
        if not isinstance(defined, (type, FunctionType)) or handle_of(defined) is not None:
            return []  # a decorator returned something else, or the user tagged it already
        tagged = tagger.tag_or_explain(defined, name)
        if tagged is None:
            return []
        self.shell.user_ns[name] = tagged
        self._mark(Mark(name, weakref.ref(tagged)))
        return [tagged]

    @line_magic("compile")  # type: ignore[arg-type]  # IPython's annotation lacks the name
    @declared("%compile")  # type: ignore[untyped-decorator]
    def compile_names(self, line: str) -> object:
        """Tag existing functions, modules or classes."""
        options = self._options("%compile", line)
        names: list[str] = options.pop("names")
        for name in names:
            tagged = self.shell.user_ns[name] = jit(self._named(name), **options)
            self._mark(Mark(name, weakref.ref(tagged)))
        return _status(map(self._named, names))

    @line_magic
    def compile_off(self, line: str) -> None:
        """Restore the original of tagged names: %compile_off NAME ..."""
        for name in line.split():
            self.shell.user_ns[name] = untag(self._named(name))

    @line_magic
    def compile_status(self, line: str) -> Status:
        """Show a table of everything tagged, or of these names: %compile_status [NAME ...]"""
        return _status(map(self._named, line.split()))

    @line_magic
    @declared("%jit_timeit")  # type: ignore[untyped-decorator]
    def jit_timeit(self, line: str) -> Timing:
        """Time an expression as compiled code and as plain Python, in turns.

        It is run many times, with all its side effects. It is compiled before that, and the compile
        time is reported separately.
        """
        before, expression = split_expression(line)
        options = parse("%jit_timeit", self.jit_timeit, before)
        try:
            return time_expression(
                expression, self.shell.user_ns, options["seconds"], options["vs"].strip("'\"")
            )
        except InvalidExpression as error:
            raise UsageError(f"%jit_timeit: {error}") from error

    @line_magic
    @declared("%jit_cache")  # type: ignore[untyped-decorator]
    def jit_cache(self, line: str) -> object:
        """Show what the cache on disk holds, empty it, or pack it into one file.

        `%jit_cache bundle x.jmz step` packs what is compiled of `step`; without a name, everything.
        """
        return run_command(parse("%jit_cache", self.jit_cache, line), self.shell.user_ns)

    def _named(self, name: str) -> Any:
        if name not in self.shell.user_ns:
            close = difflib.get_close_matches(name, self.shell.user_ns, 1)
            hint = f": did you mean {close[0]}?" if close else ""
            raise UsageError(f"no {name!r} in the notebook{hint}")
        return self.shell.user_ns[name]

    def _mark(self, mark: Mark) -> None:
        self.marks = [m for m in self.marks if m.target() is not None]
        self.marks.append(mark)

    def after_cell(self) -> None:
        """Handle IPython's event after a cell, when its error has been shown."""
        restore_tracebacks(self.shell)

    def restore(self) -> None:
        """Restore the original of everything tagged, unless the user rebound its name."""
        for mark in self.marks:
            mark.remove(self.shell.user_ns)
        self.marks.clear()


def _may_read_frame(part: Run, namespace: dict[str, object]) -> bool:
    """Return whether callees may read the cell's names from the locals of its frame.

    A compiled part is a function whose names are globals, so it has no such locals.
    """
    readers = load_module("trace.residual.frame_readers")
    return bool(readers.callees_may_read_namespace(part.code, namespace))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The options of a cell that select what is displayed, and whether it is recorded."""

    lazy: bool
    explain: bool
    annotate: bool
    time: bool
    quiet: bool


_SHOWN = tuple(each.name for each in fields(_Wanted))


@dataclass(eq=False, slots=True)
class _Cell:
    """A running cell: what it has tagged or recorded so far, and its start time."""

    ran: list[AnyFunction] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    recorded: Counts | None = None  # before the cell, if its operations are recorded


def _raise_on_cell_line(
    error: JitmagicError | KeyboardInterrupt, part: Run, filename: str
) -> NoReturn:
    """Raise the error again; if its traceback has no frame of the user's, from the cell's line.

    IPython never hides the last frame of a traceback, which would be one of jitmagic.
    """
    __tracebackhide__ = True
    own = error.__traceback__
    if own is None or own.tb_next is not None:
        raise error
    where = getattr(error, "where", None)
    line = where.lineno if where and where.filename == filename else part.line
    code = compile("\n" * (line - 1) + "raise error", filename, "exec")
    exec(code, {"error": error.with_traceback(None)})
    raise AssertionError("raised above")


def _worth_showing(found: list[Explanation]) -> Sequence[object]:
    """Return the explanations with a graph; code that only calls those has the same breaks."""
    none = "jitmagic explain: no graph: nothing that was called computes with tensors"
    graphs = [explanation for explanation in found if explanation.graph_count]
    return graphs or [e for e in found if e.graph_break_count] or [DimLine(none)]


def _status(targets: Iterable[object]) -> Status:
    table: Status = load_module("diagnostics.status").status(*targets)
    return table


def _compile_seconds(explanation: Explanation) -> float:
    return sum(seconds for _, seconds in explanation.compile_times)


_HEAD = "%%compile"
_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def _file_text(line: str, source: str) -> str:
    """Return the cell as tracebacks show it, with the magic's line as typed."""
    return f"{f'%%compile {line}'.strip()}\n{source}"


def _transformed(shell: InteractiveShell, cell: str) -> str:
    """Return the cell as Python with unchanged line numbers: IPython drops leading blank lines."""
    blank = itertools.takewhile(str.isspace, cell.splitlines(keepends=True))
    source: str = shell.transform_cell(cell)
    return "\n" * sum(1 for _ in blank) + source


def _split(shell: InteractiveShell, source: str, filename: str) -> list[Part]:
    flags, shows = shell.compile.flags & _FUTURE, shell.ast_node_interactivity
    return split_cell(source, filename, flags, first_line=2, shows=shows)


def _finish(running: Coroutine[object, object, object]) -> object:
    """Run a coroutine that awaits nothing."""
    __tracebackhide__ = True
    try:
        running.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the cell awaits, but no part of it does")


# ------------------------------------------------------------------------- before the cell is run

_CALL = "get_ipython().run_cell_magic('compile', "


@dataclass(frozen=True, slots=True)
class _Reader:
    """An input transformer that parses %%compile cells before they run.

    It awaits the magic of a cell with a top-level `await`, and raises a syntax error where IPython
    raises that of any cell.
    """

    shell: weakref.ref[InteractiveShell]

    def __call__(self, lines: list[str]) -> list[str]:
        shell = self.shell()
        if shell is None or len(lines) != 1 or not lines[0].startswith(_CALL):
            return lines
        call = ast.parse(lines[0].strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        line, body = (ast.literal_eval(argument) for argument in call.args[1:])
        source = _transformed(shell, body)
        try:
            parts = _split(shell, source, _UNNAMED)
        except SyntaxError as error:
            text = _file_text(line, source)
            error.filename = shell.compile.cache(text, shell.execution_count, text)
            raise
        return [f"await {lines[0]}"] if _awaits(parts) else lines


_UNNAMED = "<%%compile>"


def _awaits(parts: list[Part]) -> bool:
    return any(isinstance(part, Plain) and part.is_async for part in parts)


# --------------------------------------------------------------------------------- load and unload

_LINE_MAGICS = ("compile", "compile_off", "compile_status", "jit_cache", "jit_timeit")
_LOADED: dict[int, tuple[CompileMagics, _Reader]] = {}


def _before_cell(info: Any) -> None:
    hint_about_locals(display, info.raw_cell, notebook_shell().call_pdb)


def load(shell: InteractiveShell) -> None:
    """Install the magics and hooks: %load_ext jitmagic."""
    unload(shell)
    magics = CompileMagics(shell)
    shell.register_magics(magics)
    reader = _Reader(weakref.ref(shell))
    shell.input_transformers_post.append(reader)
    shell.events.register("pre_run_cell", new_wait)
    shell.events.register("pre_run_cell", _before_cell)
    shell.events.register("post_execute", magics.after_cell)
    install_formatters(shell)
    install_completion(shell, context_matcher)
    install_inspection(shell, ("%%compile", *(f"%{name}" for name in _LINE_MAGICS)))
    _LOADED[id(shell)] = magics, reader
    prepare()


def unload(shell: InteractiveShell) -> None:
    """Remove the magics and hooks, and restore what was tagged: %unload_ext jitmagic."""
    loaded = _LOADED.pop(id(shell), None)
    if loaded is None:
        return
    magics, reader = loaded
    magics.restore()
    if reader in shell.input_transformers_post:
        shell.input_transformers_post.remove(reader)
    shell.events.unregister("pre_run_cell", new_wait)
    shell.events.unregister("pre_run_cell", _before_cell)
    shell.events.unregister("post_execute", magics.after_cell)
    magics.after_cell()
    remove_formatters(shell)
    remove_completion(shell)
    remove_inspection(shell)
    shell.magics_manager.magics["cell"].pop("compile", None)
    for name in _LINE_MAGICS:
        shell.magics_manager.magics["line"].pop(name, None)
    shell.magics_manager.registry.pop("CompileMagics", None)
