"""Defines the public verbs: jit, disable, reset, graph_break, is_compiling.

`jit` turns its keywords into `Options` and passes them with a compiler to the frame package, which
does the tagging. The compiler is compile/pipeline.py, which only `load_pipeline` imports, when the
first frame is compiled: importing jitmagic loads just tagging and dispatch. The tracer recognises
graph_break and is_compiling by their attribute `__jitmagic_role__`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import CodeType, ModuleType
from typing import Any, ParamSpec, TypeVar, overload

import torch

from .bytecode import FrameSnapshot, shown_as
from .compat.distributed import gradient_bucket
from .errors import CompilerUnavailable, OptionError, TaggingError, warn
from .extend.entry_points import is_loading, load_extensions
from .extend.registry import Changes
from .frame.declared_dynamic import mark_dynamic, mark_static, mark_unbacked
from .frame.family import Compiler
from .frame.forwarder import needs_forwarder
from .frame.handle import Handle, all_handles
from .frame.hook import Suspended, call_with_hooked_callees
from .frame.native import Entry
from .frame.patched_builtins import replaced_builtin
from .frame.tag import (
    handle_of,
    original_of,
    tag,
    tagged_call,
    tagged_handle,
    untag,
    without_tag,
)
from .late import is_loaded, load, short_turns
from .options import Options, disabled_by_environment, make_options
from .ranks.board import Board, listen, on_tick
from .records import Eager, Failed, PendingBuild, Postponed, Recording
from .replacements import wait_for_replacements
from .torch_types import AnyFunction, Kwargs

__all__ = [
    "Suspended",
    "disable",
    "graph_break",
    "handle_of",
    "handle_running",
    "handles",
    "is_compiling",
    "jit",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "original_of",
    "prepare",
    "reset",
    "tag_once",
    "tagged_copy",
    "tagged_handle",
    "untag",
    "wait",
    "without_tag",
]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
_PIPELINE, _LIBRARY = "compile.pipeline", "artifact.library"


def load_pipeline() -> ModuleType:
    """Return the module that runs the stages; the first call imports it."""
    return load(_PIPELINE)


@functools.cache
def _import_error() -> Exception | None:
    """Import the stages; return why that failed.

    Only tried once per process: a second import would run into the first one's registrations.
    """
    try:
        load_pipeline()
    except Exception as error:  # a stage may raise anything on a torch that it does not know
        return error
    return None


@functools.cache
def _preparing() -> threading.Thread:
    def load_stages() -> None:
        with short_turns():
            _import_error()

    thread = threading.Thread(target=load_stages, name="jitmagic-prepare", daemon=True)
    thread.start()
    return thread


def prepare() -> None:
    """Load the stages in the background, as `%load_ext` does while the user still types."""
    _preparing()


def _compile_frame(
    handle: Handle, snapshot: FrameSnapshot, record: Recording
) -> Entry | Eager | Failed | PendingBuild | Postponed:
    load_extensions()
    handle.family.bucket = record.bucket = gradient_bucket() or handle.family.bucket
    if (found := load(_LIBRARY).find_entry(handle, snapshot, record)) is not None:
        return found  # type: ignore[no-any-return]
    if record.affordable <= 0 or record.known_cost > record.affordable:
        return Postponed()
    # A forked child does not have the thread.
    if record.leaves_thread and not is_loaded(_PIPELINE) and _preparing().is_alive():
        return Postponed()
    if not is_loaded(_PIPELINE):  # as a stage, so that progress line and times include it
        with record.stage("import"):
            if (error := _import_error()) is not None:
                raise CompilerUnavailable(error) from error
    made: Entry | Eager | Failed | PendingBuild | Postponed = load_pipeline().compile_frame(
        handle, snapshot, record
    )
    if isinstance(made, PendingBuild) and made.finish is not None:
        return replace(
            made, finish=functools.partial(_finish, handle, snapshot, record, made.finish)
        )
    return _kept(handle, snapshot, record, made)  # type: ignore[no-any-return]


def _finish(
    handle: Handle, snapshot: FrameSnapshot, record: Recording, finish: Callable[[], Any]
) -> Any:
    return _kept(handle, snapshot, record, finish())


def _kept(handle: Handle, snapshot: FrameSnapshot, record: Recording, made: Any) -> Any:
    """Write an entry to disk, and return it."""
    if isinstance(made, Entry):
        load(_LIBRARY).keep_entry(handle, snapshot, made, record)
    return made


def _flatten(code: CodeType) -> Any:
    return load_pipeline().flatten(code)


def _rewrite(code: CodeType, *callbacks: AnyFunction) -> CodeType | None:
    made: CodeType | None = load_pipeline().rewrite_generator(code, *callbacks)
    return made


def _carry(handle: Handle) -> tuple[str, bytes] | None:
    carried: tuple[str, bytes] | None = load(_LIBRARY).carried_code(handle)
    return carried


def _ask(question: str, fn: object) -> AnyFunction:
    """Import the public function called `question` (`why`, `test`, ...) and return what it gives
    for `fn`.
    """
    asking: AnyFunction = getattr(sys.modules[__package__], question)(fn)
    return asking


def _shown(fn: object) -> Callable[[], str]:
    """Return the HTML by which a notebook shows a tagged function, also without %load_ext."""
    card: Any = sys.modules[__package__].status(fn).cards[0]
    return card._repr_html_  # type: ignore[no-any-return]


_QUESTIONS: dict[str, Callable[[object], AnyFunction]] = {
    name: functools.partial(_ask, name) for name in ("aot", "why", "test", "lower")
}
_QUESTIONS["_repr_html_"] = _shown
_COMPILER = Compiler(_compile_frame, _flatten, _rewrite, _QUESTIONS, _carry)
_UNLISTED = Compiler(_compile_frame, _flatten, _rewrite, carry=_carry, is_listed=False)


@overload
def jit(
    fn: T,
    /,
    *,
    backend: str | Callable[..., object] = ...,
    mode: str = ...,
    fullgraph: bool = ...,
    dynamic: bool | Mapping[str, object] | None = ...,
    options: Mapping[str, object] | Options | None = ...,
) -> T: ...
@overload
def jit(
    fn: None = None,
    /,
    *,
    backend: str | Callable[..., object] = ...,
    mode: str = ...,
    fullgraph: bool = ...,
    dynamic: bool | Mapping[str, object] | None = ...,
    options: Mapping[str, object] | Options | None = ...,
) -> Callable[[T], T]: ...


def jit(
    fn: object = None,
    /,
    *,
    backend: str | Callable[..., object] = "native",
    mode: str = "default",
    fullgraph: bool = False,
    dynamic: bool | Mapping[str, object] | None = None,
    options: Mapping[str, object] | Options | None = None,
) -> object:
    """Tag a function, method, lambda, nn.Module instance (in place) or nn.Module class.

    A torch.export.ExportedProgram gives its module, tagged, with the sizes that its Dims declare.

    backend: "native", "aot_eager", "eager", or a callable (gm, example_inputs) -> callable.
    mode: "default"; "reduce-overhead": CUDA graphs, which have no effect on CPU tensors;
        "max-autotune": builds several versions of each kernel (threads, vector registers, blocks,
        warps, generated or library matrix products), checks them against the default's result,
        measures them on copies of the first call's tensors (a backward: on synthetic ones), and
        uses the fastest, also in later processes. It implies CUDA graphs, as in torch;
        "max-autotune-no-cudagraphs" does not. `explain` shows what was tried.
    fullgraph: raise `Unsupported` at a graph break.
    dynamic: the sizes and numbers that are dynamic, so that one variant serves all their values
        (sizes 0 and 1 may need variants of their own). None: those marked by mark_dynamic, and
        from the second variant on those that were seen to change; True: all sizes; False: none;
        {"x": {0: (2, 4096), 1: None}}: dimension 0 of x, from 2 to 4096, and dimension 1, and all
        others as for None; {"n": ...}: the number n, or all sizes of a tensor n.
    options: further names of `jitmagic.Options`, as a mapping or an Options object.

    Returns a Python function with the same signature and the methods `.why(*args)`,
    `.test(*args)` and `.lower(*args)`; a module or class is changed in place and returned.
    Nothing is compiled before the first call. With keywords alone, it returns a decorator. Raises
    TaggingError for an object that cannot be tagged, OptionError for unknown options.
    """
    chosen = make_options(options, backend=backend, mode=mode, fullgraph=fullgraph, dynamic=dynamic)
    if fn is None:
        return functools.partial(_tag, options=chosen)
    return _tag(fn, chosen)


def _tag(fn: Any, options: Options) -> Any:
    if disabled_by_environment():
        return fn
    if isinstance(fn, _exported_program()):
        fn, dynamic = load("exporting.imported").module_of(fn)
        if options.dynamic is None:
            options = make_options(options, dynamic=dynamic)
    elif isinstance(fn, torch.fx.GraphModule):
        load("exporting.imported").follow_checks(fn)
    if (name := replaced_builtin()) is not None:  # the stub would be built with the replacement
        warn(f"{fn!r} stays plain Python: it was tagged while builtins.{name} was replaced")
        return fn
    if isinstance(options.dynamic, tuple) and not isinstance(fn, type):
        _check_names(fn, [name for name, _ in options.dynamic])
    return tag(fn, options, _COMPILER)


def _exported_program() -> type | tuple[()]:
    """Return torch.export's class of programs; `()` if nothing has imported it."""
    return getattr(sys.modules.get("torch.export"), "ExportedProgram", ())


