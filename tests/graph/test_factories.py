"""Shape rules of factories and draws agree with the kernels, or give None."""

from __future__ import annotations

import torch

from jitmagic.graph.operators import factories
from jitmagic.graph.operators.shape_rules import SHAPE_RULES
from jitmagic.graph.operators.shapes import infer
from jitmagic.graph.operators.target_traits import makes_new

from ..processes import run_forked

aten = torch.ops.aten
flat = torch.rand(3, 4)
turned = flat.t()
FLOATS = (None, torch.float16, torch.bfloat16, torch.float32, torch.float64)
DISTRIBUTIONS = {  # legal and illegal numbers
    "normal": ((0.0, 2.0), (0.0, 0.0), (0.0, -1.0)),
    "log_normal": ((0.0, 2.0), (0.0, 0.0), (1.0, -1.0)),
    "exponential": ((2.0,), (0.0,), (-1.0,)),
    "cauchy": ((0.0, 1.0), (0.0, 0.0)),
    "geometric": ((0.5,), (0.0,), (1.0,), (1.5,)),
}
FACTORIES = [
    *((op, args) for op in (aten.rand.default, aten.randn.default)
      for args in (([],), ([3],), ([2, 0],), ([2, 3, 4],), ([-1],))),
    *((aten.normal.float_float, (0.0, std, [2, 3])) for std in (1.0, 0.0, -1.0)),
    *((aten.randint.default, (high, [2, 3])) for high in (5, 1, 0, -2, 1 << 40)),
    *((aten.randint.low, (low, high, [4])) for low, high in ((-3, 5), (2, 2), (3, 1))),
    *((aten.scalar_tensor.default, (value,)) for value in (0.5, 2, True)),
    *((aten.arange.default, (n,)) for n in (3.0, 0.5, -1.0, float("nan"))),
    *((aten.arange.start, (low, 7)) for low in (0, 2.5, 9)),
    *((aten.arange.start_step, (low, 7, 2)) for low in (0, 2.5, 9)),
    *((aten.randperm.default, (n,)) for n in (0, 1, 7, -1)),
    *((aten.eye.default, (n,)) for n in (0, 3, -1)),
    *((aten.eye.m, (n, 4)) for n in (0, 3, -1)),
    *((op, (0.0, end, steps)) for op in (aten.linspace.default, aten.logspace.default)
      for end in (1, 2.5) for steps in (0, 1, 5, -1)),
    *((getattr(aten, f"{name}_window").default, (n,))
      for name in ("hann", "hamming", "blackman", "bartlett", "kaiser") for n in (0, 1, 6, -1)),
    *((getattr(aten, f"{name}_window").periodic, (6, False))
      for name in ("hann", "hamming", "blackman", "bartlett", "kaiser")),
    *((op, (n, 0.5)) for op in (aten.fft_fftfreq.default, aten.fft_rfftfreq.default)
      for n in (1, 2, 7, 0, -1)),
    *((op, (rows, columns, offset)) for op in (aten.tril_indices.default, aten.triu_indices.default)
      for rows in (0, 3, 5) for columns in (0, 2, 6) for offset in (-4, -1, 0, 2, 7)),
]  # fmt: skip
FROM_TENSORS = [
    *((aten.poisson.default, (x,)) for x in (flat, turned, flat.long(), flat.half())),
    *((aten.randint_like.default, (x, high)) for x in (flat, turned, flat.long(), flat.bool())
      for high in (4, 0, 1 << 30)),
    *((aten.randint_like.low_dtype, (flat, low, 4)) for low in (-2, 4, 9)),
    *((aten.normal.Tensor_float, (x, std)) for x in (flat, turned) for std in (1.0, -1.0)),
    *((aten.normal.float_Tensor, (0.5, x)) for x in (flat, turned, flat.double())),
    *((aten.normal.Tensor_Tensor, (flat, x)) for x in (flat, flat[:1], flat.double())),
    *((aten.multinomial.default, (x, n, again)) for x in (flat, flat[0], flat[None], flat.long())
      for n in (0, 1, 4, 5) for again in (False, True)),
    *((aten.rrelu_with_noise.default, (x, torch.empty(shape), low, 0.3, training))
      for x in (flat, turned) for shape in ((3, 4), (4, 3), (3,)) for low in (0.1, 0.9)
      for training in (False, True)),
    *((aten.repeat.default, (x, times)) for x in (flat, turned, flat[0, 0], flat.long())
      for times in ([2, 3], [2, 1, 0], [2], [2, -1], [])),
    *((aten.diag_embed.default, (x, offset)) for x in (flat, turned, flat[0], flat[0, 0])
      for offset in (-1, 0, 2)),
    (aten.slice_backward.default, (flat, [3, 9], 1, 0, 8, 2)),
    (aten.slice_backward.default, (turned, [9, 3], 0, 5, 9, 1)),
    (aten.select_backward.default, (flat[0], [3, 4], 0, -1)),
    (aten.diagonal_backward.default, (flat[0, :3], [3, 4], 0, 0, 1)),
    *((getattr(aten, f"{name}_").default, (x.clone(), *numbers))
      for name, several in DISTRIBUTIONS.items() for numbers in several
      for x in (flat, turned, flat.half(), flat.long())),
    *((getattr(aten, "normal_functional" if name == "normal" else name).default, (x, *numbers))
      for name, several in DISTRIBUTIONS.items() for numbers in several
      for x in (flat, turned, flat.long())),
    *((aten.index.Tensor, (flat.view(3, 2, 2), indices)) for indices in (
        [None, torch.tensor([0, 1, 1])], [None, None, torch.tensor([[0, 1], [1, 1]])],
        [None, torch.tensor([0, 1]), torch.tensor([[1], [0]])],
        [torch.tensor([0, 1]), None, torch.tensor([1, 0])])),
    *((aten.scatter.value, (flat, dim, torch.zeros(shape, dtype=torch.long), 1.0))
      for dim in (0, 1, 2) for shape in ((3, 4), (2, 2), (3, 5), (2, 4))),
]  # fmt: skip


