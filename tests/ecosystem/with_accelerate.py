"""accelerate: a training loop with accumulation and clipping, plain and under autocast."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import TorchDynamoPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from jitmagic.integrations.accelerate import prepare, register_backend

from .case import Tag, case
from .systems import keywords_of
from .training import state_of


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 3)
    )


def _loop(tag: Tag, before: bool, keywords: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Four batches, a step for every two; the model is compiled `before` or after prepare(), or
    with `keywords` by the integration's.
    """
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **settings)
    data = TensorDataset(torch.randn(32, 12), torch.randint(0, 3, (32,)))
    model = tag(_model()) if before else _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    prepared = (model, optimizer, loader)
    if keywords is None:
        model, optimizer, loader = accelerator.prepare(*prepared)
    else:
        model, optimizer, loader = prepare(accelerator, *prepared, **keywords)
    model = model if before else tag(model)
    losses = []
    for _ in range(2):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    return {
        "losses": losses,
        "state": state_of(accelerator.unwrap_model(model, keep_torch_compile=False)),
    }


@case("accelerate", "loop, compiled before prepare()")
def loop(tag: Tag) -> Any:
    return _loop(tag, before=True)


@case("accelerate", "loop, bf16, compiled before prepare()", rtol=2e-2)
def loop_before(tag: Tag) -> Any:
    return _loop(tag, before=True, mixed_precision="bf16")


@case("accelerate", "loop, bf16, compiled after prepare()", rtol=2e-2)
def loop_after(tag: Tag) -> Any:
    return _loop(tag, before=False, mixed_precision="bf16")


@case("accelerate", "loop, compiled by prepare()")
def loop_prepared(tag: Tag) -> Any:
    return _loop(tag, before=False, keywords=keywords_of(tag))


@case("accelerate", "loop, a plugin that names the backend")
def loop_named(tag: Tag) -> Any:
    if keywords_of(tag) is None:
        return _loop(tag, before=True)
    register_backend()
    return _loop(lambda model: model, before=True, dynamo_plugin=TorchDynamoPlugin("jitmagic"))
