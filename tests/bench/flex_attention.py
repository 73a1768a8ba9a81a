"""flex_attention, causal with ALiBi slopes, forward and backward, next to torch.compile.

python -m tests.bench.flex_attention [--length 4096] [--batch 4] [--heads 16] [--rounds 20]
                                     [--sweep] [--check]

Prints the median milliseconds of both, interleaved in one process, and their ratio, for heads of
64 and 128 numbers in bfloat16. --sweep measures the tiles of each kernel on its own; --check
compares results and gradients of both with the formula in float32.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jitmagic
from jitmagic.codegen.attention import triton as triton_attention
from jitmagic.codegen.config import AttentionConfig

Run = Callable[[], object]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def _attention(options: argparse.Namespace) -> Attention:
    slopes = torch.exp2(-8.0 * torch.arange(1, options.heads + 1, device="cuda") / options.heads)
    length = options.length
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda")

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + slopes[h] * (j - i)

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, score, mask)

    return attention


def _tensors(options: argparse.Namespace, width: int) -> list[Tensor]:
    shape = options.batch, options.heads, options.length, width
    made = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return [tensor.requires_grad_() for tensor in made]


def _training(run: Attention, given: list[Tensor], tangent: Tensor) -> Run:
    return lambda: torch.autograd.grad(run(*given), given, tangent)


def _milliseconds(run: Run, calls: int = 5) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def _interleaved(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        _milliseconds(run)
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(_milliseconds(run))
    return {name: statistics.median(found) for name, found in times.items()}


def _compare(options: argparse.Namespace, width: int) -> None:
    given = _tensors(options, width)
    tangent = torch.randn_like(given[0])
    attention = _attention(options)
    contestants = {
        "jitmagic": jitmagic.jit(attention, fullgraph=True),
        "torch.compile": torch.compile(attention, fullgraph=True),
    }
    for part in ("forward", "forward and backward"):
        runs: dict[str, Run] = {}
        for name, run in contestants.items():
            plain = [tensor.detach() for tensor in given]
            infers = part == "forward"
            runs[name] = (
                (lambda run=run, plain=plain: run(*plain))
                if infers
                else _training(run, given, tangent)
            )
        found = _interleaved(runs, options.rounds)
        ratio = found["jitmagic"] / found["torch.compile"]
        print(
            f"width {width}, {part}: jitmagic {found['jitmagic']:.3f} ms, "
            f"torch.compile {found['torch.compile']:.3f} ms, ratio {ratio:.3f}"
        )
    if options.check:
        _check(contestants, given, tangent, options)


def _check(
    contestants: Mapping[str, Attention],
    given: list[Tensor],
    tangent: Tensor,
    options: argparse.Namespace,
) -> None:
    """Print the largest differences from the formula in float32, of one batch and head."""
    wide = [tensor.detach()[:1, :1].float().requires_grad_() for tensor in given]
    query, key, value = wide
    slope = torch.exp2(torch.tensor(-8.0 / options.heads, device="cuda"))
    i = torch.arange(options.length, device="cuda")
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + slope * (i - i[:, None])
    out = torch.softmax(scores.masked_fill(i[:, None] < i, -float("inf")), -1) @ value
    wanted = [out, *torch.autograd.grad(out, wide, tangent[:1, :1].float())]
    for name, run in contestants.items():
        made = run(*given)
        found = [made, *torch.autograd.grad(made, given, tangent)]
        pairs = zip(found, wanted, strict=True)
        errors = [((a[:1, :1] - b).abs().max() / b.abs().max()).item() for a, b in pairs]
        print(
            f"  {name}: relative errors of out, dq, dk, dv: "
            + ", ".join(f"{e:.1e}" for e in errors)
        )


def _sweep(options: argparse.Namespace, width: int) -> None:
    """Time each kernel with each of its tiles, the others with their defaults."""
    attention, given = _attention(options), _tensors(options, width)
    tangent, tile_of = torch.randn_like(given[0]), triton_attention.tile_of
    sizes = [(128, 128), (128, 64), (64, 128), (64, 64)]
    for kind in ("forward", "query", "keys"):
        lines = []
        for rows, columns in sizes:
            for warps in (4, 8):
                for stages in (2, 3):
                    config = AttentionConfig(rows, columns, warps, stages)

                    def chosen(kernel, given_config, config=config, kind=kind):  # type: ignore[no-untyped-def]
                        return tile_of(kernel, config if kernel.kind == kind else given_config)

                    with mock.patch.object(triton_attention, "tile_of", chosen):
                        try:
                            run = jitmagic.jit(attention, fullgraph=True)
                            once = _training(run, given, tangent)
                            time = min(_milliseconds(once, 3) for _ in range(3))
                        except Exception as error:  # does not fit, or does not compile
                            print(f"  {kind} {config.label}: {str(error)[:80]}")
                            continue
                    lines.append((time, config.label))
        print(f"width {width}, {kind}: whole step in ms with these tiles of this kernel")
        for time, label in sorted(lines)[:6]:
            print(f"  {time:.3f} {label}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.flex_attention")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    options = parser.parse_args()
    torch.manual_seed(0)
    for width in options.widths:
        _compare(options, width)
        if options.sweep:
            _sweep(options, width)


if __name__ == "__main__":
    main()