def _meta(part):
    if isinstance(part, torch.Tensor):
        return torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device="meta")
    return [_meta(item) for item in part] if isinstance(part, list) else part


def _agrees(op, args, options):
    """Return whether a rule answered; its answer must be the kernel's."""
    try:
        expected = op(*args, **options)
    except (RuntimeError, IndexError, ValueError):
        expected = None
    meta = {**options, "device": torch.device("meta")} if "device" in options else options
    try:
        got = infer(op, tuple(_meta(part) for part in args), meta)
    except (RuntimeError, IndexError):
        got = None
    if got is None:
        return False
    assert expected is not None, "eager refuses it"
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert got.stride() == expected.stride() or not got.numel()
    return True


def test_factory_rules_agree_with_kernels():
    answered = set()
    for op, args in FACTORIES:
        for dtype in (*FLOATS, torch.int64, torch.int32, torch.complex64):
            options = {"dtype": dtype, "device": torch.device("cpu"), "pin_memory": False}
            if _agrees(op, args, options):
                answered.add(op)
    assert answered == {op for op, _ in FACTORIES}


def test_rules_of_draws_from_tensors_agree_with_kernels():
    answered = {op for op, args in FROM_TENSORS if _agrees(op, args, {})}
    assert answered == {op for op, _ in FROM_TENSORS}


def test_every_rule_is_tried():
    tried = {op for op, _ in (*FACTORIES, *FROM_TENSORS)}
    drawn = {aten.rand.generator, aten.randn.generator}  # the same rule
    here = {
        op
        for op, rule in SHAPE_RULES.load_all().items()
        if rule.run.__module__ == factories.__name__
    }
    assert here <= tried | drawn


def test_default_dtype_decides():
    torch.set_default_dtype(torch.float64)
    try:
        made = infer(aten.randn.default, ([2],), {"device": torch.device("meta")})
    finally:
        torch.set_default_dtype(torch.float32)
    assert made.dtype is torch.float64


