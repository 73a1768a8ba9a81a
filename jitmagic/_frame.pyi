"""jitmagic._frame (extensions/frame): guard programs, dispatchers and the frame hook, in C and C++.

Only the files *_tensor.cpp depend on torch; tests on Pythons without torch leave them out. The
garbage collector does not see through code objects, so objects stored in `co_consts` or `co_extra`
(stubs, dispatchers, decisions about callees) are freed explicitly when the root handle dies.
"""

import weakref
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

TORCH_VERSION: str

class GuardProgram:
    """A register machine over borrowed objects; frame/native.py makes its steps.

    alive: False once it can never pass again, because a weakly referenced object has died
    first_failure: index of the first step that fails, -1 if all pass
    """

    alive: bool
    def __init__(self, steps: tuple[tuple[Any, ...], ...], /) -> None: ...
    def __len__(self) -> int: ...
    def check(self, args: tuple[Any, ...], /) -> bool: ...
    def first_failure(self, args: tuple[Any, ...], /) -> int: ...

class Entry:
    """One compiled variant of a frame, in one of two forms.

    inputs None: `run` is a residual, called with all stub arguments; it returns the frame's result.
    inputs a tuple: registers of the graph's inputs; run(*tensors) returns a tuple, and `template`
    builds the frame's result from it: ("out", i) | ("const", object) | ("reg", r) | ("tuple", t...)
    | ("list", t...) | ("dict", (key, t)...).

    hook: the frame hook is active for the dynamic extent of `run`
    mutates: a graph that failed halfway may have written to its inputs
    comparison: None, a CallBatch, or an object whose begin() returns the Entry that a call runs;
    then end(result, nanoseconds, nanoseconds in compiled graphs) gets the time, or drop() is called
    if the call raises
    """

    program: GuardProgram
    run: Callable[..., Any]
    hook: bool
    residual: bool
    mutates: bool
    alive: bool
    hits: int
    notes: Any
    comparison: Any
    def __init__(
        self,
        program: GuardProgram,
        run: Callable[..., Any],
        inputs: tuple[int, ...] | None = None,
        template: tuple[Any, ...] | None = None,
        hook: bool = False,
    ) -> None: ...
    def check(self, args: tuple[Any, ...], /) -> bool: ...

class CallBatch:
    """The value of `Entry.comparison` while the next `calls` calls run `entry`, timed natively.

    The last of them calls done([nanoseconds, ...], [nanoseconds in compiled graphs, ...]). A call
    that raises is not counted.
    """

    def __init__(
        self, entry: Entry, calls: int, done: Callable[[list[int], list[int]], None]
    ) -> None: ...

class TimedGraph:
    """Calls a compiled graph for a residual; its time counts where the call around it is timed."""

    run: Callable[..., tuple[Any, ...]]
    def __init__(self, run: Callable[..., tuple[Any, ...]]) -> None: ...
    def __call__(self, *args: Any) -> tuple[Any, ...]: ...

class Dispatcher:
    """The callee of a stub: tries entries most recently used first.

    miss(args): called if no entry matched; its result is the call's
    error(entry, args, exception): called if a graph entry raised; finds out what eager raises
    give_up(function, count, calls=-1): the next `calls` calls that no entry fits (< 0: all)
    natively run function(*first count arguments), those after them `miss`; (None, 0) undoes it
    title: its name in profiles
    owner: the Handle       family: the family whose options apply to callees
    stub: weak reference to the function whose code calls this. Deep in a recursion that function
    gets owner.code_for_deep_recursion() for as long as owner.run_original(args) runs.
    """

    name: str
    title: str | None
    arity: int
    calls: int
    owner: Any
    family: Any
    stub: weakref.ref[FunctionType] | None
    entries: tuple[Entry, ...]
    def __init__(
        self,
        name: str,
        arity: int,
        miss: Callable[[tuple[Any, ...]], Any],
        error: Callable[[Entry, tuple[Any, ...], Exception], Any],
    ) -> None: ...
    def __call__(self, *args: Any) -> Any: ...
    def add(self, entry: Entry, /) -> None: ...
    def remove(self, entry: Entry, /) -> None: ...
    def clear(self) -> None: ...
    def give_up(
        self, function: Callable[..., Any] | None, count: int, calls: int = -1, /
    ) -> None: ...

