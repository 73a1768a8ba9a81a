"""tag: replaces what the user tagged with a call stub, and undoes it.

Input: a function, method, lambda, staticmethod, classmethod, partial, nn.Module instance or class,
or any other callable. Output: an object of the same kind. A function gives a new, real Python
function of the same signature, another callable (a builtin, an object with `__call__`) a function
that calls it; modules and classes are changed in place and returned. The dispatcher is in the
stub's `co_consts`, so it follows `__code__` wherever tools like %autoreload move it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .. import _frame
from ..compat.modules import GLOBAL_MODULE_HOOKS, UNSCRIPTED_ATTRIBUTES, call_module
from ..errors import TaggingError, UsageError, warn
from ..options import Options
from ..torch_types import AnyFunction
from . import hook  # noqa: F401  # registers the callback of the native hook
from .code_updates import follow, handle_in, stub_code
from .family import Compiler, Family
from .forwarder import forwarder, needs_forwarder
from .handle import Handle
from .library import is_of_torch_compile
from .native import ModuleCall, call_plainly
from .never_hooked import suspendable, unsuitable
from .pickling import by_value  # noqa: F401  # registers how dispatchers are pickled
from .pickling.carried import CarriedTag, carry_by_names, receive
from .torch_compile_boundary import hide, hide_stub
from .user_tracebacks import strip_dispatcher_frames, strip_stub_frames

__all__ = [
    "handle_of",
    "original_of",
    "tag",
    "tagged_call",
    "tagged_handle",
    "untag",
    "without_tag",
]

_SLOT = "_compiled_call_impl"  # nn.Module calls this attribute and drops it on pickle and copy
_HOOK_TABLES = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_CARRIED = "_jitmagic_carried_tag"
# A scripted copy must not have them.
UNSCRIPTED_ATTRIBUTES += [name for name in (_SLOT, _CARRIED) if name not in UNSCRIPTED_ATTRIBUTES]


def tag(target: object, options: Options, compiler: Compiler) -> Any:
    """Return the tagged form of `target`; raises TaggingError if it cannot be tagged."""
    known = handle_of(target)
    if known is not None:
        if known.options != options:
            known.reset(options)
            _carry(target, known)
        return target
    match target:
        case types.FunctionType() if not needs_forwarder(target):
            return _tag_function(target, options, compiler)
        case types.MethodType():
            return types.MethodType(tag(target.__func__, options, compiler), target.__self__)
        case staticmethod() | classmethod():
            return type(target)(tag(target.__func__, options, compiler))
        case functools.partial():
            function = tag(target.func, options, compiler)
            return functools.partial(function, *target.args, **target.keywords)
        case torch.nn.Module() if is_of_torch_compile(type(target).__module__):
            warn("a module wrapped by torch.compile is not tagged: tag the original module")
            return target
        case torch.nn.Module():
            return _tag_module(target, options, compiler)
        case type() if issubclass(target, torch.nn.Module):
            return _tag_class(target, options, compiler)
    if not needs_forwarder(target):
        raise _refusal(target)
    made = _tag_function(forwarder(target), options, compiler)
    made.__wrapped__ = target  # type: ignore[attr-defined]  # read by original_of and pickle
    return made


def handle_of(target: object) -> Handle | None:
    """Return the handle of a tagged object, or None."""
    match target:
        case ModuleCall():
            return target.owner  # type: ignore[no-any-return]
        case types.FunctionType():
            return handle_in(target.__code__)
        case types.MethodType() | staticmethod() | classmethod():
            return handle_of(target.__func__)
        case functools.partial():
            return handle_of(target.func)
        case torch.nn.Module():
            call = _compiled_module(target).__dict__.get(_SLOT)
            return call.owner if isinstance(call, ModuleCall) else None
        case type() if issubclass(target, torch.nn.Module):
            return handle_of(target.__dict__.get("forward"))
    return None


def tagged_handle(target: object) -> Handle:
    """Return the handle of a tagged object; raises TypeError for anything else."""
    handle = handle_of(target)
    if handle is None:
        raise UsageError(f"{target!r} is not compiled by jitmagic: tag it with jitmagic.jit first")
    return handle


def original_of(target: object) -> Any:
    """Return the object that was tagged: the user's function, or the module or class itself."""
    match target:
        case types.FunctionType() if handle_of(target) is not None:
            return target.__wrapped__  # type: ignore[attr-defined]
        case types.MethodType() if handle_of(target) is not None:
            return types.MethodType(original_of(target.__func__), target.__self__)
        case staticmethod() | classmethod() if handle_of(target) is not None:
            return type(target)(original_of(target.__func__))
        case functools.partial() if handle_of(target) is not None:
            return functools.partial(original_of(target.func), *target.args, **target.keywords)
    return target


