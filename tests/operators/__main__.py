"""python -m tests.operators: the sweep, or one shard of it; a line for each difference."""

from __future__ import annotations

import argparse
import sys
import warnings

import torch

import jitmagic

from .compare import examine
from .resized import resized_samples
from .sweep import sweep, work
from .transformed import transformed_samples
from .trials import OPERATORS, WAYS, name_of, trials
from .whole import backend_of, whole_graphs


def main() -> int:
    options = _options()
    if options.edges:
        return (work(options) or 0) if options.worker else sweep(options)
    if options.sizes:
        return resized_samples(options)
    if options.func:
        return transformed_samples(options)
    return whole_graphs(options) if options.whole else _samples(options)


def _samples(options: argparse.Namespace) -> int:
    warnings.filterwarnings("ignore")
    count, found = 0, 0
    shard, of = map(int, options.shard.split("/"))
    for op in OPERATORS[shard::of]:
        if not name_of(op).startswith(options.only):
            continue
        for way in options.ways.split(","):
            for name in options.dtypes.split(",") if way != "errors" else ["float32"]:
                dtype = getattr(torch, name)
                for trial in trials(op, way, dtype, options.samples, options.device):
                    told = examine(trial, backend_of(options.tier))
                    jitmagic.reset()
                    count += 1
                    if told is not None:
                        found += 1
                        print(" ".join(told.split())[:400], flush=True)
    print(f"{count} trials, {found} differences")
    return 1 if found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.operators")
    parser.add_argument("--only", default="", help="operators whose names begin so")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--dtypes", default="float32,int64,bfloat16,complex64")
    parser.add_argument("--samples", type=int, default=4, help="at most, of each dtype and way")
    parser.add_argument("--edges", action="store_true", help="arguments at their edges instead")
    parser.add_argument("--whole", action="store_true", help="how many operators are one graph")
    parser.add_argument("--func", action="store_true", help="under vmap, grad and jvp instead")
    parser.add_argument("--sizes", action="store_true", help="each sample again with another size")
    parser.add_argument("--json", default="", help="of --whole: a file for the reasons")
    parser.add_argument(
        "--seconds", type=float, help="of --whole, --func: begin no operator after these"
    )
    parser.add_argument(
        "--tier",
        default="cpp",
        help="of --edges: one of tests/fuzz/tiers.py; else cpp, or aten: no kernels",
    )
    parser.add_argument("--sample", type=int, help="of --edges: so many cases, spread over all")
    parser.add_argument("--seed", type=int, default=12, help="of --sample: which of them")
    parser.add_argument("--jobs", type=int, default=1, help="of --edges: processes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shard", default="0/1", help="K/N: every N-th operator from the K-th on")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