PROGRAMS = """
import sys
import torch
import torch.nn.functional as nnf
import jitmagic

HEAVY = ("sympy", "torch._dynamo", "torch._inductor")
brought = [name for name in HEAVY if name in sys.modules]
x = torch.rand(4, 6)
rows = torch.tensor([0, 2, 2])
image = torch.rand(2, 3, 8, 8)
PROGRAMS = {
    "randn": lambda x: x + torch.randn(4, 6),
    "rand": lambda x: x + torch.rand(4, 6) + torch.rand_like(x) + torch.randn_like(x),
    "randint": lambda x: x + torch.randint(0, 5, (4, 6)) + torch.randint_like(x, 5),
    "randperm": lambda x: x[torch.randperm(4)],
    "normal": lambda x: torch.normal(x, 1.0) + torch.normal(0.0, 1.0, (4, 6)),
    "normals": lambda x: torch.normal(x, x) + torch.normal(0.0, x),
    "bernoulli": lambda x: torch.bernoulli(x) + torch.empty_like(x).bernoulli_(0.3),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 2) + x[:, :2],
    "poisson": lambda x: torch.poisson(x) + x,
    "in place": lambda x: x + torch.empty(4, 6).uniform_() + torch.empty(4, 6).normal_(),
    "exponential": lambda x: x + torch.empty(4, 6).exponential_() + torch.empty(6).cauchy_(),
    "geometric": lambda x: x + torch.empty(4, 6).geometric_(0.5) + torch.empty(6).log_normal_(),
    "random": lambda x: x + torch.empty(4, 6).random_(0, 5),
    "dropout": lambda x: nnf.dropout(x, 0.5) + nnf.alpha_dropout(x, 0.5, True),
    "gumbel": lambda x: nnf.gumbel_softmax(x),
    "rrelu": lambda x: nnf.rrelu(x, training=True),
    "factories": lambda x: x + torch.zeros(4, 6) + torch.full((6,), 2.0) + torch.arange(6),
    "spaced": lambda x: x + torch.linspace(0, 1, 6) + torch.eye(4, 6) + torch.hann_window(6),
    "triangles": lambda x: x[torch.tril_indices(3, 3)[0]] + x[:1].repeat(6, 1),
    "indexing": lambda x: x[1:, ::2].sum() + x[0, 0] + x[:, [0, 2, 3]].sum() + x[[0, 2, 2]].sum(),
    "masks": lambda x: torch.where(x > 0, x, 0.0).masked_fill(x > 1, 2.0),
    "norms": lambda x: nnf.layer_norm(x, (6,)) + nnf.group_norm(x, 2) + nnf.normalize(x) + x.norm(),
    "batch norm": lambda x: nnf.batch_norm(x, None, None, training=True),
    "attention": lambda x: nnf.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True),
    "conv": lambda x: nnf.max_pool2d(nnf.conv2d(x[None, None], torch.ones(1, 1, 3, 3)), 2),
    "losses": lambda x: nnf.cross_entropy(x, torch.zeros(4, dtype=torch.long)) + nnf.mse_loss(x, x),
    "activations": lambda x: nnf.gelu(x) + nnf.silu(x) + nnf.softplus(x) + nnf.log_softmax(x, -1),
}


def tell(name):
    found = [module for module in HEAVY if module in sys.modules and module not in brought]
    if found:
        raise SystemExit(f"{name} imports {found}")


for name, program in PROGRAMS.items():
    jitmagic.jit(program, options={"cpu_tier": "aten"})(x)
    tell(name)
    leaf = x.clone().requires_grad_()
    made = jitmagic.jit(program, options={"cpu_tier": "aten"})(leaf)
    if made.requires_grad:
        made.sum().backward()
    tell(name + ", gradient")
print("light", len(PROGRAMS))
"""


def test_common_programs_import_neither_sympy_nor_dynamo():
    done = run_forked(PROGRAMS, JITMAGIC_VERIFY="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("light")


def test_factories_read_no_numbers():
    """Told by the schemas, as torch has them."""
    made = "zeros ones full empty arange eye hann_window new_zeros new_full empty_like ones_like"
    read = "rand randn_like normal_ to _to_copy clone detach tensor linspace sparse_coo_tensor add"
    assert all(map(makes_new, made.split()))
    assert not any(map(makes_new, read.split()))
    assert makes_new(torch.zeros)
    assert not makes_new(torch.rand_like)
