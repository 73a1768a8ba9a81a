"""Text of varying numbers (logs of a training loop) costs no break and no variant per number."""

# ruff: noqa: UP031, UP032 - each way to write a text is tried
from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.frame.tag import handle_of

Log = list[Any]
LINES: dict[str, Callable[[Tensor, Log], object]] = {}


def line(function: Callable[[Tensor, Log], object]) -> Callable[[Tensor, Log], object]:
    LINES[function.__name__] = function
    return function


@line
def f_string(loss, log):
    log.append(f"loss {loss.item():.3f} {loss.item()!r:>20}|{2 * loss.item():<12.4e}|")


@line
def percent(loss, log):
    log.append("%s, %.3f at %d%% (%5d)" % (loss.item(), loss.item(), 30, 100 * loss.item()))
    log.append("%r" % loss.item())


@line
def format_method(loss, log):
    log.append("Epoch {} [{}/{} ({:.0f}%)]\tLoss: {:.6f}".format(1, 2, 3, 66.6, loss.item()))
    log.append("{x} {0:>9.2f}".format(loss.item(), x=loss.item()))


@line
def joined_items(loss, log):
    found = {"loss": loss.item(), "accuracy": 0.5 + loss.item()}
    log.append(", ".join(f"{k}={v:.4f}" for k, v in found.items()))
    log.append(", ".join([f"{k}={v:.4f}" for k, v in found.items()]))
    log.append("".join([str(loss.item())]))


@line
def methods(loss, log):
    """Join the postfix of a progress bar as tqdm does."""
    shown = {"loss": f"{loss.item():8.4f}", "twice": f"{loss.item() * 2:.3e}".replace("e+0", "e+")}
    log.append(", ".join(key + "=" + shown[key].strip() for key in shown).upper().ljust(40, "."))


@line
def sums(loss, log):
    text = "loss " + str(loss.item()) + "; " + repr(loss.item())
    text += f"{loss.item():.1f}"
    log.append(text)


@line
def rounded(loss, log):
    log.append(round(loss.item(), 4))
    return {"loss": round(loss.item(), 2), "ppl": math.exp(loss.item())}


@line
def of_a_tensor(loss, log):
    log.append(f"{loss:.3f} {loss.detach()}")


@line
def logger(loss, log):
    logging.getLogger("texts").warning("loss %.2f", loss.item())
    logging.getLogger("texts").warning(f"loss {loss.item():.2f}")


@line
def checked(loss, log):
    if not math.isfinite(loss.item()):
        raise RuntimeError(f"loss is {loss.item()}")
    log.append(loss.item())


@line
def before_a_write(loss, log):
    total = loss.detach().clone()
    text = f"{total.item():.3f}"
    total += 1
    log.append(text + f" {total.item():.3f}")


@pytest.fixture
def said():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    texts = logging.getLogger("texts")
    texts.addHandler(handler)
    texts.propagate = False
    yield stream
    texts.removeHandler(handler)
    texts.propagate = True


def train(write: Callable[[Tensor, Log], object], wrap: Callable[..., Any]) -> tuple[Any, Log]:
    torch.manual_seed(0)
    model, log = nn.Linear(4, 3), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        more = write(loss, log)
        optimizer.step()
        return more

    run = wrap(step)
    log += [run(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(12)]
    return run, log


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_a_log_is_part_of_the_graph(name, said) -> None:
    _, wanted = train(LINES[name], lambda step: step)
    told = said.getvalue()
    run, log = train(LINES[name], lambda step: jitmagic.jit(step, backend="eager", fullgraph=True))
    assert len(log) == len(wanted) > 12 or told
    assert [str(one) for one in log] == [str(one) for one in wanted]
    assert said.getvalue() == 2 * told
    assert len(handle_of(run).journal) == 1


def test_a_print_is_the_only_break(capsys) -> None:
    def write(loss, log):
        print(f"loss {loss.item():.3f}", loss.item())

    train(write, lambda step: step)
    told = capsys.readouterr().out
    run, _ = train(write, lambda step: jitmagic.jit(step, backend="eager"))
    assert capsys.readouterr().out == told
    handle = handle_of(run)
    assert len(handle.journal) == 4  # before and behind it, of the step and of what it calls
    assert all(len(member.dispatcher.entries) == 1 for member in handle.family.members)


def test_an_argument_that_varies_has_a_text() -> None:
    def named(x: Tensor, rate: float, step: int) -> tuple[Tensor, str]:
        return x * rate, f"{step:04d}: {rate:.3g}"

    run = jitmagic.jit(named, backend="eager")
    x = torch.ones(3)
    for step, rate in enumerate((0.1, 0.25, 1e-5, 3.0, math.inf, -0.0, 7.5)):
        (result, text), (wanted, told) = run(x, rate, step), named(x, rate, step)
        assert torch.equal(result, wanted) and text == told
    assert len(handle_of(run).journal) == 2


def test_text_whose_value_is_used_is_a_constant() -> None:
    def picked(x: Tensor, table: dict[str, float], number: int) -> Tensor:
        return x * table[f"layer{number}"] + len(f"{number}")

    run = jitmagic.jit(picked, backend="eager")
    table = {f"layer{n}": n / 2 for n in (1, 2, 10)}
    for number in (1, 2, 10, 1, 2, 10):
        assert torch.equal(run(torch.ones(3), table, number), picked(torch.ones(3), table, number))
    with pytest.raises(KeyError, match="layer3"):
        run(torch.ones(3), table, 3)


def test_a_comparison_of_floats_is_two_variants() -> None:
    state = {"best": math.inf, "bad": 0}

    def watched(x: Tensor, margin: float) -> float:
        value = x.sum().item()
        if value < state["best"] - margin:
            state["best"], state["bad"] = value, 0
        else:
            state["bad"] += 1
        return value

    def run_all(run: Callable[..., float]) -> list[Any]:
        state.update(best=math.inf, bad=0)
        torch.manual_seed(0)
        return [(run(torch.randn(5), 0.01), *state.values()) for _ in range(40)]

    wanted = run_all(watched)
    run = jitmagic.jit(watched, backend="eager")
    assert run_all(run) == wanted
    resumed = handle_of(run).family.members[0]
    assert len(resumed.dispatcher.entries) <= 5 and resumed.given_up is None


@pytest.mark.parametrize("mode", ["triangular", "triangular2", "exp_range"])
def test_a_branch_on_a_float_of_a_counter(mode: str) -> None:
    def losses(wrap: Callable[..., Any]) -> tuple[Any, list[Tensor]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CyclicLR(
            optimizer, 0.01, 0.1, step_size_up=3, mode=mode, gamma=0.99
        )

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.detach()

        run = wrap(step)
        made = [run(torch.randn(8, 4)) for _ in range(40)]
        return run, [*made, torch.tensor(optimizer.param_groups[0]["lr"])]

    _, wanted = losses(lambda step: step)
    run, made = losses(lambda step: jitmagic.jit(step, backend="eager"))
    torch.testing.assert_close(made, wanted)
    assert len(handle_of(run).journal) <= 5 and handle_of(run).given_up is None