def _check_names(fn: object, names: Iterable[str]) -> None:
    """Raise for names in dynamic={...} that are not parameters, as they would have no effect."""
    called = fn.forward if isinstance(fn, torch.nn.Module) else original_of(fn)
    target = called
    while isinstance(target, functools.partial):
        target = target.func
    if needs_forwarder(target) and not inspect.ismethod(target):  # it takes *args and **kwargs
        hint = "dynamic=True, or jitmagic.mark_dynamic on the tensors"
        raise TaggingError(
            "it with names in dynamic", "its arguments reach the graph without names", hint
        )
    try:
        known = tuple(inspect.signature(called).parameters)
    except (TypeError, ValueError):  # a callable without a signature
        return
    for name in names:
        if name not in known:
            raise OptionError("argument in dynamic", name, known)


def tag_once(fn: T, options: Kwargs) -> T:
    """Tag code that runs once, such as the top level of a cell; status() does not list it."""
    if disabled_by_environment():
        return fn
    made: T = tag(fn, _options_of(options), _UNLISTED)
    return made


def _options_of(keywords: Mapping[str, Any]) -> Options:
    """Return the options for keywords of `jit`."""
    named = {name: value for name, value in keywords.items() if name != "options"}
    return make_options(keywords.get("options"), **named)


