"""A device of its own, with a code generator of its own: C text, built by the system's compiler.

    python demos/extend_device.py

torch keeps a place for the device of another maker, PrivateUse1. The first half gives it a device
"toy", with the host's memory and the CPU's operators. The second half is what its package adds for
jitmagic: the syntax of its language, a function that loads kernels, and two registrations.
"""

from __future__ import annotations

import copy
import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import Library
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import jitmagic
from jitmagic import extend


class _Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack: how memory of the host becomes a tensor on another device."""

    _fields_ = (
        *(("data", ctypes.c_void_p), ("device", ctypes.c_int), ("index", ctypes.c_int)),
        *(("ndim", ctypes.c_int), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8)),
        *(("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p)),
        *(("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)),
    )


_EXTENSION_DEVICE = 12  # kDLExtDev, which torch takes for PrivateUse1
_alive: dict[int, tuple[object, ...]] = {}
_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda at: _alive.pop(at, None) and None)
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_capsule.restype = ctypes.py_object
_CODES = {torch.bool: 6, torch.float32: 2, torch.float64: 2, torch.uint8: 1}


def on_toy(host: Tensor) -> Tensor:
    """Return a tensor of the device over the memory of a tensor of the host."""
    longs = ctypes.c_int64 * host.dim()
    shape, strides = longs(*host.shape), longs(*host.stride())
    made = _Tensor(host.data_ptr(), _EXTENSION_DEVICE, 0, host.dim())
    made.code, made.bits, made.lanes = _CODES.get(host.dtype, 0), host.dtype.itemsize * 8, 1
    made.shape, made.strides = ctypes.addressof(shape), ctypes.addressof(strides)
    made.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    _alive[ctypes.addressof(made)] = made, shape, strides, host
    return torch.from_dlpack(_capsule(ctypes.addressof(made), b"dltensor", None))


def on_host(toy: Tensor) -> Tensor:
    """Return a tensor of the host over the same memory."""
    storage = toy.untyped_storage()
    if not storage.nbytes():
        return torch.empty_strided(toy.shape, toy.stride(), dtype=toy.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    memory.owner = toy
    flat = torch.frombuffer(memory, dtype=toy.dtype)
    return flat.as_strided(toy.shape, toy.stride(), toy.storage_offset())


def _empty(size: list[int], *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return on_toy(torch.empty(size, dtype=dtype, memory_format=memory_format))


def _empty_strided(size: list[int], stride: list[int], *, dtype: Any = None, **_: Any) -> Tensor:
    return on_toy(torch.empty_strided(size, stride, dtype=dtype))


def _run_on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator by its CPU kernel; what it returns of its arguments stays the same tensor."""
    given: dict[int, tuple[Tensor, Tensor]] = {}

    def there(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device.type != "toy":
            return torch.device("cpu") if isinstance(value, torch.device) else value
        host = on_host(value)
        given[id(host)] = host, value
        return host

    args, kwargs = tree_map(there, (args, kwargs))
    return tree_map_only(
        Tensor, lambda x: given[id(x)][1] if id(x) in given else on_toy(x), op(*args, **kwargs)
    )


def _copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    source, there = (on_host(x) if x.device.type == "toy" else x for x in (source, target))
    there.copy_(source)
    return target


def _view(op: Any) -> Callable[..., Tensor]:
    """Return the CPU's kernel of a view, which is right for any memory."""
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return lambda *args: op.redispatch(cpu, *args)


MODULE = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)
MODULE.current_device = lambda: 0
_setup_privateuseone_for_python_backend("toy", MODULE)
aten, own, others = torch.ops.aten, Library("aten", "IMPL"), Library("_", "IMPL")
KERNELS = {"empty.memory_format": _empty, "empty_strided": _empty_strided, "_copy_from": _copy}
VIEWS = (aten.as_strided.default, aten.view.default, aten._reshape_alias.default)
for target, kernel in (*KERNELS.items(), *zip(VIEWS, map(_view, VIEWS), strict=True)):
    own.impl(target, kernel, "PrivateUse1")
others.fallback(_run_on_host, "PrivateUse1")


