"""Programs to export: each with example arguments, other arguments in range, and some outside."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import _register_namedtuple

Args = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A program: `make()` is the function or module, `args(n)` its arguments at size n."""

    make: Callable[[], Any]
    args: Callable[[int], Args]
    dynamic: Any = None
    kwargs: Callable[[int], dict[str, Any]] = lambda n: {}
    example: int = 4
    others: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    trains: bool = False
    decomposes: bool = True  # torch's run_decompositions keeps all sizes


CASES: dict[str, Case] = {}


def case(args: Callable[[int], Args], **more: Any) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        is_class = isinstance(make, type)
        CASES[make.__name__.lower()] = Case(make if is_class else lambda: make, args, **more)
        return make

    return add


def rows(*sizes: int) -> Callable[[int], Args]:
    return lambda n: (torch.randn(n, *sizes),)


BATCH = {"dynamic": {"x": {0: (2, 64)}}, "others": (2, 7, 64), "refused": (1, 65)}


@case(rows(8), **BATCH)
def pointwise(x):
    return torch.sin(x) * 2 + x.exp().clamp(max=3)


@case(rows(8), **BATCH)
def in_dicts(x):
    return {"sum": x.sum(-1), "parts": [x.mean(), {"rows": x.shape[0]}], "size": 8}


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


_register_namedtuple(Pair, serialized_type_name="tests.export.Pair")


@case(rows(8), **BATCH)
def in_namedtuples(x):
    return Pair(x + 1, Pair(x * 2, x.argmax(-1)))


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


torch.export.register_dataclass(Output, serialized_type_name="tests.export.Output")


@case(rows(8), **BATCH)
def in_dataclasses(x):
    return Output(loss=x.square().mean(), logits=x.softmax(-1))


@case(lambda n: (Output(torch.randn(()), torch.randn(n, 3)),))
def takes_dataclasses(given):
    return given.logits * given.loss


@case(
    lambda n: ({"ids": torch.randint(0, 9, (n, 5)), "pair": (torch.randn(n, 5), torch.randn(5))},),
    dynamic={"batch": {"ids": {0: (2, 32)}, "pair": ({0: (2, 32)}, None)}},
    others=(2, 9),
    refused=(33,),
)
def takes_containers(batch):
    left, right = batch["pair"]
    return left * right + batch["ids"]


@case(
    rows(6),
    kwargs=lambda n: {"scale": 3, "mask": torch.rand(n, 6) > 0.5},
    dynamic={"x": {0: None}, "mask": {0: None}},
    others=(3, 11),
    refused=(1,),
)
def keywords(x, *, mask=None, scale=1):
    return torch.where(mask, x * scale, x)


@case(lambda n: (torch.randn(n, 6), torch.randn(n, 3)), dynamic=True, others=(3, 11))
def stars(*tensors):
    return torch.cat(tensors, -1)


@case(lambda n: (torch.arange(n), torch.rand(n) > 0.5, 2, 0.5, "mean", None), dynamic=None)
def kinds_of_inputs(ids, flags, factor, ratio, how, nothing):
    assert nothing is None
    made = ids * factor * flags * ratio
    return made.mean() if how == "mean" else made.sum()


@case(lambda n: (torch.randn(3, 4), n), dynamic={"n": (2, 20)}, others=(2, 9, 20), refused=(1, 21))
def dynamic_int(x, n):
    return torch.cat([x, x.new_zeros(3, n)], 1) + n, n * 2


@case(
    lambda n: (torch.randn(n, 3), torch.randn(2 * n, 3)),
    dynamic={"x": {0: None}, "y": {0: None}},
    others=(2, 9),
)
def twice_as_long(x, y):
    return torch.cat([x, x]) * y


@case(
    lambda n: (torch.randn(n, 8), torch.randn(8, n)),
    dynamic={"x": {0: (2, 40)}, "y": {1: (2, 40)}},
    others=(2, 40),
    refused=(41,),
)
def products(x, y):
    return (x @ y) @ x, y.t() - x


@case(rows(8, 6), dynamic={"x": {0: None, 1: None}}, others=(2, 9))
def reshapes(x):
    b, n = x.shape[0], x.shape[1]
    turned = x.reshape(b * n, -1).view(b, n // 2 * 2, 6)
    return turned.permute(0, 2, 1).flatten(1), torch.arange(n, device=x.device) + b


# Not size 2: torch's run_decompositions guards that x[1:] has more than one row.
@case(rows(8), **BATCH | {"others": (3, 64)})
def views_of_inputs(x):
    return x.t(), x[1:], x, x.view(-1)


@case(rows(8), **BATCH)
def writes_inputs(x):
    before = x.sum()
    view = x[:, :2]
    view.mul_(2)
    x[0] += 1
    return before, x.sum(), view


@case(rows(8), **BATCH)
def closes_over(x):
    return x @ _WEIGHT + _TABLE["bias"] + torch.tensor([1.0, 2.0, 3.0])


_WEIGHT, _TABLE = torch.randn(8, 3), {"bias": torch.randn(3)}


@case(rows(8, 3), **BATCH)
def scaled_by_size(x):
    return x / math.sqrt(x.shape[0]), x.mean(0) * x.shape[0]


@case(lambda n: (torch.randn(2, 3, n, 8),), dynamic={"x": {2: (2, 64)}}, others=(2, 33))
def attention(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


@case(lambda n: (torch.randn(6, n).t(),), **BATCH)
def other_layouts(x):
    return x.t() @ x, x.contiguous().view(-1)


@case(rows(6), **BATCH)
class Linear(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 2))

    def forward(self, x):
        return super().forward(x)


@case(rows(5), **BATCH, trains=True)
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(5), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.norm(x))


