"""Python that runs in the backward of a call: hooks of tensors and modules, checkpoint wrappers,
hooks of saved tensors. The answer of a training case has the loss and the gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)

from .case import Tag, case
from .tensor_programs import rows, square, trained

LIBRARY = "torch_hooks"


# -- hooks of tensors ------------------------------------------------------------------------------


@trained(LIBRARY, "two hooks, after the tensor was used", rows, square)
def _two(x: Tensor, w: Tensor) -> Tensor:
    hidden = x @ w
    made = hidden.sin()
    hidden.register_hook(lambda gradient: gradient * 0.5)
    hidden.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    return (made + hidden).sum()


@trained(LIBRARY, "hook that reads other tensors", rows, square)
def _reading(x: Tensor, w: Tensor) -> Tensor:
    hidden = x @ w
    size = hidden.detach().abs().mean()
    hidden.register_hook(lambda gradient: gradient * size + hidden.detach())
    return hidden.sin().sum()


@trained(LIBRARY, "hook in each step of a loop", rows, square)
def _steps(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(8):
        x = torch.tanh(x @ w)
        x.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return x.sum()


@trained(LIBRARY, "hook of a result", rows, square)
def _result(x: Tensor, w: Tensor) -> Tensor:
    made = (x @ w).sin().sum()
    made.register_hook(lambda gradient: gradient * 2)
    return made


@trained(LIBRARY, "hook of an input", rows, square)
def _input(x: Tensor, w: Tensor) -> Tensor:
    w.register_hook(lambda gradient: gradient * 2)
    return (x @ w).sin().sum()


@trained(LIBRARY, "hook that is removed", rows, square)
def _removed(x: Tensor, w: Tensor) -> Tensor:
    hidden = x @ w
    handle = hidden.register_hook(lambda gradient: gradient * 2)
    handle.remove()
    return hidden.sin().sum()


def _logged(
    title: str, hook: Callable[[list[Any]], Callable[[Tensor], Any]]
) -> Callable[[Callable[..., Any]], Any]:
    """Register a case of a function that hooks a tensor with a function which fills a list."""

    def register(program: Callable[..., Any]) -> Any:
        @case(LIBRARY, title)
        def run(tag: Tag) -> Any:
            seen: list[Any] = []
            tagged, answers = tag(program), []
            for _ in range(2):
                x, w = rows().requires_grad_(), square().requires_grad_()
                tagged(x, w, hook(seen)).backward()
                answers += [x.grad, w.grad]
            return answers, list(seen)

        return program

    return register


@_logged("hook that keeps gradients", lambda seen: seen.append)
@_logged("hook that keeps norms", lambda seen: lambda gradient: seen.append(gradient.norm()))
def _keeping(x: Tensor, w: Tensor, hook: Callable[[Tensor], Any]) -> Tensor:
    hidden = x @ w
    hidden.register_hook(hook)
    return hidden.sin().sum()


class Attention(nn.Module):
    """Keeps an activation and its gradient, as Grad-CAM does."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.gradient: Tensor | None = None

    def keep(self, gradient: Tensor) -> None:
        self.gradient = gradient

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x).relu()
        features.register_hook(self.keep)
        return self.head(features), features


@case(LIBRARY, "hook that keeps a gradient on the module")
def _grad_cam(tag: Tag) -> Any:
    model, answers = Attention(), []
    tagged = tag(model)
    for _ in range(2):
        made, features = tagged(rows())
        made[:, 0].sum().backward()
        answers.append((features.detach() * model.gradient).relu())
    return answers


@case(LIBRARY, "retain_grad of what is returned")
def _retained(tag: Tag) -> Any:
    def run(x: Tensor, w: Tensor) -> Any:
        hidden = x @ w
        hidden.retain_grad()
        return hidden.sin().sum(), hidden

    x, w = rows().requires_grad_(), square().requires_grad_()
    loss, hidden = tag(run)(x, w)
    loss.backward()
    return hidden.grad, x.grad, w.grad


@case(LIBRARY, "hook after the gradient of a parameter is accumulated")
def _accumulated(tag: Tag) -> Any:
    model = nn.Linear(8, 8)

    def hook(weight: Tensor) -> None:
        weight.grad.mul_(0.5)

    def run(x: Tensor) -> Tensor:
        model.weight.register_post_accumulate_grad_hook(hook)
        return model(x).sin().sum()

    tag(run)(rows()).backward()
    return model.weight.grad, model.bias.grad


@case(LIBRARY, "handle that is returned")
def _handle(tag: Tag) -> Any:
    def run(x: Tensor, w: Tensor) -> Any:
        hidden = x @ w
        return hidden.sin().sum(), hidden.register_hook(lambda gradient: gradient * 2)

    tagged, answers = tag(run), []
    for removes in (False, True):
        x, w = rows().requires_grad_(), square().requires_grad_()
        loss, handle = tagged(x, w)
        if removes:
            handle.remove()
        loss.backward()
        answers += [x.grad, w.grad]
    return answers


@case(LIBRARY, "hook, backward twice and second derivatives")
def _twice(tag: Tag) -> Any:
    def run(x: Tensor, w: Tensor) -> Tensor:
        hidden = x @ w
        hidden.register_hook(lambda gradient: gradient * gradient)
        return hidden.sin().sum()

    tagged = tag(run)
    x, w = rows().requires_grad_(), square().requires_grad_()
    loss = tagged(x, w)
    loss.backward(retain_graph=True)
    loss.backward()
    first = torch.autograd.grad(tagged(x, w), (x, w), create_graph=True)
    return x.grad, w.grad, torch.autograd.grad(first[0].square().sum(), (x, w))