TYPES = {torch.float32: "float", torch.float64: "double", torch.bool: "bool"}
TYPES |= {getattr(torch, f"int{n}"): f"int{n}_t" for n in (8, 16, 32, 64)}
OPERATIONS: Mapping[str, str] = {
    **{"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}"},
    **{"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}"},
    **{"gt": "{0} > {1}", "ge": "{0} >= {1}", "where": "{0} ? {1} : {2}"},
    **{"logical_and": "{0} && {1}", "logical_or": "{0} || {1}", "isnan": "{0} != {0}"},
    **{name: f"{name}({{0}})" for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "erf")},
    **{"abs": "{0} < 0 ? -{0} : {0} + 0", "relu": "{0} < 0 ? 0 : {0}", "truediv": "{0} / {1}"},
    **{"sigmoid": "1 / (1 + exp(-{0}))", "rsqrt": "1 / sqrt({0})", "reciprocal": "1 / {0}"},
    **{"maximum": "{0} > {1} || {0} != {0} ? {0} : {1}", "logical_not": "!{0}"},
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
}


class CText(extend.LoopText):
    """The syntax of C. <tgmath.h> gives functions of float and of double one name."""

    end, either = ";", "||"

    def is_reserved(self, name: str) -> bool:
        return True  # every argument is named p_...

    def signature(self) -> tuple[list[str], str, str]:
        return [], f"int {self.kernel.name}(void* const* args) {{", "}"

    def argument(self, number: int, name: str, dtype: torch.dtype) -> str:
        return f"{self.type(dtype)}* {name} = args[{number}];"

    def size(self, number: int, place: int, name: str) -> str:
        return f"int64_t {name} = ((int64_t*)args[{number}])[{place}];"

    def loop(self, variable: str, extent: str) -> tuple[str, str]:
        return f"for (int64_t {variable} = 0; {variable} < {extent}; {variable}++) {{", "}"

    def let(self, name: str, code: str, dtype: torch.dtype) -> str:
        return f"{self.type(dtype)} {name} = {code};"

    def when(self, condition: str, lines: Sequence[str]) -> list[str]:
        return [f"if ({condition}) {{", *(f"    {line}" for line in lines), "}"]

    def choose(self, condition: str, chosen: str, otherwise: str) -> str:
        return f"{condition} ? {chosen} : {otherwise}"

    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        if not dtype.is_floating_point:
            return f"({self.type(dtype)}){int(value)}"
        text = repr(float(value)).replace("nan", "NAN").replace("inf", "INFINITY")
        return f"({self.type(dtype)}){text}"

    def cast(self, code: str, source: torch.dtype, dtype: torch.dtype) -> str:
        return f"({self.type(dtype)})({code})"

    def compute(
        self, op: str, args: Sequence[str], dtype: torch.dtype, operand: torch.dtype
    ) -> str:
        return extend.line_of(op, "c", OPERATIONS).format(*args, t=self.type(operand))

    def element(self, name: str, index: str, dtype: torch.dtype) -> str:
        return f"{name}[{index}]"

    def set_element(self, name: str, index: str, value: str, dtype: torch.dtype) -> str:
        return f"{name}[{index}] = {value};"

    def divide(self, a: str, b: str) -> str:
        return f"(({a}) / {b})"

    def type(self, dtype: torch.dtype) -> str:
        if dtype not in TYPES:  # the graph then runs operator by operator
            raise extend.CannotRender("C", str(dtype))
        return TYPES[dtype]


class CRenderer(extend.LoopRenderer):
    text = CText

    def module(self, functions: Sequence[str]) -> str:
        heads = "".join(f"#include <{name}.h>\n" for name in ("stdbool", "stdint", "tgmath"))
        return "\n\n".join([heads, *functions])


def build(source: extend.KernelSource, target: object) -> dict[str, Any]:
    """Compile the text of kernels, and return a function for each."""
    folder = Path(tempfile.mkdtemp(prefix="toy"))
    (folder / "kernels.c").write_text(source.text)
    command = ["cc", "-O3", "-ffp-contract=off", "-fwrapv", "-shared", "-fPIC", "kernels.c", "-lm"]
    subprocess.run([*command, "-o", "kernels.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "kernels.so"))
    return {name: getattr(library, name) for name in source.symbols}


def register() -> None:
    """Register both; a package names this function as its entry point."""
    extend.register_renderer("c", CRenderer(), load=build)
    extend.register_device("toy", renderer="c")


def main() -> None:
    register()
    torch.default_generator.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 4))
    x, y, losses = torch.randn(64, 16), torch.randint(4, (64,)), []
    for device, wrap in (("cpu", lambda fn: fn), ("toy", jitmagic.jit)):
        trained = copy.deepcopy(model).to(device)
        step = wrap(lambda x, y, model=trained: F.cross_entropy(model(x), y))
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for _ in range(20):
            loss = step(x.to(device), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.6f} on the CPU in eager, {losses[1]:.6f} on the device, compiled")
    print(jitmagic.explain(step)(x.to("toy"), y.to("toy")))


if __name__ == "__main__":
    main()
