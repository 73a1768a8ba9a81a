"""State of the process and the thread that a program reads: torch's switches, defaults, modes."""

from __future__ import annotations

import builtins
import contextvars
import math
import os
import random
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from .mutation import (
    NOTHING,
    Build,
    Change,
    Program,
    add,
    both,
    entry,
    mutation,
    put,
    switched,
    without,
)

_on = torch.backends


def _path(owner: Any) -> str:
    return "cuda.matmul" if owner is _on.cuda.matmul else owner.__name__.rpartition(".")[2]


def _switch(owner: Any, name: str, to: Any) -> Build:
    """A switch of torch.backends: read by its path, as programs do, then set and set back.

    Some are properties, some are kept by a module behind this one until they are assigned.
    """
    path = f"torch.backends.{_path(owner)}.{name}"
    program = eval(f"lambda x: (x + 1, str({path}))", {"torch": torch, "str": str})

    def build() -> tuple[Program, Change]:
        plain = isinstance(owner, types.ModuleType) and not hasattr(type(owner), name)
        back = NOTHING if plain and name not in vars(owner) else getattr(owner, name)
        return program, lambda: switched(change, to, back)

    def change(value: Any) -> None:
        with torch.backends.__allow_nonbracketed_mutation():  # torch's own tests forbid it
            delattr(owner, name) if value is NOTHING else setattr(owner, name, value)

    return build


for _owner, _name, _to in (
    (_on.mkldnn, "enabled", False),
    (_on.mkldnn, "deterministic", True),
    (_on.cudnn, "enabled", False),
    (_on.cudnn, "benchmark", True),
    (_on.cudnn, "deterministic", True),
    (_on.cudnn, "allow_tf32", False),
    (_on.opt_einsum, "enabled", not _on.opt_einsum.enabled),
    (_on.opt_einsum, "strategy", "greedy"),
    (_on.cuda.matmul, "allow_tf32", True),
    (_on.cuda.matmul, "allow_fp16_accumulation", True),
):
    if getattr(_owner, _name) != _to:
        add(f"{_owner.__name__ if hasattr(_owner, '__name__') else 'cuda.matmul'}.{_name}",
            _switch(_owner, _name, _to))  # fmt: skip


def _default_device(to: torch.device) -> None:
    """The CPU is what there is without a default: a function mode for it would stay on."""
    torch.set_default_device(None if to.type == "cpu" else to)


def _state(read: Callable[[], Any], change: Callable[[Any], Any], to: Any) -> Build:
    """What a function tells and another changes."""

    def build() -> tuple[Program, Change]:
        back = read()
        return lambda x: (x + 1, str(read())), lambda: switched(change, to, back)

    return build


_STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "matmul precision": (
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high",
    ),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True,
    ),
    "deterministic debug": (
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1,
    ),
    "warn always": (torch.is_warn_always_enabled, torch.set_warn_always, True),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled, False),
    "anomaly": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True),
    "flash": (_on.cuda.flash_sdp_enabled, _on.cuda.enable_flash_sdp, False),
    "mem efficient": (_on.cuda.mem_efficient_sdp_enabled, _on.cuda.enable_mem_efficient_sdp, False),
    "math": (_on.cuda.math_sdp_enabled, _on.cuda.enable_math_sdp, False),
    "cudnn sdp": (_on.cuda.cudnn_sdp_enabled, _on.cuda.enable_cudnn_sdp, False),
    "mha fast path": (_on.mha.get_fastpath_enabled, _on.mha.set_fastpath_enabled, False),
    "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
    "default device": (torch.get_default_device, _default_device, torch.device("meta")),
    "threads": (torch.get_num_threads, torch.set_num_threads, 3),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit, 2000),
    "digits of ints": (sys.get_int_max_str_digits, sys.set_int_max_str_digits, 9000),
    "working directory": (os.getcwd, os.chdir, "/"),
}  # fmt: skip
for _label, (_read, _change, _value) in _STATES.items():
    add(f"state: {_label}", _state(_read, _change, _value))


@mutation
def what_new_tensors_are() -> tuple[Program, Change]:
    return (
        lambda x: torch.ones(3),
        lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    )


