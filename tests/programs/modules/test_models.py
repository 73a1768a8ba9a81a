"""The models of the demos against eager: every gradient with float64 as the judge, losses over
training steps, running statistics; and what is compiled: one graph, no break, so many kernels.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from demos.models import CharGPT, Classifier, Text, digits

from ..counts import Counts, counts_of

VOCABULARY = 50


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage boundary is verified."""
    monkeypatch.setenv("JITMAGIC_VERIFY", "1")
    jitmagic.reset()


class SmallCNN(nn.Module):
    """Two convolutions with batch norm, [batch, 3, 16, 16] -> [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        return self.head(F.relu(self.norm2(self.conv2(x))).mean((2, 3)))


def small_gpt(dropout: float) -> CharGPT:
    """Four layers as in the demo, narrower."""
    return CharGPT(VOCABULARY, context=32, layers=4, width=64, heads=4, dropout=dropout)


def characters() -> tuple[Tensor, Tensor]:
    """Ids and targets [4, 32]."""
    ids = torch.randint(0, VOCABULARY, (4, 33), generator=torch.Generator().manual_seed(3))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def images(*shape: int) -> tuple[Tensor, Tensor]:
    """Noise of that shape, and labels."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.randint(0, 10, shape[:1], generator=generator)
    return torch.randn(shape, generator=generator), labels


@dataclass(frozen=True)
class Case:
    """A model, a batch, and the kernels of one call of it in training, without its backward."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    kernels: int

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("classifier", Classifier, lambda: images(32, 784), 3),
    Case("cnn", SmallCNN, lambda: images(4, 3, 16, 16), 6),
    Case("gpt", lambda: small_gpt(0.0), characters, 9),
    Case("gpt with dropout", lambda: small_gpt(0.1), characters, 9),
]


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over whatever comes before the classes."""
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten())


class FixedDropout(nn.Module):
    """Dropout by masks drawn beforehand, for the float64 judge: its own draws would be others."""

    def __init__(self, masks: Iterable[Tensor]) -> None:
        super().__init__()
        self.masks = iter(masks)

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.masks).to(x.dtype)


