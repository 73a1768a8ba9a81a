"""torch's numpy in terms of tensors (torch._numpy), as an instance that is jitmagic's own.

Goes out: for a function of numpy the one of the same name that computes with tensors, and dtypes
of one in terms of the other. Which functions there are is for torch to say; whether one gives what
numpy gives is for probe.py to find out. Invariant: nothing of the process's changes. The
instance that `import torch._numpy` gives would read settings of torch.compile and set torch's
default dtype for a moment, for all threads.
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

try:
    import numpy
except ImportError:  # torch works without it, and so do traces that meet none of its objects
    numpy = None  # type: ignore[assignment]

__all__ = [
    "ARRAY_SCALARS", "PARTS", "counterpart", "emulated_dtype", "emulation", "np", "torch_dtype",
]  # fmt: skip

np: Any = numpy
ARRAY_SCALARS: tuple[type, ...] = (
    () if numpy is None
    else (numpy.bool_, *(numpy.dtype(c).type for c in "bhilBHIL"), numpy.float32, numpy.float64)
)  # fmt: skip
"""Scalars that are immutable values; torch takes all but the first for Python's numbers."""
_NAME = f"{__package__}.torch_numpy"
PARTS = ("linalg", "fft")  # of numpy's namespace; random numbers are numpy's own


class _Frequencies:
    """`torch.fft` where it makes arrays out of Python numbers: numpy's are float64, torch's of its
    default dtype."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(torch.fft, name)
        is_factory = name.endswith("fftfreq")
        return partial(function, dtype=torch.float64) if is_factory else function


class _Torch:
    """What the emulation takes for torch where it makes arrays out of Python numbers."""

    fft = _Frequencies()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def set_default_dtype(self, dtype: torch.dtype) -> None:
        """Not needed: `as_tensor` asks numpy."""

    def as_tensor(self, obj: object) -> torch.Tensor:
        """A tensor of the dtype that numpy would give an array of it."""
        return torch.as_tensor(obj, dtype=torch_dtype(np.asarray(obj).dtype), device="cpu")


def _quotient(x: Any, y: Any) -> torch.Tensor:
    """Of integers numpy gives float64, torch what its default dtype is."""
    if _is_integral(x) and _is_integral(y):
        x, y = (torch.as_tensor(one).to(torch.float64) for one in (x, y))
    return torch.true_divide(x, y)


def _is_integral(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return not (x.is_floating_point() or x.is_complex())
    return isinstance(x, int)


def _copying(astype: Any) -> Any:
    """numpy copies unless it is told otherwise, torch only where the dtype changes."""

    def convert(array: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        made = astype(array, dtype, *args, **kwargs)
        return made.copy() if made.tensor is array.tensor else made

    return convert


_quotient.__name__ = "true_divide"


@cache
def emulation() -> Any:
    """The instance, loaded from torch's own files (12 ms)."""
    folder = Path(torch.__path__[0]) / "_numpy"
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    functions: Any = importlib.import_module(f"{_NAME}._binary_ufuncs_impl")
    functions.divide = functions.true_divide = _quotient
    spec.loader.exec_module(made)
    made.ndarray.astype = _copying(made.ndarray.astype)
    dtypes: Any = sys.modules[f"{_NAME}._dtypes_impl"]
    dtypes._default_dtypes = dtypes.DefaultDTypes(torch.float64, torch.complex128, torch.int64)
    for part in ("_util", "fft"):
        sys.modules[f"{_NAME}.{part}"].torch = _Torch()  # type: ignore[attr-defined]
    return made


@cache
def _functions() -> dict[int, tuple[object, Any]]:
    """By the id of numpy's function: that function, and the emulation's."""
    found: dict[int, tuple[object, Any]] = {}
    for part in ("", *PARTS):
        theirs = getattr(np, part) if part else np
        ours = getattr(emulation(), part) if part else emulation()
        for name, function in vars(ours).items():
            one = getattr(theirs, name, None)
            if isinstance(function, types.FunctionType) and callable(one):
                found.setdefault(id(one), (one, function))
    return found


def counterpart(function: object) -> Any:
    """What computes with tensors what a function of numpy does with arrays; None: there is none."""
    if np is None:
        return None
    one, found = _functions().get(id(function), (None, None))
    return found if one is function else None


def torch_dtype(dtype: Any) -> torch.dtype:
    """The dtype of a tensor made from such an array: raises TypeError where torch has none."""
    made = getattr(torch, dtype.name, None)
    if not isinstance(made, torch.dtype):
        raise TypeError(f"torch has no {dtype.name}")
    return made


def emulated_dtype(dtype: Any) -> Any:
    """A dtype or scalar class of numpy as the emulation has it."""
    return emulation().dtype(np.dtype(dtype).name)
