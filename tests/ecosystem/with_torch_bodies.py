"""Bodies of control flow with gradients, draws, closures and checkpoints inside; functions that are
suspended; linear algebra of numpy.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from .case import Tag, case
from .tensor_programs import called, heads, rows, square, trained, vector

LIBRARY = "torch_bodies"


def zeros() -> Tensor:
    return torch.zeros(8)


def batch() -> Tensor:
    return torch.randn(3, 6, 8)


# -- loops -----------------------------------------------------------------------------------------


@called(LIBRARY, "while_loop, Newton's method", vector)
def _newton(x: Tensor) -> Any:
    target = x.abs() + 1

    def goes_on(root: Tensor, steps: Tensor) -> Tensor:
        return ((root * root - target).abs().max() > 1e-6) & (steps < 50)

    def step(root: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return (root + target / root) / 2, steps + 1

    return while_loop(goes_on, step, (target.clone(), torch.tensor(0)))


@called(LIBRARY, "while_loop that never runs", vector)
def _never(x: Tensor) -> Any:
    return while_loop(lambda x: x.sum() > 1e9, lambda x: (x * 2,), (x,))


@called(LIBRARY, "while_loop in cond", vector)
def _loop_in_cond(x: Tensor) -> Any:
    def halves(x: Tensor) -> Tensor:
        return while_loop(lambda x: x.abs().max() > 0.5, lambda x: (x * 0.5,), (x,))[0]

    return torch.cond(x.sum() > 0, halves, lambda x: x.clone(), (x,))


@called(LIBRARY, "cond in while_loop", vector)
def _cond_in_loop(x: Tensor) -> Any:
    def collatz(n: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, (n,))
        return made, steps + 1

    start = (x.abs().sum() * 10).to(torch.int64) + 2
    return while_loop(lambda n, steps: n != 1, collatz, (start, torch.tensor(0)))


@called(LIBRARY, "while_loop over a closure of weights", vector, square)
def _power_iteration(x: Tensor, w: Tensor) -> Any:
    matrix = w @ w.T

    def step(i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        made = matrix @ v
        return i + 1, made / made.norm()

    _, v = while_loop(lambda i, v: i < 20, step, (torch.tensor(0), x / x.norm()))
    return v @ matrix @ v


@called(LIBRARY, "scan backwards, nested states", rows)
def _reverse_scan(x: Tensor) -> Any:
    def step(state: dict[str, Tensor], x: Tensor) -> Any:
        made = {"sum": state["sum"] + x, "largest": torch.maximum(state["largest"], x)}
        return made, {"mean": made["sum"] * 0.5, "spread": made["largest"] - x}

    start = {"sum": torch.zeros(8), "largest": torch.full((8,), -10.0)}
    return scan(step, start, x, dim=0, reverse=True)


@trained(LIBRARY, "scan, a GRU trained", rows, square)
def _gru(x: Tensor, w: Tensor) -> Tensor:
    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = torch.sigmoid(h @ w + x)
        made = gate * h + (1 - gate) * torch.tanh(x @ w)
        return made, made.clone()

    h, states = scan(step, torch.zeros(8), x, dim=0)
    return h.square().sum() + states.mean()


@trained(LIBRARY, "scan over a second dimension, trained", rows)
def _scan_of_columns(x: Tensor) -> Tensor:
    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return carry * 0.9 + x, (carry - x).sin()

    carry, made = scan(step, torch.zeros(6), x, dim=1)
    return carry.square().sum() + made.sin().mean()


@trained(LIBRARY, "map of a layer, trained", batch, square)
def _map_of_layer(x: Tensor, w: Tensor) -> Tensor:
    return torch_map(lambda x, w: torch.softmax(x @ w, -1) * x.exp(), x, w).square().mean()


@called(LIBRARY, "map of several arrays", rows, rows, vector)
def _map_of_pairs(x: Tensor, y: Tensor, z: Tensor) -> Any:
    return torch_map(lambda xs, z: (xs[0] * z, xs[1].cumsum(0)), (x, y), z)


@called(LIBRARY, "associative_scan of pairs", rows, rows)
def _linear_recurrence(a: Tensor, b: Tensor) -> Any:
    def combine(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    return associative_scan(combine, (a.sigmoid(), b), dim=0, combine_mode="generic")


@trained(LIBRARY, "associative_scan, trained", rows)
def _trained_associative(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a * b, x, dim=1, combine_mode="generic").sin().sum()


@called(LIBRARY, "associative_scan, reversed maximum", rows)
def _running_maximum(x: Tensor) -> Any:
    return associative_scan(torch.maximum, x, dim=0, reverse=True, combine_mode="generic")


# -- branches --------------------------------------------------------------------------------------


@called(LIBRARY, "draws in both branches", vector)
def _draws(x: Tensor) -> Any:
    made = torch.cond(
        x.sum() > 0, lambda x: x + torch.rand(8), lambda x: F.dropout(x, 0.5) * 2, (x,)
    )
    return made, torch.rand(2)


@case(LIBRARY, "cond over closures that change")
def _changing_closure(tag: Tag) -> Any:
    scale = [1.0]

    @tag
    def run(x: Tensor) -> Tensor:
        by = scale[0]
        return torch.cond(x.sum() > 0, lambda x: x * by, lambda x: x - by, (x,))

    made = []
    for value in (1.0, 2.5, -3.0):
        scale[0] = value
        made += [run(torch.ones(3)), run(-torch.ones(3))]
    return made


@called(LIBRARY, "branches that write to what they made", rows)
def _writes_inside(x: Tensor) -> Any:
    def fills(x: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        made[:, ::2] = x[:, ::2]
        made.mul_(2)
        return made

    return torch.cond(x.sum() > 0, fills, lambda x: fills(x.abs()).add_(1), (x,))


@trained(LIBRARY, "checkpoint in cond, trained", rows, square)
def _checkpoint_in_cond(x: Tensor, w: Tensor) -> Tensor:
    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w) @ w

    def saved(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(block, x, w, use_reentrant=False)

    return torch.cond(x.sum() > 0, saved, lambda x, w: x @ w, (x, w)).square().sum()


@trained(LIBRARY, "cond in checkpoint, trained", rows, square)
def _cond_in_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x, w: (x @ w).sin(), lambda x, w: x @ w.T, (x, w))

    return checkpoint(block, x, w, use_reentrant=False).square().sum()


@trained(LIBRARY, "checkpoints in a checkpoint, trained", rows, square)
def _nested_checkpoints(x: Tensor, w: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return F.dropout(torch.sin(x @ w), 0.25)

    def outer(x: Tensor) -> Tensor:
        return checkpoint(inner, checkpoint(inner, x, use_reentrant=False), use_reentrant=False)

    return checkpoint(outer, x, use_reentrant=False).square().sum()


@trained(LIBRARY, "autocast in a branch, trained", rows, square)
def _autocast_in_cond(x: Tensor, w: Tensor) -> Tensor:
    def low(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w).float()

    return torch.cond(x.sum() > 0, low, lambda x, w: (x * 2) @ w, (x, w)).square().mean()


@case(LIBRARY, "experts chosen by nested conds, trained")
def _experts(tag: Tag) -> Any:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(8, 3)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            chosen = self.gate(x).mean(0).argmax()
            first, second, third = self.experts
            others = lambda x: torch.cond(chosen == 1, second, third, (x,))  # noqa: E731
            return torch.cond(chosen == 0, first, others, (x,))

    model = Experts()
    tagged, losses = tag(model), []
    for scale in (1.0, -1.0, 3.0):
        loss = tagged(rows() * scale).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return losses, [parameter.grad for parameter in model.parameters()]


# -- attention -------------------------------------------------------------------------------------


@called(LIBRARY, "sdpa_kernel around a callee", heads, heads)
def _kernel_of_callee(q: Tensor, k: Tensor) -> Tensor:
    def attend(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]), contextlib.nullcontext():
        made = attend(q, k)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            made = made + attend(k, q)
    return made + attend(q, q)


@case(LIBRARY, "sdpa_kernel around the call")
def _kernel_outside(tag: Tag) -> Any:
    tagged = tag(lambda q, k: F.scaled_dot_product_attention(q, k, k).sin())
    made = [tagged(heads(), heads())]
    with sdpa_kernel(SDPBackend.MATH):
        made.append(tagged(heads(), heads()))
    return [*made, tagged(heads(), heads())]


# -- functions that are suspended ------------------------------------------------------------------


@case(LIBRARY, "generator of denoising steps")
def _denoising(tag: Tag) -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))

    @tag
    def steps(x: Tensor, count: int) -> Iterator[Tensor]:
        for k in reversed(range(1, count + 1)):
            noise = model(x) * (k / count)
            x = (x - noise) / (1 + k / count) ** 0.5
            yield x.clamp(-3, 3)

    with torch.no_grad():
        return list(steps(rows(), 5)), list(steps(rows(), 3))


@case(LIBRARY, "generator of training losses")
def _training_generator(tag: Tag) -> Any:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @tag
    def train(batches: list[Tensor]) -> Iterator[Tensor]:
        for x in batches:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.detach()

    return list(train([rows() for _ in range(4)])), [p.detach() for p in model.parameters()]


@case(LIBRARY, "generator that is sent values and exceptions")
def _conversation(tag: Tag) -> Any:
    @tag
    def running(x: Tensor) -> Any:
        mean, count = torch.zeros_like(x), 0
        while True:
            try:
                value = yield mean
            except ValueError:
                mean, count = mean * 0, 0
                continue
            if value is None:
                return mean.sum(), count
            count += 1
            mean = mean + (value - mean) / count

    machine = running(vector())
    made = [next(machine), machine.send(vector()), machine.send(vector())]
    made += [machine.throw(ValueError()), machine.send(vector())]
    try:
        machine.send(None)
    except StopIteration as end:
        made.append(end.value)
    return made


@case(LIBRARY, "coroutine that serves batches")
def _server(tag: Tag) -> Any:
    model = nn.Linear(8, 3)

    @tag
    async def serve(queue: Any, results: list[Any]) -> int:
        served = 0
        while (x := await queue.get()) is not None:
            scores = model(x).softmax(-1)
            results.append((scores.detach(), scores.argmax(-1)))
            served += 1
        return served

    async def run() -> Any:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        results: list[Any] = []
        worker = asyncio.create_task(serve(queue, results))
        for _ in range(3):
            await queue.put(rows())
            await asyncio.sleep(0)
        await queue.put(None)
        return await worker, results

    return asyncio.run(run())


@case(LIBRARY, "asynchronous generator of tokens")
def _tokens(tag: Tag) -> Any:
    embedding, head = nn.Embedding(16, 8), nn.Linear(8, 16)

    @tag
    async def generate(token: Tensor, count: int) -> AsyncIterator[Tensor]:
        state = torch.zeros(8)
        for _ in range(count):
            state = torch.tanh(state + embedding(token))
            token = head(state).argmax()
            yield token
            await asyncio.sleep(0)

    async def run() -> list[Tensor]:
        return [token async for token in generate(torch.tensor(3), 6)]

    with torch.no_grad():
        return asyncio.run(run())


# -- numpy -----------------------------------------------------------------------------------------


@called(LIBRARY, "np.linalg, whitened data", rows)
def _whitened(x: Tensor) -> Any:
    data = x.numpy()
    centred = data - data.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(data) + 0.1 * np.eye(8))
    return torch.from_numpy(centred @ vectors / np.sqrt(values)).abs()


@called(LIBRARY, "np.linalg, least squares and rank", rows, vector)
def _fitted(x: Tensor, y: Tensor) -> Any:
    matrix = x.double().numpy().T
    solution, residuals, rank, _ = np.linalg.lstsq(matrix, y.double().numpy(), rcond=None)
    inverse = np.linalg.pinv(matrix)
    return torch.from_numpy(solution), torch.from_numpy(inverse), float(rank), residuals.sum()


@called(LIBRARY, "np.linalg, a filter's update", square, vector)
def _kalman(p: Tensor, z: Tensor) -> Any:
    cov = (p @ p.T + torch.eye(8)).numpy()
    gain = cov @ np.linalg.inv(cov + np.eye(8, dtype=np.float32))
    sign, logdet = np.linalg.slogdet(cov)
    lower = np.linalg.cholesky(cov)
    return torch.from_numpy(gain) @ z, float(sign), torch.tensor(logdet), torch.from_numpy(lower)


@case(LIBRARY, "training under torch's activation_memory_budget")
def _budget(tag: Tag) -> Any:
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.GELU())))
    tagged, x = tag(model), rows().requires_grad_()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_functorch_budget(0.3))
        loss = tagged(x).square().mean()
        loss.backward()
    return loss.detach(), x.grad, [p.grad for p in model.parameters()]


@contextlib.contextmanager
def _functorch_budget(budget: float) -> Iterator[None]:
    from torch._functorch import config

    with config.patch(activation_memory_budget=budget):
        yield


@trained(LIBRARY, "partial functions as branches, trained", rows)
def _partials(x: Tensor) -> Tensor:
    def scaled(x: Tensor, by: float) -> Tensor:
        return x.sin() * by

    double, triple = functools.partial(scaled, by=2.0), functools.partial(scaled, by=3.0)
    return torch.cond(x.sum() > 0, double, triple, (x,)).sum()
