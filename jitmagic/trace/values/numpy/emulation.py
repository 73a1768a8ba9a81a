"""Loads a private instance of torch._numpy, which implements numpy's functions on tensors.

Output: for a function of numpy, the function of the same name on tensors; conversions between the
dtypes of both. torch determines which functions exist; emulation_check.py checks whether one agrees
with numpy. Invariant: the state of the process does not change. The shared `import torch._numpy`
would break it: that instance reads settings of torch.compile and briefly sets torch's default
dtype, for all threads.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from ..numpy_scalars import np

__all__ = ["PARTS", "counterpart", "emulated_dtype", "emulation", "torch_dtype"]

_NAME = f"{__package__}.torch_numpy"
PARTS = ("linalg", "fft")  # of numpy's namespace; numpy itself draws random numbers


class _Frequencies:
    """Replaces `torch.fft` in the emulation: the factories make float64 as numpy's do.

    torch's own use its default dtype."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(torch.fft, name)
        is_factory = name.endswith("fftfreq")
        return partial(function, dtype=torch.float64) if is_factory else function


class _Torch:
    """Replaces `torch` in those modules of the emulation that make arrays from Python numbers."""

    fft = _Frequencies()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def set_default_dtype(self, dtype: torch.dtype) -> None:
        """Do nothing: `as_tensor` uses numpy's dtype, so the default does not matter."""

    def as_tensor(self, obj: object) -> torch.Tensor:
        """Return a CPU tensor with the dtype of numpy's array of the object."""
        return torch.as_tensor(obj, dtype=torch_dtype(np.asarray(obj).dtype), device="cpu")


def _quotient(x: Any, y: Any) -> torch.Tensor:
    """Divide; integers give float64 as in numpy, where torch uses its default dtype."""
    if _is_integral(x) and _is_integral(y):
        x, y = (torch.as_tensor(one).to(torch.float64) for one in (x, y))
    return torch.true_divide(x, y)


def _is_integral(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return not (x.is_floating_point() or x.is_complex())
    return isinstance(x, int)


def _copying(astype: Any) -> Any:
    """Return an `astype` that always copies, as numpy's does; torch's copies only on conversion."""

    def convert(array: Any, dtype: object, *args: object, **kwargs: object) -> Any:
        made = astype(array, dtype, *args, **kwargs)
        return made.copy() if made.tensor is array.tensor else made

    return convert


_quotient.__name__ = "true_divide"


@cache
def emulation() -> Any:
    """Return the instance, loaded from torch's own files (12 ms)."""
    folder = Path(torch.__path__[0]) / "_numpy"
    # Under another name than torch._numpy, so that a program that imports that module gets torch's
    # own instance, without the replacements below.
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    # Replaced before the package itself runs, which copies the functions into its namespace.
    functions: Any = importlib.import_module(f"{_NAME}._binary_ufuncs_impl")
    functions.divide = functions.true_divide = _quotient
    spec.loader.exec_module(made)
    made.ndarray.astype = _copying(made.ndarray.astype)
    # numpy's default dtypes do not depend on torch.set_default_dtype().
    dtypes: Any = sys.modules[f"{_NAME}._dtypes_impl"]
    dtypes._default_dtypes = dtypes.DefaultDTypes(torch.float64, torch.complex128, torch.int64)
    for part in ("_util", "fft"):
        sys.modules[f"{_NAME}.{part}"].torch = _Torch()  # type: ignore[attr-defined]
    return made


@cache
def _functions() -> dict[int, tuple[object, Any]]:
    """Return numpy's function and the emulation's, by the id of numpy's."""
    found: dict[int, tuple[object, Any]] = {}
    for part in ("", *PARTS):
        original = getattr(np, part) if part else np
        emulated = getattr(emulation(), part) if part else emulation()
        for name, function in vars(emulated).items():
            real = getattr(original, name, None)
            if isinstance(function, types.FunctionType) and callable(real):
                # The first name wins where two refer to one function. The entry holds the function,
                # so its id is not reused.
                found.setdefault(id(real), (real, function))
    return found


def counterpart(function: object) -> Any:
    """Return the emulation's function for a function of numpy, or None."""
    if np is None:
        return None
    one, found = _functions().get(id(function), (None, None))
    return found if one is function else None


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return torch's dtype for one of numpy. Raises TypeError if torch has none."""
    made = getattr(torch, dtype.name, None)
    if not isinstance(made, torch.dtype):
        raise TypeError(f"torch has no {dtype.name}")
    return made


def emulated_dtype(dtype: object) -> Any:
    """Return the emulation's dtype for a dtype or scalar class of numpy."""
    return emulation().dtype(np.dtype(dtype).name)
