"""library: the functions of installed packages that the hook compiles nevertheless.

Other library code runs unchanged (never_hooked.py). These are the inner loops of optimizers: pure
arithmetic on lists of tensors that are passed as arguments. Such a frame is compiled as one graph
or runs as eager; it is never split at a break. Callees of a function with `plain` set are not
hooked.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType

from ..lazy_dataclass import dataclass
from ..torch_types import Namespace

__all__ = ["LibraryFunction", "is_of_torch_compile", "library_function"]


@dataclass(frozen=True, slots=True)
class LibraryFunction:
    """Declared facts about a library function.

    `differing_numbers`: float arguments that are inputs of the graph from the start, because
    schedulers change them; other floats become inputs once they were seen to change. `plain`: the
    reason to run it and all its callees as plain Python; empty: it is compiled.
    """

    differing_numbers: frozenset[str] = frozenset()
    plain: str = ""


_STEP = LibraryFunction(frozenset({"lr"}))
_OPTIMIZERS = (
    "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop",
    "sgd",
)  # fmt: skip
_FUNCTIONS: Mapping[tuple[str, str], LibraryFunction] = {
    (f"torch.optim.{name}", f"{kind}_{name}"): _STEP
    for name in _OPTIMIZERS
    for kind in ("_single_tensor", "_multi_tensor")
} | {
    ("torch.utils.checkpoint", "checkpoint"): LibraryFunction(
        plain="a checkpointed function runs again in backward and must save the same tensors"
    )
}


_TORCH_COMPILE = LibraryFunction(plain="torch.compile compiles its callees")


def is_of_torch_compile(module: str) -> bool:
    """Return whether the wrappers of torch.compile and torch.compiler live in this module.

    Other modules of torch._dynamo wrap functions of torch and weak references, which compile
    nothing.
    """
    package, _, name = module.rpartition(".")
    return package == "torch._dynamo" and name in ("eval_frame", "external_utils")


def library_function(code: CodeType, namespace: Namespace) -> LibraryFunction | None:
    """Return the declared facts about a library function; None: it runs unchanged."""
    if is_of_torch_compile(str(namespace.get("__name__"))):
        return _TORCH_COMPILE
    return _FUNCTIONS.get((str(namespace.get("__name__")), code.co_qualname))
