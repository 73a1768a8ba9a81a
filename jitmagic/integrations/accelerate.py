"""accelerate: compiles models in `prepare`, and registers the backend name "jitmagic"."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.utils import DynamoBackend
from torch import nn

from ..api import jit

__all__ = ["prepare", "register_backend"]

_NAME = "JITMAGIC"


def prepare(accelerator: Accelerator, *objects: Any, **keywords: Any) -> Any:
    """Return what `accelerator.prepare(*objects)` returns, with its models compiled in place.

    Takes the keywords of `jitmagic.jit`.
    """
    prepared = accelerator.prepare(*objects)
    for item in prepared if isinstance(prepared, tuple) else (prepared,):
        if isinstance(item, nn.Module):
            jit(item, **keywords)
    return prepared


def register_backend() -> None:
    """Have accelerate accept "jitmagic" as the name of a backend of torch.compile.

    accelerate accepts only the names of its enum `DynamoBackend`, and so does transformers:
    `TrainingArguments(..., torch_compile_backend="jitmagic")` works after this call.
    """
    if _NAME not in DynamoBackend._value2member_map_:
        member = str.__new__(DynamoBackend, _NAME)
        member._name_ = member._value_ = _NAME
        DynamoBackend._value2member_map_[_NAME] = member
        DynamoBackend._member_map_[_NAME] = member
