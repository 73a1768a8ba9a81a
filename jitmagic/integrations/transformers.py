"""transformers: a callback that compiles the model which a Trainer trains and evaluates."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ..api import jit

__all__ = ["JitCallback"]


class JitCallback(TrainerCallback):
    """Compile the model in place when training begins.

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[JitCallback()])

    Takes the keywords of `jitmagic.jit`. The model stays the same object with the same state_dict
    keys, so checkpoints do not change. It stays compiled for `trainer.evaluate()` and
    `trainer.predict()`.
    """

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords

    def on_train_begin(
        self, args: object, state: object, control: object, model: Any = None, **kwargs: object
    ) -> None:
        """Tag the model; it is compiled at its first batch."""
        jit(model, **self._keywords)