def untag(target: object) -> Any:
    """Return the untagged form; modules and classes are changed back in place."""
    if handle_of(target) is None:
        return target
    if isinstance(target, torch.nn.Module):
        own = _compiled_module(target).__dict__
        del own[_SLOT]
        own.pop(_CARRIED, None)
    elif isinstance(target, type):
        _untag_class(target)
    return original_of(target)


@contextmanager
def without_tag(module: torch.nn.Module) -> Iterator[None]:
    """Remove a module's tag inside the block and keep its variants; no-op without a tag."""
    own = _compiled_module(module).__dict__
    call = own.pop(_SLOT, None)
    try:
        yield
    finally:
        if call is not None:
            own[_SLOT] = call


# ---------------------------------------------------------------------------------------- functions


def _tag_function(
    function: types.FunctionType, options: Options, compiler: Compiler
) -> types.FunctionType:
    reason = unsuitable(function.__code__)
    if reason is not None:
        raise TaggingError(
            f"{function.__qualname__}()", reason, "tag the functions it calls for its tensor work"
        )
    handle = Handle.of_function(function, options, compiler)
    made = _stub_of(function, handle)
    for name, question in compiler.queries.items():
        if name not in vars(made) or type(vars(made)[name]) is Query:  # not one of the user's
            setattr(made, name, Query(name, made, question))
    return made


class Query:
    """A query attribute of a tagged function f, such as `f.why`: called with f's arguments.

    It refers to f weakly, so that f is freed with its last user.
    """

    __slots__ = ("_function", "_label", "_question")

    def __init__(
        self, name: str, function: types.FunctionType, question: Callable[[object], AnyFunction]
    ) -> None:
        self._function, self._question = weakref.ref(function), question
        self._label = f"{function.__qualname__}.{name}"

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        function = self._function()
        if function is None:
            raise ReferenceError(f"{self._label}: the function is gone")
        return self._question(function)(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self._label}: call it with the function's arguments>"

    def __reduce__(self) -> tuple[object, ...]:
        return _revive_query, (self._label.rpartition(".")[2], self._function(), self._question)


def _revive_query(name: str, stub: types.FunctionType, question: AnyFunction) -> Query:
    handle = handle_in(stub.__code__)
    if handle is not None and handle.dispatcher.stub is None:
        handle.dispatcher.stub = weakref.ref(stub)
    return Query(name, stub, question)


def _stub_of(function: types.FunctionType, handle: Handle) -> types.FunctionType:
    """Return a copy of the function whose code is the call stub."""
    made = types.FunctionType(
        stub_code(handle),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)  # name, doc, annotations, dict, __wrapped__
    if sys.version_info >= (3, 12):
        made.__type_params__ = function.__type_params__
    hide_stub(made, function)
    follow(function, made)
    handle.dispatcher.stub = weakref.ref(made)
    carry_by_names(made, handle)
    return made


def _carry(target: Any, handle: Handle) -> None:
    """Let pickles of a tagged object carry its compiled code, or not, as its options say."""
    match target:
        case types.FunctionType():
            carry_by_names(target, handle)
        case types.MethodType() | staticmethod() | classmethod():
            _carry(target.__func__, handle)
        case functools.partial():
            _carry(target.func, handle)
        case torch.nn.Module():
            module = _compiled_module(target)
            module.__dict__.pop(_CARRIED, None)
            if handle.options.pickle == "artifact" and _is_made_before_its_attributes(type(module)):
                module.__dict__[_CARRIED] = CarriedTag(module, handle, _tag_again)
        case type():
            _carry(target.__dict__["forward"], handle)


def _refusal(target: object) -> TaggingError:
    what = getattr(target, "__qualname__", None) or f"an object of type {type(target).__qualname__}"
    if isinstance(target, type):
        return TaggingError(
            f"class {what}", "it is not an nn.Module", "tag the methods that work on tensors"
        )
    return TaggingError(what, "it is not callable", "jit takes functions and modules")


# ------------------------------------------------------------------------------------------ modules


