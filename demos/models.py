"""The models of the demos, benchmarks and end-to-end tests: plain PyTorch, knowing no jitmagic.

`fused`       relu(x*y+2).sum(-1), the function of the first page
`Classifier`  784-256-128-10, the multilayer perceptron
`CharGPT`     a character-level transformer: token + position embedding, pre-norm blocks, no tying
Data is made or ships with CPython: `digits` draws noisy prototypes, `Text` reads pydoc_data.topics.
"""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def fused(x: Tensor, y: Tensor) -> Tensor:
    """[rows, columns] float32, twice -> [rows]."""
    return torch.relu(x * y + 2).sum(-1)


class Classifier(nn.Module):
    """784 pixels -> 10 class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def digits(batches: int, batch: int = 32, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Noisy prototypes, one per class, in batches: images [batch, 784] float32, labels [batch]."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(10, 784, generator=generator)
    for _ in range(batches):
        labels = torch.randint(0, 10, (batch,), generator=generator)
        noise = torch.randn(batch, 784, generator=generator)
        yield prototypes[labels] + 2.0 * noise, labels


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention and a GELU MLP, each with a residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=-1)
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.norm1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class CharGPT(nn.Module):
    """Characters [batch, length] int64 -> scores [batch, length, vocabulary]."""

    def __init__(
        self,
        vocabulary: int,
        context: int = 64,
        layers: int = 4,
        width: int = 128,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Text:
    """The text of Python's own help topics as character ids."""

    def __init__(self, limit: int = 400_000) -> None:
        topics = pydoc_data.topics.topics
        text = "\n".join(topics[name] for name in sorted(topics))[:limit]
        self.characters = sorted(set(text))
        ids = {character: i for i, character in enumerate(self.characters)}
        self.data = torch.tensor([ids[character] for character in text])

    def batches(
        self, count: int, batch: int = 16, length: int = 64, seed: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Random windows and the same windows one character on: [batch, length] int64 each."""
        generator = torch.Generator().manual_seed(seed)
        offsets = torch.arange(length)
        for _ in range(count):
            starts = torch.randint(0, len(self.data) - length - 1, (batch, 1), generator=generator)
            yield self.data[starts + offsets], self.data[starts + offsets + 1]

    def decode(self, ids: Tensor) -> str:
        """Character ids [n] -> text."""
        return "".join(self.characters[i] for i in ids.tolist())


@torch.no_grad()
def sample(model: nn.Module, text: Text, prompt: str, count: int, seed: int = 0) -> str:
    """`count` characters after the prompt, drawn from the model; a window of `context` is kept."""
    generator = torch.Generator().manual_seed(seed)
    index = {character: i for i, character in enumerate(text.characters)}
    context = model.context
    ids = torch.tensor([index[character] for character in prompt.rjust(context)])
    device = next(model.parameters()).device
    for _ in range(count):
        scores = model(ids[-context:].unsqueeze(0).to(device))[0, -1].cpu()
        drawn = torch.multinomial(torch.softmax(scores, -1), 1, generator=generator)
        ids = torch.cat([ids, drawn])
    return text.decode(ids[context:])
