"""ATen calls among kernels for all sizes: their arguments and layouts are filled in per call."""

from __future__ import annotations

import pytest
import torch

from .sized import EDGES
from .test_template import compiled

F = torch.nn.functional
torch.manual_seed(0)
W1, B1, W2, B2 = (
    torch.randn(48, 24),
    torch.randn(48),
    torch.randn(24, 48),
    torch.randn(24),
)
KERNEL, TABLE = torch.randn(5, 3, 3, 3), torch.randn(50, 24)
VALUES = [(a, b) for a, b in zip(EDGES, reversed(EDGES), strict=True)] + [(100, 130), (7, 3)]


def _rows(a, b):
    torch.manual_seed(a * 1000 + b)
    return (torch.randn(a, b, 24),)


def _square(a, b):
    torch.manual_seed(a * 1000 + b)
    return torch.randn(a, b, 8), torch.randn(a, b, 8)


def _image(a, b):
    torch.manual_seed(a * 1000 + b)
    return (torch.randn(2, 3, a + 4, b + 4),)


def _ids(a, b):
    torch.manual_seed(a * 1000 + b)
    return (torch.randint(0, 50, (a, b)),)


def _mlp(x):
    return F.linear(F.gelu(F.linear(x, W1, B1)), W2, B2) + x


def _attention(x, y):
    weights = torch.softmax(x @ y.transpose(1, 2) / 8**0.5, -1)
    return weights @ y


PROGRAMS = {
    "mlp": (_mlp, _rows),
    "mm": (lambda x: (x.reshape(-1, 24) @ W1.t()).relu(), _rows),
    "attention": (_attention, _square),
    "bmm": (lambda x, y: torch.bmm(x, y.transpose(1, 2)) * 2, _square),
    "embedding": (lambda x: F.embedding(x, TABLE).sum(1) * 2, _ids),
    "gather": (lambda x: TABLE[x] + 1, _ids),
    "cumsum": (lambda x: x.relu().cumsum(1) * 2, _rows),
    "sort": (lambda x: (x * 2).sort(1)[0] + 1, _rows),
    "conv": (lambda x: F.conv2d(x, KERNEL).relu(), _image),
    "flip": (lambda x: x.flip(1) + x, _rows),
    "roll": (lambda x: x.roll(1, 1) + x, _rows),
    "padded": (lambda x: F.pad(x, (1, 2)).relu(), _rows),
    "expanded": (lambda x: (x[:, :1] * 2).expand(x.shape[0], x.shape[1], 24) + x, _rows),
    "last": (lambda x: x[:, -1] * 2, _rows),
    "halves": (lambda x: x.bfloat16().softmax(-1).float(), _rows),
    "maximum": (lambda x: x.max(1)[0] + x.max(1)[1], _rows),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_set_of_kernels_is_right_for_every_size(name):
    fn, make = PROGRAMS[name]
    template = compiled(fn, make, (9, 30))
    held = 0
    for values in VALUES:
        if not template.holds(values):
            continue
        held += 1
        inputs = make(*values)
        (made,) = template.plan.at(values)(*inputs)
        rtol = torch.finfo(torch.bfloat16).eps if name == "halves" else 1e-4
        torch.testing.assert_close(made, fn(*inputs), rtol=rtol, atol=1e-4)
    assert held >= len(VALUES) - 2, str(template.predicates)