def _compiled_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module whose forward is compiled: the one inside of DistributedDataParallel, which
    prepares its reducer in Python before and after it.
    """
    while isinstance(module, DistributedDataParallel):
        module = module.module
    return module


def _tag_module(module: torch.nn.Module, options: Options, compiler: Compiler) -> torch.nn.Module:
    call = tagged_call(module, options, compiler)
    _compiled_module(module).__dict__[_SLOT] = call
    _carry(module, call.owner)
    return module


def _is_made_before_its_attributes(cls: type) -> bool:
    """Return whether a reader of pickles makes a module first, to which its attributes may refer.
    GraphModule is made of its attributes.
    """
    found: tuple[object, ...] = (cls.__reduce__, cls.__reduce_ex__)
    return found == (object.__reduce__, object.__reduce_ex__)


def _tag_again(
    module: torch.nn.Module, options: Options, compiler: Compiler, carried: Any
) -> CarriedTag:
    """Tag a module that a pickle is being read into: it has a class, and no attributes yet."""
    if carried is not None:
        receive(*carried)
    made: CarriedTag = _tag_module(module, options, compiler).__dict__[_CARRIED]
    return made


def tagged_call(module: torch.nn.Module, options: Options, compiler: Compiler) -> ModuleCall:
    """Return the callable that runs a tagged module; the module itself is not changed."""
    module = _compiled_module(module)
    cls = type(module)
    forward = _forward_of(cls)
    if isinstance(module, torch.jit.ScriptModule) or not _calls_slot(cls):
        raise TaggingError(
            f"a {cls.__qualname__}", "its class has a __call__ of its own", "tag its forward"
        )
    handle = Handle.of_function(forward, options, compiler)
    stub = _stub_of(forward, handle)
    _frame.forget(forward.__code__, handle.family)  # an earlier family may have had its address
    eager = functools.partial(_call_with_hooks, handle.family)
    outdated = functools.partial(_retag_and_call, handle.family)
    current = inspect.getattr_static(cls, "forward")
    return ModuleCall(
        module,
        stub,
        handle.dispatcher,
        strip_dispatcher_frames,
        current,
        (eager, outdated, call_module),
        _HOOK_TABLES,
        GLOBAL_MODULE_HOOKS,
        handle,
    )


def _calls_slot(cls: type[torch.nn.Module]) -> bool:
    return cls.__call__ is torch.nn.Module.__call__ or issubclass(cls, torch.fx.GraphModule)


def _forward_of(cls: type[torch.nn.Module]) -> types.FunctionType:
    forward = inspect.getattr_static(cls, "forward", None)
    if not isinstance(forward, types.FunctionType):
        why = "its forward is not a Python function"
    elif forward is torch.nn.Module.__dict__.get("forward"):
        why = "it has no forward"
    else:
        original: types.FunctionType = original_of(forward)
        code = original.__code__
        if (reason := suspendable(code) or unsuitable(code)) is None:
            return original
        why = reason
    raise TaggingError(f"{cls.__qualname__}", why, "define a plain forward method")


def _call_with_hooks(
    family: object, module: torch.nn.Module, /, *args: object, **kwargs: object
) -> object:
    """Call the module like nn.Module.__call__; the frame hook compiles its forward."""
    return call_plainly(call_module, (module, *args), kwargs, family)


def _retag_and_call(
    family: Family, module: torch.nn.Module, /, *args: object, **kwargs: object
) -> object:
    """Tag the module again: its class has another forward than when it was tagged."""
    try:
        call = tagged_call(module, family.options, family.compiler)
    except TaggingError:
        return _call_with_hooks(family, module, *args, **kwargs)
    known = module.__dict__.get(_SLOT)
    if isinstance(known, ModuleCall) and known.owner.family is family:  # not a tagged copy of it
        module.__dict__[_SLOT] = call
    return call(*args, **kwargs)


for _called in (strip_dispatcher_frames, strip_stub_frames, _call_with_hooks, _retag_and_call):
    hide(_called.__code__)


def _tag_class(
    cls: type[torch.nn.Module], options: Options, compiler: Compiler
) -> type[torch.nn.Module]:
    forward = _forward_of(cls)
    cls.forward = _tag_function(forward, options, compiler)
    return cls


def _untag_class(cls: type[torch.nn.Module]) -> None:
    original = original_of(cls.__dict__["forward"])
    inherited = (base.__dict__["forward"] for base in cls.__mro__[1:] if "forward" in base.__dict__)
    if next(inherited, None) is original:
        del cls.forward
    else:
        cls.forward = original