def dropout_masks(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What eager's dropouts multiply with after seed 7, in the order of the calls."""
    masks: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        # Scale by eager's own factor; where the input is zero, so is the product.
        kept = torch.where(inputs[0] != 0, (output != 0).double(), 1.0)
        masks.append(kept / (1 - module.p))
        return output

    copied = copy.deepcopy(model)
    for module in copied.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(record)
    torch.manual_seed(7)
    copied(x)
    return masks


def judge_of(model: nn.Module, x: Tensor) -> nn.Module:
    """The float64 copy; its dropouts replay what eager draws in float32."""
    dropouts = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    judge = copy.deepcopy(model).double()
    if dropouts:
        fixed = FixedDropout(dropout_masks(model, x))
        for module in list(judge.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Dropout):
                    setattr(module, name, fixed)
    return judge


def gradients(
    model: nn.Module, x: Tensor, y: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The loss, the gradients of all parameters, and the buffers afterwards."""
    torch.manual_seed(7)
    loss = loss_of(model(x), y)
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return loss.detach(), grads, {name: b.clone() for name, b in model.named_buffers()}


def error_of(found: Tensor, exact: Tensor) -> float:
    """The greatest error, relative to the tensor's greatest element."""
    return float((found.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-6))


def assert_near(ours: Tensor, eager: Tensor, exact: Tensor, where: str, usual: float = 0.0) -> None:
    """Within twice eager's own error, plus a few roundings.

    `usual`: what eager's error mostly is; it stands in where chance made this one smaller.
    """
    error, of_eager = error_of(ours, exact), error_of(eager, exact)
    allowed = 2 * max(of_eager, usual) + 4 * torch.finfo(torch.float32).eps
    assert error <= allowed, f"{where}: {error} > {allowed}, eager {of_eager}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_against_float64(case: Case) -> None:
    torch.manual_seed(0)
    model = case.build()
    x, y = case.batch()
    judge = judge_of(model, x)
    compiled = jitmagic.jit(copy.deepcopy(model))
    exact_x = x.double() if x.is_floating_point() else x
    exact_loss, exact, exact_buffers = gradients(judge, exact_x, y)
    eager_loss, eager, eager_buffers = gradients(model, x, y)
    our_loss, ours, our_buffers = gradients(compiled, x, y)
    assert_near(our_loss, eager_loss, exact_loss, "loss")
    assert list(ours) == list(eager)
    usual = statistics.median(error_of(grad, exact[name]) for name, grad in eager.items())
    for name, grad in eager.items():
        assert ours[name].stride() == grad.stride(), name
        assert_near(ours[name], grad, exact[name], name, usual)
    for name, buffer in eager_buffers.items():
        if buffer.is_floating_point():
            assert_near(our_buffers[name], buffer, exact_buffers[name], name)
        else:
            assert torch.equal(our_buffers[name], buffer), name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_graphs_breaks_and_kernels(case: Case) -> None:
    torch.manual_seed(0)
    run = jitmagic.jit(case.build())
    run(case.batch()[0])
    assert counts_of(run) == Counts(graphs=1, breaks=0, kernels=case.kernels)


def test_a_stack_of_layers_is_one_kernel() -> None:
    """Two threads, so that 32 rows fill both."""
    torch.manual_seed(0)
    model = Classifier().eval()
    x = images(32, 784)[0]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        compiled = jitmagic.jit(copy.deepcopy(model))
        with torch.no_grad():
            ours, eager = compiled(x), model(x)
            exact = copy.deepcopy(model).double()(x.double())
            assert_near(ours, eager, exact, "scores")
            assert counts_of(compiled) == Counts(graphs=1, breaks=0, kernels=1)
            compiled.fc2.weight.data = torch.zeros(128, 256)  # another tensor, the same guards
            model.fc2.weight.data = torch.zeros(128, 256)
            torch.testing.assert_close(compiled(x), model(x))
            assert counts_of(compiled) == Counts(graphs=1, breaks=0, kernels=1)
    finally:
        torch.set_num_threads(threads)


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], compile_: bool, rate: float
) -> tuple[list[float], Tensor]:
    """Losses of each step with Adam, and the next random numbers."""
    model = jitmagic.jit(model) if compile_ else model
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    torch.manual_seed(11)
    for x, y in batches:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.rand(4)


def both_curves(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], rate: float
) -> tuple[list[float], list[float]]:
    """Loss curves of eager and of jitmagic from one start; the RNG ends at the same place."""
    eager, after_eager = train(copy.deepcopy(model), batches, False, rate)
    ours, after_ours = train(model, batches, True, rate)
    assert torch.equal(after_eager, after_ours)
    return eager, ours


def test_two_hundred_steps_of_the_classifier() -> None:
    torch.manual_seed(0)
    eager, ours = both_curves(Classifier(), list(digits(200)), 1e-3)
    assert eager[-1] < 0.5 * eager[0]
    apart = [abs(a - b) / a for a, b in zip(eager, ours, strict=True)]
    assert max(apart) < 1e-3
    assert sorted(apart)[len(apart) * 9 // 10] < 1e-4


def test_thirty_steps_of_the_gpt_with_dropout() -> None:
    torch.manual_seed(0)
    text = Text(50_000)
    model = CharGPT(len(text.characters), context=32)
    assert model.training
    assert model.dropout.p > 0
    eager, ours = both_curves(model, list(text.batches(30, batch=4, length=32)), 1e-3)
    assert eager[-1] < eager[0]
    assert ours == pytest.approx(eager, rel=1e-3)
    assert ours[:5] == pytest.approx(eager[:5], rel=1e-5)


def test_running_statistics_over_steps_and_in_evaluation() -> None:
    torch.manual_seed(0)
    eager = SmallCNN()
    ours = jitmagic.jit(copy.deepcopy(eager))
    generator = torch.Generator().manual_seed(5)
    for _ in range(5):
        x = torch.randn(4, 3, 16, 16, generator=generator)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-5)
    for (name, a), (_, b) in zip(eager.named_buffers(), ours.named_buffers(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6, msg=name)
    assert int(ours.norm1.num_batches_tracked) == 5
    eager.eval()
    ours.eval()
    before = {name: b.clone() for name, b in ours.named_buffers()}
    torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(b, before[name]) for name, b in ours.named_buffers())
