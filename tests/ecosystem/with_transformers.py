"""transformers: Trainer, and generate() with the caches that it offers."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from jitmagic.integrations.accelerate import register_backend
from jitmagic.integrations.transformers import JitCallback

from .case import Tag, case
from .systems import keywords_of
from .training import state_of

_VOCABULARY = 97
_NO_ENDS = {"bos_token_id": None, "eos_token_id": None}  # sequences end at their full length


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random sequences; the label is the sequence itself, or a class."""

    def __init__(self, classes: int | None = None) -> None:
        self.ids = torch.randint(0, _VOCABULARY, (32, 12))
        self.labels = self.ids if classes is None else torch.randint(0, classes, (32,))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


def _gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=_VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=2, **_NO_ENDS
        )
    )


def _llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **_NO_ENDS,
    )
    return LlamaForCausalLM(config)


def _bert() -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=3,
    )
    return BertForSequenceClassification(config)


def _fit(
    model: PreTrainedModel, data: Dataset[Any], callbacks: Any = None, **overrides: Any
) -> Any:
    """The losses that Trainer logs, what it evaluates to, and the weights."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=4,
            per_device_train_batch_size=4,
            learning_rate=0.1,
            optim="sgd",  # Adam makes steps of gradients that are rounding noise
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **overrides,
        )
        trainer = Trainer(
            model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks
        )
        trainer.train()
        judged = trainer.evaluate()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "judged": judged["eval_loss"], "state": state_of(model)}


@case("transformers", "Trainer, GPT-2")
def trainer(tag: Tag) -> Any:
    return _fit(tag(_gpt2()), Tokens())


@case("transformers", "Trainer, BERT, accumulated")
def trainer_accumulated(tag: Tag) -> Any:
    return _fit(tag(_bert()), Tokens(classes=3), gradient_accumulation_steps=2)


@case("transformers", "Trainer, GPT-2, JitCallback")
def trainer_callback(tag: Tag) -> Any:
    model, keywords = _gpt2(), keywords_of(tag)
    callbacks = None if keywords is None else [JitCallback(**keywords)]
    found = _fit(model if callbacks else tag(model), Tokens(), callbacks)
    tag(model)  # is counted: the callback has tagged it
    return found


@case("transformers", "Trainer, BERT, torch_compile_backend")
def trainer_torch_compile(tag: Tag) -> Any:
    if keywords_of(tag) is None:
        return _fit(tag(_bert()), Tokens(classes=3))
    register_backend()
    return _fit(_bert(), Tokens(classes=3), torch_compile=True, torch_compile_backend="jitmagic")


@case("transformers", "Trainer, Llama, bf16, checkpointed", rtol=2e-2)
def trainer_checkpointed(tag: Tag) -> Any:
    return _fit(tag(_llama()), Tokens(), bf16=True, gradient_checkpointing=True)


def _generate(tag: Tag, model: PreTrainedModel, **settings: Any) -> Any:
    """Greedy and sampled tokens of two prompts of different lengths, and the scores."""
    model = tag(model.eval())
    answers = []
    for length in (5, 7):
        prompt = torch.randint(1, _VOCABULARY, (2, length))
        for sampled in (False, True):
            found = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=8,
                do_sample=sampled,
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
                **settings,
            )
            answers.append({"tokens": found.sequences, "scores": list(found.scores)})
    return answers


@case("transformers", "generate, dynamic cache")
def generate_dynamic(tag: Tag) -> Any:
    return _generate(tag, _llama())


@case("transformers", "generate, static cache")
def generate_static(tag: Tag) -> Any:
    return _generate(tag, _llama(), cache_implementation="static")


@case("transformers", "generate, beams, GPT-2")
def generate_beams(tag: Tag) -> Any:
    model = tag(_gpt2().eval())
    prompt = torch.randint(1, _VOCABULARY, (2, 5))
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        num_beams=3,
        max_new_tokens=6,
        do_sample=False,
        pad_token_id=0,
    )


@case("transformers", "weights resized and copied after the first call")
def resized(tag: Tag) -> Any:
    model = tag(_llama().eval())
    ids = torch.randint(0, _VOCABULARY, (2, 6))
    answers = [model(ids).logits]
    model.resize_token_embeddings(_VOCABULARY + 3)
    answers.append(model(ids).logits)
    answers.append(copy.deepcopy(model)(ids).logits)
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
    return [*answers, model(ids).logits]
