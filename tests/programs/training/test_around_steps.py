"""What stands around a training step: state dicts, hooks put there for a while, optimizers made
inside, profiler blocks, GradScaler's notes by `id`, scripted functions.

Each is a function of a state and a batch, run three times on two copies of the state.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import jitmagic

from ..counts import counts_of

State = dict[str, Any]


def fresh() -> State:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).double()
    return {
        "model": model,
        "copy": copy.deepcopy(model),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    }


def step(state: State, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(state["model"](x), y)
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    return loss.detach()


def average_of_state_dicts(state: State, x: Tensor, y: Tensor) -> Any:
    loss = step(state, x, y)
    with torch.no_grad():
        new = state["model"].state_dict()
        for name, value in state["copy"].state_dict().items():
            value.copy_(value * 0.9 + new[name] * 0.1)
    return loss, new._metadata[""], hasattr(new, "_nothing")


def loads_a_state_dict(state: State, x: Tensor, y: Tensor) -> Any:
    loss = step(state, x, y)
    told = state["copy"].load_state_dict(state["model"].state_dict())
    return loss, list(told.missing_keys), told.unexpected_keys


def hook_for_one_call(state: State, x: Tensor, y: Tensor) -> Any:
    seen: dict[str, Tensor] = {}

    def look(module: nn.Module, given: Any, made: Tensor) -> None:
        seen["made"] = made.detach() * 2

    handle = state["model"][0].register_forward_hook(look)
    loss = step(state, x, y)
    handle.remove()
    before = seen.pop("made")
    state["model"](x)
    return loss, before, sorted(seen)


def pre_hook_changes_input(state: State, x: Tensor, y: Tensor) -> Any:
    with state["model"][2].register_forward_pre_hook(lambda module, given: (given[0] * 3,)):
        changed = state["model"](x).detach()
    return changed, state["model"](x).detach()


def optimizer_hooks(state: State, x: Tensor, y: Tensor) -> Any:
    seen: list[str] = []
    handles = (
        state["optimizer"].register_step_pre_hook(lambda owner, args, kwargs: seen.append("pre")),
        state["optimizer"].register_step_post_hook(lambda owner, args, kwargs: seen.append("post")),
    )
    loss = step(state, x, y)
    for handle in handles:
        handle.remove()
    return loss, len(seen)


def optimizer_made_inside(state: State, x: Tensor, y: Tensor) -> Any:
    state["optimizer"] = torch.optim.RMSprop(state["model"].parameters(), lr=0.01)
    return step(state, x, y)


def named_block(state: State, x: Tensor, y: Tensor) -> Any:
    with torch.profiler.record_function("step"):
        return step(state, x, y)


def known_by_id(state: State, x: Tensor, y: Tensor) -> Any:
    notes = state.setdefault("notes", {})
    notes[id(state["optimizer"])] = step(state, x, y)
    return notes[id(state["optimizer"])]


def cached_parametrizations(state: State, x: Tensor, y: Tensor) -> Any:
    with parametrize.cached():
        return step(state, x, y)


@torch.jit.script
def scripted(x: Tensor, times: int) -> Tensor:
    return x * times + 1


def calls_a_scripted_function(state: State, x: Tensor, y: Tensor) -> Any:
    return step(state, scripted(x, 3), y)


WHOLE = [
    average_of_state_dicts, loads_a_state_dict, optimizer_made_inside, named_block, known_by_id,
    cached_parametrizations, calls_a_scripted_function,
]  # fmt: skip
BROKEN = [  # hooks are taken back through a weak reference, and what is alive only Python knows
    hook_for_one_call, pre_hook_changes_input, optimizer_hooks,
]  # fmt: skip


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 8, generator=generator, dtype=torch.float64), torch.arange(6) % 4)
        for _ in range(3)
    ]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [*WHOLE, *BROKEN])
def test_does_what_eager_does(program: Callable[..., Any], backend: str) -> None:
    plain, state = fresh(), fresh()
    compiled = jitmagic.jit(program, backend=backend, fullgraph=program in WHOLE)
    for x, y in batches():
        wanted, found = program(plain, x, y), compiled(state, x, y)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for part in ("model", "copy"):
        torch.testing.assert_close(
            dict(state[part].named_parameters()),
            dict(plain[part].named_parameters()),
            rtol=1e-4,
            atol=1e-5,
        )
        assert not any(module._forward_hooks for module in state[part].modules())


def test_a_profiler_sees_the_blocks() -> None:
    compiled, state = jitmagic.jit(named_block, backend="eager"), fresh()
    for x, y in batches()[:2]:
        compiled(state, x, y)
        with torch.profiler.profile() as profile:
            compiled(state, x, y)
        assert "step" in [event.key for event in profile.key_averages()]


def test_state_dicts_from_before_keep_their_attributes() -> None:
    held = fresh()["model"].state_dict()

    def asks(x: Tensor) -> Any:
        return x + len(getattr(held, "_metadata", ())), hasattr(held, "note")

    compiled = jitmagic.jit(asks, backend="eager", fullgraph=True)
    x = torch.zeros(2)
    assert torch.equal(compiled(x)[0], asks(x)[0])
    held.note = 1
    assert compiled(x)[1] is True
    del held._metadata
    assert torch.equal(compiled(x)[0], x)


def test_an_id_of_another_object_is_another() -> None:
    made_inside = jitmagic.jit(lambda x: x + id(object()) * 0, backend="eager")
    made_inside(torch.ones(2))
    assert counts_of(made_inside).breaks

    def asks(x: Tensor, key: Any) -> Any:
        return x, id(key)

    compiled = jitmagic.jit(asks, backend="eager", fullgraph=True)
    for key in (nn.ReLU(), nn.ReLU(), asks, nn.ReLU):
        assert compiled(torch.ones(2), key)[1] == id(key)


class Thing:
    pass


def drops_an_item(x: Tensor, held: list[Thing]) -> Tensor:
    reference = weakref.ref(held[0])
    held.pop()
    return x + (1 if reference() is None else 2)


def keeps_an_argument(x: Tensor, held: list[Thing]) -> Tensor:
    reference = weakref.ref(held[0])
    return x + (1 if reference() is None else 2)


@pytest.mark.parametrize("program", [drops_an_item, keeps_an_argument])
def test_a_reference_made_inside_tells_what_is_alive(program: Callable[..., Any]) -> None:
    x = torch.ones(2)
    assert torch.equal(jitmagic.jit(program)(x, [Thing()]), program(x, [Thing()]))