# -- hooks of modules ------------------------------------------------------------------------------


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def _modules(title: str) -> Callable[[Callable[[Any, list[Any]], None]], Any]:
    """Register a case that trains a network after `hook` has put hooks on it."""

    def register(hook: Callable[[Any, list[Any]], None]) -> Any:
        @case(LIBRARY, title)
        def run(tag: Tag) -> Any:
            model, seen, answers = _network(), [], []
            hook(model, seen)
            tagged = tag(lambda x: model(x).square().sum())
            for _ in range(2):
                x = rows().requires_grad_()
                tagged(x).backward()
                answers.append(x.grad)
            return answers, [p.grad for p in model.parameters()], list(seen)

        return hook

    return register


@_modules("backward hook that changes a gradient")
def _changing(model: Any, seen: list[Any]) -> None:
    model[1].register_full_backward_hook(lambda module, i, o: (i[0] * o[0],))


@_modules("backward hooks that keep norms")
def _norms(model: Any, seen: list[Any]) -> None:
    for module in model:
        module.register_full_backward_hook(lambda module, i, o: seen.append(o[0].norm()))


@_modules("backward pre-hook")
def _pre_hook(model: Any, seen: list[Any]) -> None:
    model[1].register_full_backward_pre_hook(lambda module, o: (o[0] * 2,))


@_modules("forward hook that hooks the result")
def _nested(model: Any, seen: list[Any]) -> None:
    def hook(module: nn.Module, args: Any, made: Tensor) -> None:
        made.register_hook(lambda gradient: gradient * 2)

    model[0].register_forward_hook(hook)


@case(LIBRARY, "hooks of modules, put and removed inside")
def _put_inside(tag: Tag) -> Any:
    model, seen = _network(), []

    def run(x: Tensor) -> Tensor:
        first = model[1].register_forward_hook(lambda module, args, made: made * 2)
        second = model[0].register_full_backward_hook(lambda module, i, o: seen.append(o[0].sum()))
        made = model(x).sum()
        first.remove()
        second.remove()
        return made

    tagged, x = tag(run), rows().requires_grad_()
    for _ in range(2):
        tagged(x).backward()
    return x.grad, [p.grad for p in model.parameters()], list(seen)


# -- checkpoint wrappers ---------------------------------------------------------------------------


def _wrapped(title: str) -> Callable[[Callable[[nn.Module], Any]], Any]:
    """Register a case that trains a network of which `wrap` returns the middle."""

    def register(wrap: Callable[[nn.Module], Any]) -> Any:
        @case(LIBRARY, title)
        def run(tag: Tag) -> Any:
            model = nn.Sequential(nn.Linear(8, 8), wrap(_network()), nn.Linear(2, 2))
            tagged, answers = tag(model), []
            for _ in range(2):
                x = rows().requires_grad_()
                tagged(x).square().sum().backward()
                answers.append(x.grad)
            return answers, [p.grad for p in model.parameters()], torch.rand(2)

        return wrap

    return register


@_wrapped("checkpoint_wrapper")
def _wrapper(network: nn.Module) -> Any:
    return checkpoint_wrapper(network)


@_wrapped("checkpoint_wrapper, with dropout")
def _wrapper_drops(network: nn.Module) -> Any:
    return checkpoint_wrapper(nn.Sequential(network, nn.Dropout(0.5)))


@_wrapped("checkpoint_wrapper, reentrant")
def _wrapper_reentrant(network: nn.Module) -> Any:
    return checkpoint_wrapper(network, checkpoint_impl=CheckpointImpl.REENTRANT)


@_wrapped("apply_activation_checkpointing")
def _applied(network: nn.Module) -> Any:
    apply_activation_checkpointing(network, check_fn=lambda module: isinstance(module, nn.Linear))
    return network


@_wrapped("offload_wrapper")
def _offloaded(network: nn.Module) -> Any:
    return offload_wrapper(network)


# -- hooks of saved tensors ------------------------------------------------------------------------


def _block(x: Tensor, w: Tensor) -> Tensor:
    return (torch.sigmoid((x @ w).sin() @ w) * x).square().sum()


def _around(title: str) -> Callable[[Callable[[], AbstractContextManager[Any]]], Any]:
    """Register a case that calls a compiled function in a context."""

    def register(context: Callable[[], AbstractContextManager[Any]]) -> Any:
        @case(LIBRARY, title)
        def run(tag: Tag) -> Any:
            tagged, answers = tag(_block), []
            for _ in range(2):
                x, w = rows().requires_grad_(), square().requires_grad_()
                with warnings.catch_warnings(), context():
                    loss = tagged(x, w)
                loss.backward()
                answers += [loss.detach(), x.grad, w.grad]
            return answers

        return context

    return register


@_around("save_on_cpu around a call")
def _save_on_cpu() -> AbstractContextManager[Any]:
    return save_on_cpu()


@_around("saved_tensors_hooks around a call")
def _saved_hooks() -> AbstractContextManager[Any]:
    return saved_tensors_hooks(lambda tensor: tensor.double(), lambda packed: packed.float())


@_around("saved_tensors_hooks around a call, which lose precision")
def _lossy_hooks() -> AbstractContextManager[Any]:
    return saved_tensors_hooks(lambda tensor: tensor.half(), lambda packed: packed.float())
