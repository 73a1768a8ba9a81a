"""peft: adapters come and go on a compiled model; no call may see the ones before."""

from __future__ import annotations

from typing import Any

import torch
from peft import IA3Config, LoraConfig, get_peft_model
from torch import nn

from .case import Tag, case
from .training import state_of, train
from .with_transformers import _llama


def _perturb(model: nn.Module) -> None:
    """Adapters begin as zero: give them values, so that they are seen."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "ia3_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)


@case("peft", "LoRA added, disabled, merged, unloaded")
def lora(tag: Tag) -> Any:
    base = tag(_llama().eval())
    ids = torch.randint(0, 90, (2, 6))
    answers = [base(ids).logits]
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"])).eval()
    answers.append(model(ids).logits)
    _perturb(model)
    answers.append(model(ids).logits)
    with model.disable_adapter():
        answers.append(model(ids).logits)
    answers.append(model(ids).logits)
    model.merge_adapter()
    answers.append(model(ids).logits)
    model.unmerge_adapter()
    answers.append(model(ids).logits)
    return [*answers, model.unload()(ids).logits]


@case("peft", "two LoRA adapters, switched")
def switched(tag: Tag) -> Any:
    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(_llama().eval(), settings)
    model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"]))
    _perturb(model)
    tag(model.eval())
    ids = torch.randint(0, 90, (2, 6))
    answers = [model(ids).logits]
    for name in ("second", "default", "second"):
        model.set_adapter(name)
        answers.append(model(ids).logits)
    model.delete_adapter("second")
    model.set_adapter("default")
    return [*answers, model(ids).logits]


@case("peft", "LoRA trained, with dropout")
def trained(tag: Tag) -> Any:
    settings = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"])
    model = tag(get_peft_model(_llama(), settings).train())
    ids = [torch.randint(0, 90, (2, 6)) for _ in range(3)]
    batches = [{"input_ids": batch, "labels": batch} for batch in ids]
    found = train(model, batches, lambda output: output.loss)
    return found, state_of(model.merge_and_unload())


@case("peft", "IA3")
def scaled(tag: Tag) -> Any:
    settings = IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    model = get_peft_model(_llama().eval(), settings)
    _perturb(model)
    return tag(model)(torch.randint(0, 90, (2, 6))).logits
