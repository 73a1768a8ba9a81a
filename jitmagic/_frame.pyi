from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

TORCH_VERSION: str

class GuardProgram:
    alive: bool
    def __init__(self, steps: tuple[tuple[Any, ...], ...], /) -> None: ...
    def __len__(self) -> int: ...
    def check(self, args: tuple[Any, ...], /) -> bool: ...
    def first_failure(self, args: tuple[Any, ...], /) -> int: ...

class Entry:
    program: GuardProgram
    run: Callable[..., Any]
    hook: bool
    residual: bool
    mutates: bool
    alive: bool
    hits: int
    notes: Any
    def __init__(
        self,
        program: GuardProgram,
        run: Callable[..., Any],
        inputs: tuple[int, ...] | None = None,
        template: tuple[Any, ...] | None = None,
        hook: bool = False,
    ) -> None: ...
    def check(self, args: tuple[Any, ...], /) -> bool: ...

class Dispatcher:
    name: str
    arity: int
    calls: int
    owner: Any
    family: Any
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
    def give_up(self, function: FunctionType | None, count: int, /) -> None: ...

class Continue: ...

class ModuleCall:
    stub: FunctionType
    owner: Any
    def __init__(
        self,
        module: Any,
        stub: FunctionType,
        forward: FunctionType,
        eager: Callable[..., Any],
        tables: tuple[str, ...],
        shared: tuple[dict[Any, Any], ...],
        owner: Any,
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def continue_with(dispatcher: Dispatcher, /, *values: Any) -> Continue: ...
def call_plainly(
    function: FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    family: object | None,
    /,
) -> Any: ...
def set_callback(
    callback: Callable[[CodeType, dict[str, Any]], CodeType | None] | None, /
) -> None: ...
def install(callback: Callable[[CodeType, dict[str, Any]], CodeType | None], /) -> None: ...
def uninstall() -> None: ...
def active() -> int: ...
def suspend() -> None: ...
def resume_hook() -> None: ...
def suspended() -> bool: ...
def current_family() -> Any: ...
def forget(code: CodeType, family: object | None = None, /) -> None: ...
def skip(code: CodeType, family: object, /) -> None: ...