def tagged_copy(fn: object, options: Kwargs) -> AnyFunction:
    """Return a tagged copy of `fn` as `jit(fn, **options)` makes it; `fn` itself is unchanged.

    Without options, those of `fn` apply if it is tagged. Raises TaggingError as `jit` does.
    """
    known = handle_of(fn) or handle_of(type(fn))
    chosen = known.options if known is not None and not options else _options_of(options)
    # The caller waits for the compile, and looks at its stages.
    chosen = replace(chosen, background=False, persist=False)
    original = original_of(fn)
    if isinstance(original, type):
        raise TaggingError(
            f"class {original.__qualname__}", "it is a class", "use an instance of it"
        )
    if isinstance(original, torch.nn.Module):
        return tagged_call(original, chosen, _UNLISTED)
    copy: AnyFunction = tag(original, chosen, _UNLISTED)
    return copy


@overload
def disable(
    fn: Callable[P, R], /, recursive: bool = ..., *, reason: str | None = ...
) -> Callable[P, R]: ...
@overload
def disable(
    fn: None = None, /, recursive: bool = ..., *, reason: str | None = ...
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def disable(fn: object = None, /, recursive: bool = True, *, reason: str | None = None) -> object:
    """Return a function like `fn` that always runs as plain Python, with everything that it calls.

    recursive: if False, functions that it calls are still compiled, when compiled code calls it or
        they are tagged themselves.
    reason: text that reports show for the graph break at a call of it.
    With keywords alone, it returns a decorator. Raises TaggingError if `fn` is not callable.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if not callable(fn):
        raise TaggingError(f"{fn!r}", "it is not callable", "disable takes functions and modules")
    original = original_of(fn)

    @functools.wraps(original)
    def plain(*args: object, **kwargs: object) -> object:
        if not recursive:
            return call_with_hooked_callees(original, args, kwargs)
        with Suspended():
            return original(*args, **kwargs)

    plain.__jitmagic_disabled__ = reason or ""  # type: ignore[attr-defined]
    return plain


def reset() -> None:
    """Drop everything that was compiled, also for `jitmagic.lazy()`; tagged objects stay tagged and
    are compiled again at their next call. Memory that was cached for results is returned to the
    system.
    """
    for handle in all_handles():
        if handle.is_root:
            handle.reset()
    if (native := sys.modules.get("jitmagic._runtime")) is not None:
        native.release_memory()
    for name in ("lazy_mode.compiling", "frame.agreement.varying", "ranks.decisions"):
        if (recorded := sys.modules.get(f"{__package__}.{name}")) is not None:
            recorded.forget()


def _compile_again() -> None:
    """Drop what was compiled with other extensions; they are loaded before the first compile."""
    if not is_loading():
        reset()


Changes.notify = staticmethod(_compile_again)


_questions: list[str] = []  # of other ranks, for this one's status or explanation


def _note_question(notes: Board, rank: int, question: str) -> None:
    if rank != notes.rank:
        _questions.append(question)


def _reply_to_ranks(notes: Board) -> None:
    while _questions:
        load("diagnostics.all_ranks").reply(notes, _questions.pop())


listen("status", _note_question)
on_tick(_reply_to_ranks)


def wait(timeout: float | None = None) -> bool:
    """Wait until nothing is being compiled in the background, for at most `timeout` seconds. Return
    whether all is built; the next calls then run compiled code. Those of functions that were not
    worth a compile yet are compiled at once.
    """
    ends = None if timeout is None else time.monotonic() + timeout
    for handle in all_handles():
        left = None if ends is None else max(0.0, ends - time.monotonic())
        handle.pay_back.is_wanted = handle.pay_back.is_costly
        if handle.building is not None and not handle.building.wait(left):
            return False
    return wait_for_replacements(None if ends is None else max(0.0, ends - time.monotonic()))


def graph_break() -> None:
    """End the graph here when the calling code is compiled; does nothing otherwise."""


def is_compiling() -> bool:
    """Return True inside code that jitmagic traces, False in plain Python."""
    return False


graph_break.__jitmagic_role__ = "graph_break"  # type: ignore[attr-defined]
is_compiling.__jitmagic_role__ = "is_compiling"  # type: ignore[attr-defined]


def handle_running(code: CodeType) -> Handle | None:
    """Return the handle whose compiled code is `code`; None for any other code object."""
    for handle in all_handles():
        for entry in handle.dispatcher.entries:
            own = getattr(entry.run, "__code__", None)
            if own is not None and (own is code or shown_as(own) == code):
                return handle
    return None


def handles() -> list[Handle]:
    """Return the handles of all live tagged functions and modules."""
    return [handle for handle in all_handles() if handle.is_root]
