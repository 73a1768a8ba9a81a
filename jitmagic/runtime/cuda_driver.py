"""Loads compiled kernels through the CUDA driver: ctypes on libcuda.so.1.

In: the bytes of a cubin, a kernel's name, a device. Out: a CUfunction, ready to be launched with
its dynamic shared memory. Launches are native (extensions/executor/cuda.cpp). A module stays loaded
until the process ends: kernels may still be queued on a stream or recorded in a CUDA graph when the
last Python reference goes, and a cubin is a few kilobytes.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

from ..errors import ToolchainError

__all__ = ["load_function"]

_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_SHARED = 48 << 10  # bytes of shared memory that need no opt-in


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ToolchainError("libcuda.so.1", "dlopen", str(error)) from error
    _check(driver.cuInit(0), "cuInit", driver)
    return driver


def _check(status: int, call: str, driver: Any) -> None:
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        said = text.value.decode() if text.value else "unknown error"
        raise ToolchainError("the CUDA driver", call, f"error {status}: {said}")


@lru_cache(maxsize=16)
def _primary_context(device: int) -> ctypes.c_void_p:
    """Return torch's context on the device, retained until the process ends."""
    driver, handle, context = _driver(), ctypes.c_int(), ctypes.c_void_p()
    _check(driver.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet", driver)
    status = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
    _check(status, "cuDevicePrimaryCtxRetain", driver)
    return context


@cache
def load_function(image: bytes, name: str, shared_bytes: int, device: int) -> int:
    """Return the CUfunction of kernel `name` in a cubin, cached by the arguments."""
    driver, context = _driver(), _primary_context(device)
    _check(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent", driver)
    try:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver.cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData", driver)
        status = driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        _check(status, f"cuModuleGetFunction {name}", driver)
        if shared_bytes > _DEFAULT_SHARED:
            status = driver.cuFuncSetAttribute(function, _DYNAMIC_SHARED, shared_bytes)
            _check(status, f"cuFuncSetAttribute {name}", driver)
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    assert function.value is not None
    return function.value