@case(lambda n: (torch.randn(n, 3, 16, 16),), **BATCH)
class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


@case(lambda n: (torch.randint(0, 20, (3, n)),), dynamic={"ids": {0: None, 1: (2, 30)}},
      others=(2, 30), refused=(31,))  # fmt: skip
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


@case(rows(4), **BATCH)
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("scratch", torch.ones(4), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        self.scratch.add_(x.sum(0))
        return x - self.mean + self.scratch


@case(lambda n: (torch.randn(n, 6, 8), torch.randn(n, 6, 8)), **BATCH | {"dynamic": {
    "x": {0: (2, 64)}, "memory": {0: (2, 64)}}})  # fmt: skip
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x, memory):
        return self.layer(x, memory)


@case(lambda n: (torch.randn(3, 5, 4),))
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 6)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 6)
        states = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            states.append(state)
        return torch.stack(states, 1), state


@dataclass
class Config:
    vocabulary: int = 30
    width: int = 16
    heads: int = 4
    layers: int = 2


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x, mask):
        b, n, width = x.shape
        q, k, v = (
            part.view(b, n, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, width))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention, self.norm1 = Attention(config), nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.width, config.width), nn.Dropout(0.1),
        )  # fmt: skip
        self.norm2 = nn.LayerNorm(config.width)

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


def _tokens(n: int) -> Args:
    return (torch.randint(0, 30, (3, n)),)


@case(
    _tokens,
    kwargs=lambda n: {"attention_mask": torch.ones(3, n, dtype=torch.int64)},
    dynamic={
        "input_ids": {0: None, 1: (2, 48)},
        "attention_mask": {0: None, 1: (2, 48)},
    },
    others=(2, 17, 48),
    refused=(49,),
)
class LanguageModel(nn.Module):
    """A decoder in the style of transformers: options, a causal mask, a dataclass of results."""

    def __init__(self):
        super().__init__()
        self.config = config = Config()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(64, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.eval()

    def forward(self, input_ids, attention_mask=None, labels=None, return_dict=True):
        n = input_ids.shape[1]
        x = self.tokens(input_ids) + self.positions(torch.arange(n, device=input_ids.device))
        mask = torch.full((n, n), torch.finfo(x.dtype).min).triu(1)[None, None]
        if attention_mask is not None:
            mask = mask + (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -1e4
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(self.norm(x))
        loss = logits.new_zeros(()) if labels is None else F.cross_entropy(logits, labels)
        return Output(loss=loss, logits=logits) if return_dict else (logits,)


@case(rows(6), **BATCH)
class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.inner.register_forward_hook(lambda module, args, result: result * 2)
        self.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x):
        return self.inner(x)


@case(rows(6), **BATCH)
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
        self.gate = nn.Parameter(torch.randn(6, 2))
        self.scales = [torch.tensor(0.5), torch.tensor(2.0)]

    def forward(self, x):
        weights = (x @ self.gate).softmax(-1)
        parts = [expert(x) * s for expert, s in zip(self.experts.values(), self.scales)]
        return sum(w[:, None] * p for w, p in zip(weights.unbind(1), parts))


@case(rows(6), **BATCH)
def half_precision(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.t()


@case(rows(6), **BATCH)
def losses(x):
    target = x.detach().argmax(-1)
    return F.cross_entropy(x, target), F.mse_loss(x, x.roll(1, 0)), F.smooth_l1_loss(x, -x)


@case(rows(6), **BATCH)
def sorts(x):
    values, places = x.topk(3, -1)
    return values.cumsum(-1), places, x.sort(0).values, x.scatter(1, places, 0.0)


@case(lambda n: (torch.randn(n, 2, 8, 8),), **BATCH)
def resizes(x):
    return F.interpolate(x, scale_factor=2, mode="bilinear"), F.pad(x, (1, 2), value=3.0)


@case(rows(6), **BATCH)
def maps_rows(x):
    return torch.vmap(lambda row: row.softmax(0) * row.sum())(x)


@case(rows(6), **BATCH)
def gradient_inside(x):
    x = x.detach().requires_grad_()
    (found,) = torch.autograd.grad((x.sin() * x).sum(), x)
    return found * 2


# Size 1 too: nothing may be specialised on it.
@case(rows(6), dynamic={"x": {0: (1, 9)}}, others=(1, 9), refused=(10,), decomposes=False)
def single_rows(x):
    return x.sum(-1) * 2


@case(lambda n: (torch.randn(n, 5, 4),), **BATCH)
class LongShortTermMemory(nn.LSTM):
    def __init__(self):
        super().__init__(4, 6, batch_first=True)

    def forward(self, x):
        return super().forward(x)


@case(lambda n: (torch.randn(4, 3), torch.randn(n, 2)), dynamic={"unread": {0: None}}, others=(7,))
def unread_arguments(x, unread):
    return x + 1 if x.dim() == 2 else unread