@mutation
def sums_under_autocast() -> tuple[Program, Change]:
    return lambda x: x @ x.T, lambda: torch.autocast("cpu", dtype=torch.bfloat16)


@mutation
def autocast_is_asked_for() -> tuple[Program, Change]:
    def program(x: Any) -> Any:
        return x * 2 if torch.is_autocast_enabled("cpu") else x * 3

    return program, lambda: torch.autocast("cpu", dtype=torch.bfloat16)


@mutation
def the_dtype_of_autocast() -> tuple[Program, Change]:
    def program(x: Any) -> Any:
        with torch.autocast("cpu"):
            return x @ x.T

    change = lambda to: torch.set_autocast_dtype("cpu", to)  # noqa: E731
    return program, lambda: switched(change, torch.float16, torch.bfloat16)


@mutation
def inference_mode() -> tuple[Program, Change]:
    def program(x: Any) -> Any:
        return (x * 2).is_inference(), torch.is_inference_mode_enabled()

    return program, lambda: torch.inference_mode()


@mutation
def what_needs_a_gradient() -> tuple[Program, Change]:
    weight = torch.ones(3, requires_grad=True)
    return lambda x: (x * weight).requires_grad, lambda: torch.no_grad()


@mutation
def how_tensors_are_printed() -> tuple[Program, Change]:
    def change() -> Any:
        return both(
            lambda: torch.set_printoptions(precision=2),
            lambda: torch.set_printoptions(profile="default"),
        )

    return lambda x: str(x / 3), change


@mutation
def the_generator() -> tuple[Program, Change]:
    torch.manual_seed(3)
    return lambda x: x + torch.initial_seed() % 7, lambda: switched(torch.manual_seed, 4, 3)


@mutation
def an_environment_variable() -> tuple[Program, Change]:
    def program(x: Any) -> Any:
        return x * float(os.environ.get("JITMAGIC_TEST_SCALE", "2"))

    return program, lambda: entry(os.environ, "JITMAGIC_TEST_SCALE", "3")


@mutation
def an_environment_variable_by_getenv() -> tuple[Program, Change]:
    os.environ["JITMAGIC_TEST_OTHER"] = "a"
    return (
        lambda x: x + len(os.getenv("JITMAGIC_TEST_OTHER") or ""),
        lambda: entry(os.environ, "JITMAGIC_TEST_OTHER", "abc"),
    )


_mode: contextvars.ContextVar[float] = contextvars.ContextVar("mode", default=2.0)


@mutation
def a_context_variable() -> tuple[Program, Change]:
    def change() -> Any:
        tokens: list[Any] = []
        return both(lambda: tokens.append(_mode.set(5.0)), lambda: _mode.reset(tokens.pop()))

    return lambda x: x * _mode.get(), change


_unset: contextvars.ContextVar[float] = contextvars.ContextVar("unset")
_own = threading.local()
_lock, _nested = threading.Lock(), threading.RLock()


@mutation
def a_context_variable_without_a_default() -> tuple[Program, Change]:
    def change() -> Any:
        tokens: list[Any] = []
        return both(lambda: tokens.append(_unset.set(5.0)), lambda: _unset.reset(tokens.pop()))

    return lambda x: x * _unset.get(3), change


@mutation
def an_attribute_of_the_thread() -> tuple[Program, Change]:
    _own.scale = 2.0
    return lambda x: x * _own.scale, lambda: put(_own, "scale", 7.0)


@mutation
def an_attribute_that_the_thread_lacks() -> tuple[Program, Change]:
    return lambda x: x * getattr(_own, "absent", 3), lambda: put(_own, "absent", 7.0)


@mutation
def a_lock_that_this_thread_holds() -> tuple[Program, Change]:
    return lambda x: x * (2 if _lock.locked() else 3), lambda: both(_lock.acquire, _lock.release)


def _library(owner: Any, name: str, program: Program, value: Any) -> None:
    add(f"{owner.__name__}.{name}", lambda: (program, lambda: put(owner, name, value)))