class Continue:
    """A residual's result with which the dispatcher continues in the named one, in a loop."""

class Spread:
    """Runs code on the values of a dispatcher: parameters in slot order, then the cells.

    Used for plain Python if the values are not the arguments one to one; no Python of jitmagic
    runs.
    """

    def __init__(self, code: CodeType, globals: dict[str, Any]) -> None: ...
    def __call__(self, *values: Any) -> Any: ...

class ModuleCall:
    """The `_compiled_call_impl` of a tagged nn.Module instance, which it references weakly.

    otherwise: three callables that get the module as first argument: if there are hooks; if the
    class's forward is not `forward` any more or has other code; if the recursion is deep
    """

    stub: FunctionType
    owner: Any
    def __init__(
        self,
        module: Any,
        stub: FunctionType,
        dispatcher: Dispatcher,
        on_error: Callable[[BaseException], None],
        forward: FunctionType,
        otherwise: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]],
        tables: tuple[str, ...],
        shared: tuple[dict[Any, Any], ...],
        owner: Any,
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def release_arguments() -> None:
    """Make the frame of a resume function the only owner of its arguments (its first call)."""

def continue_with(dispatcher: Dispatcher, /, *values: Any) -> Continue: ...
def call_plainly(
    function: FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    family: object | None,
    /,
) -> Any:
    """Run the function as plain Python; its callees are hooked if there is a family."""

def set_callback(
    callback: Callable[[CodeType, dict[str, Any]], CodeType | bool | None] | None, /
) -> None:
    """Set the callback(code, globals), which returns a call stub or says how far not to hook the
    code.

    False: not for this family; None: for no family; True: for no family, and its callees are not
    hooked either.
    """

def install(callback: Callable[[CodeType, dict[str, Any]], CodeType | None], /) -> None:
    """Call set_callback and begin an extent manually; residuals and call_plainly make their own."""

def uninstall() -> None:
    """End the extent that install() began."""

def active() -> int:
    """Return a number > 0 while the hook acts on this thread."""

def watch_functions(callback: Callable[[FunctionType, str, Any], None], /) -> None:
    """Call callback(function, attribute, value) when a function's code or defaults are assigned.

    attribute: `__code__`, `__defaults__` or `__kwdefaults__`. Only functions with weak references
    are watched. Since 3.12 the callback runs just before the assignment.
    """

def traced() -> bool:
    """Return whether a debugger or another sys.settrace function traces this thread."""

def observed() -> bool:
    """Return whether a tracer, mode or transform of torch observes operations of this thread."""

def packs() -> bool:
    """Return whether hooks of saved tensors may change the values saved in this thread."""

def set_other_evaluator(other: Callable[[Any], Any] | None, /) -> None:
    """Set the function that dispatchers call to disable another frame evaluator while they run.

    other(callback | None) sets that evaluator's callback (torch.compile's) and returns the old one.
    """

def rounded_sum(numbers: list[float] | tuple[float, ...], /) -> float:
    """The C version of guards/contents.py's function."""

def sum_compensation(numbers: list[float] | tuple[float, ...], /) -> float:
    """The C version of guards/contents.py's function."""

def suspend() -> None:
    """Disable hook and dispatchers on this thread; nests. jitmagic.disable() uses it."""

def resume_hook() -> None:
    """Undo one suspend()."""

def suspended() -> bool:
    """Return whether suspend() is in effect on this thread."""

def current_family() -> Any:
    """Return the family of the thread's current extent, or None."""

def forget(code: CodeType, family: object | None = None, /) -> None:
    """Drop the decisions about a code object."""

def show_as(frame: FrameType, code: CodeType, /) -> bool:
    """Give a finished frame other code with the same instructions and slots.

    Returns False if the frame still runs.
    """

def skip(code: CodeType, family: object, /) -> None:
    """Never hook the family's frames of this code."""
