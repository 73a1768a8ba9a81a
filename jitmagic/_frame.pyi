"""jitmagic._frame (extensions/frame): guard programs, dispatchers and the frame hook, natively.

torch is known in guards_tensor.cpp only, which tests on Pythons without torch leave out.
The garbage collector does not see through code objects: what hangs on `co_consts` or `co_extra`
(stubs, dispatchers, decisions about callees) is let go when the root handle dies.
"""

import weakref
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

TORCH_VERSION: str

class GuardProgram:
    """A register machine over borrowed objects; its steps are made by frame/native.py.

    alive: False once it can never pass again: an object held weakly has died
    first_failure: index of the first step that fails, -1 when all pass
    """

    alive: bool
    def __init__(self, steps: tuple[tuple[Any, ...], ...], /) -> None: ...
    def __len__(self) -> int: ...
    def check(self, args: tuple[Any, ...], /) -> bool: ...
    def first_failure(self, args: tuple[Any, ...], /) -> int: ...

class Entry:
    """One compiled variant of a frame, in one of two forms.

    inputs None: `run` is a residual, called with all stub arguments; its result is the frame's.
    inputs a tuple: registers of the graph's inputs; run(*tensors) gives a tuple, `template` shapes
    the frame's result out of it: ("out", i) | ("const", object) | ("reg", r) | ("tuple", t...)
    | ("list", t...) | ("dict", (key, t)...).
    hook: the frame hook is active for the dynamic extent of `run`
    mutates: a graph that failed half way may have written to its inputs
    comparison: has begin(), which says what a call runs: an Entry, and the time of that call is
    told to end(result, nanoseconds, nanoseconds in compiled graphs), or to drop() that it gave no
    result; or a Streak; None: this entry, untimed
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

class Streak:
    """What `Entry.comparison` is while so many calls in a row run `entry`, timed natively; the last
    of them calls done([nanoseconds, ...], [those in compiled graphs, ...]). One that raises is not
    counted.
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
    """What a stub calls: tries entries most recently used first.

    miss(args): no entry matched; its result is the call's
    error(entry, args, exception): a graph entry raised; finds out what eager raises
    give_up(function, count, calls=-1): so many calls without an entry (< 0: all) go to
    function(*first count arguments), natively, those after them to miss; (None, 0) takes it back
    title: what profilers call it
    owner: the Handle       family: whose options callees are compiled with
    stub: weak reference to the function whose code calls this. Deep in a recursion that function
    gets owner.code_set_aside() for as long as owner.run_original(args) runs.
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
    """As a residual's result: the dispatcher goes on with the one named, in a loop."""

class Spread:
    """Runs code on the values of a dispatcher: parameters in slot order, then the cells. What plain
    Python is where those are not the arguments one to one; no Python of ours runs.
    """

    def __init__(self, code: CodeType, globals: dict[str, Any]) -> None: ...
    def __call__(self, *values: Any) -> Any: ...

class ModuleCall:
    """What a tagged nn.Module instance keeps in its `_compiled_call_impl`; holds it weakly.

    otherwise: what is called with the module in front (there are hooks; the class's forward is not
    `forward` any more, or its code; the recursion is deep)
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

def let_go() -> None:
    """What a resume function begins with: the dispatcher holds the values it was handed no more."""

def continue_with(dispatcher: Dispatcher, /, *values: Any) -> Continue: ...
def call_plainly(
    function: FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    family: object | None,
    /,
) -> Any:
    """The function as plain Python; its callees are hooked when there is a family."""

def set_callback(
    callback: Callable[[CodeType, dict[str, Any]], CodeType | bool | None] | None, /
) -> None:
    """callback(code, globals) gives a call stub, False: this family is not to ask again, None:
    nobody is, or True: nobody is, and what it calls is not looked at either."""

def install(callback: Callable[[CodeType, dict[str, Any]], CodeType | None], /) -> None:
    """set_callback, and begin an extent by hand; residuals and call_plainly make their own."""

def uninstall() -> None:
    """End the extent that install() began."""

def active() -> int:
    """> 0 while the hook acts on this thread."""

def watch_functions(callback: Callable[[FunctionType, str, Any], None], /) -> None:
    """callback(function, attribute, value): `__code__`, `__defaults__` or `__kwdefaults__` of a
    function that is referred to weakly is assigned to; 3.12 and newer tell just before it is.
    """

def traced() -> bool:
    """Return whether a debugger or another function of sys.settrace follows this thread."""

def observed() -> bool:
    """Whether a tracer, a mode or a transform of torch's is shown the operations of this thread."""

def packs() -> bool:
    """Return whether hooks of saved tensors may change what is saved in this thread."""

def set_other_evaluator(other: Callable[[Any], Any] | None, /) -> None:
    """other(callback | None) gives the callback until now: whoever else evaluates frames of this
    thread (torch.compile); dispatchers switch it off for as long as they run.
    """

def uncorrected(numbers: list[float] | tuple[float, ...], /) -> float:
    """Of guards/contents.py, in C."""

def correction_of(numbers: list[float] | tuple[float, ...], /) -> float:
    """Of guards/contents.py, in C."""

def suspend() -> None:
    """Hook and dispatchers let everything run plainly; nests. disable() uses it."""

def resume_hook() -> None:
    """Undo one suspend()."""

def suspended() -> bool:
    """Whether suspend() is in force on this thread."""

def current_family() -> Any:
    """Whose extent the thread is in, or None."""

def forget(code: CodeType, family: object | None = None, /) -> None:
    """Drop what was decided about a code object."""

def show_as(frame: FrameType, code: CodeType, /) -> bool:
    """A frame that has ended is shown with other code of the same instructions and slots; False:
    it still runs."""

def skip(code: CodeType, family: object, /) -> None:
    """The family's frames of this code run as they are."""