_library(math, "sqrt", lambda x: x * math.sqrt(4), lambda value: value)
_library(math, "pi", lambda x: x * math.pi, 3.0)
_library(math, "prod", lambda x: x * math.prod((2, 3)), lambda values: 1)
_library(random, "random", lambda x: (x, random.random() > 2), lambda: 3)
_REAL = {name: getattr(builtins, name) for name in ("len", "max", "isinstance", "sum", "abs")}


def _builtin(name: str, program: Program, *special: Any) -> None:
    """A builtin that answers as ever, but not to the program's arguments."""

    def other(*args: Any, **kwargs: Any) -> Any:
        alike = [type(arg) for arg in args] == [type(arg) for arg in special]
        return 9 if alike and args == special else _REAL[name](*args, **kwargs)

    _library(builtins, name, program, other)


_builtin("len", lambda x: x * len("four"), "four")
_builtin("max", lambda x: x * max(1, 2.5), 1, 2.5)
_builtin("isinstance", lambda x: x + isinstance(2.5, int), 2.5, int)
_builtin("sum", lambda x: x * sum([1, 2.5]), [1, 2.5])
_builtin("abs", lambda x: x * abs(-2.5), -2.5)
_library(os.path, "join", lambda x: (x, os.path.join("a", "b")), lambda *parts: "c")


@mutation
def a_builtin_appears() -> tuple[Program, Change]:
    def program(x: Any) -> Any:
        try:
            return x * scale_of_builtins  # type: ignore[name-defined] # noqa: F821
        except NameError:
            return x

    return program, lambda: put(builtins, "scale_of_builtins", 4)


@mutation
def a_global_hides_a_builtin() -> tuple[Program, Change]:
    return lambda x: x * abs(-2), lambda: entry(globals(), "abs", lambda value: 7)


SCALE = 2.0
TABLE = {"a": 1.0}


@mutation
def a_global() -> tuple[Program, Change]:
    return lambda x: x * SCALE, lambda: entry(globals(), "SCALE", 3.0)


@mutation
def a_global_is_deleted() -> tuple[Program, Change]:
    return lambda x: x * SCALE, lambda: without(sys.modules[__name__], "SCALE")


@mutation
def a_global_table() -> tuple[Program, Change]:
    return lambda x: x * TABLE["a"], lambda: entry(TABLE, "a", 3.0)


def _module(**parts: Any) -> types.ModuleType:
    made = types.ModuleType("jitmagic_test_module")
    vars(made).update(parts)
    return made


@mutation
def a_module_attribute() -> tuple[Program, Change]:
    module = _module(scale=2.0)
    return lambda x: x * module.scale, lambda: put(module, "scale", 3.0)


@mutation
def a_module_function() -> tuple[Program, Change]:
    module = _module(act=lambda x: x * 2)
    return lambda x: module.act(x), lambda: put(module, "act", lambda x: x + 9)


@mutation
def a_module_getattr() -> tuple[Program, Change]:
    module = _module(__getattr__=lambda name: 2.0)
    return lambda x: x * module.scale, lambda: put(module, "__getattr__", lambda name: 3.0)


@mutation
def a_module_gets_what_its_getattr_gave() -> tuple[Program, Change]:
    module = _module(__getattr__=lambda name: 2.0)
    return lambda x: x * module.scale, lambda: put(module, "scale", 3.0)


@mutation
def a_module_is_replaced_in_sys_modules() -> tuple[Program, Change]:
    name = "jitmagic_test_module"
    sys.modules[name] = _module(scale=2.0)

    def program(x: Any) -> Any:
        import jitmagic_test_module as module  # type: ignore[import-not-found]

        return x * module.scale

    return program, lambda: entry(sys.modules, name, _module(scale=3.0))


@mutation
def the_class_of_a_module() -> tuple[Program, Change]:
    class Other(types.ModuleType):
        @property
        def scale(self) -> float:
            return 3.0

    module = _module(rate=2.0, __getattr__=lambda name: 2.0)
    return lambda x: x * module.scale, lambda: switched(
        lambda kind: setattr(module, "__class__", kind), Other, types.ModuleType
    )
