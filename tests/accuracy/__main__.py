"""`python -m tests.accuracy`: rounding errors of compiled programs beside eager's, as a table.

python -m tests.accuracy [--device cpu|cuda] [--tier TIER] [--only WORDS] [--seeds N] [--models]

Ends with status 1 where the errors are too large. `--models` trains models of timm, which has to be
importable.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import torch

from .measure import Row, jitted, measure, summary
from .models import MODELS, measure_model
from .programs import PROGRAMS, Program

TOGETHER = 13  # programs of one compiled function


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tier", help="cpp or numba, of the CPU")
    parser.add_argument("--only", default="", help="programs whose title has all of these words")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--models", action="store_true", help="the models, not the programs")
    parser.add_argument("--all", action="store_true", help="print every row, not the worst 40")
    return parser.parse_args()


def _rows(args: argparse.Namespace) -> list[Row]:
    words = args.only.split()
    chosen = [p for p in PROGRAMS if all(word in p.title for word in words)]
    options = {"cpu_tier": args.tier} if args.tier else {}
    if args.models:
        both = itertools.product(MODELS, (False, True))
        return [measure_model(m, args.seeds, args.device, smooth, **options) for m, smooth in both]
    rows: list[Row] = []
    for _, group in itertools.groupby(chosen, key=lambda p: p.grad):
        for some in _batches(list(group)):
            rows += measure(some, args.seeds, jitted(**options), args.device)
    return rows


def _batches(programs: list[Program]) -> list[list[Program]]:
    return [programs[at : at + TOGETHER] for at in range(0, len(programs), TOGETHER)]


def main() -> int:
    """Measure, print, judge."""
    args = _arguments()
    torch.set_num_threads(min(torch.get_num_threads(), 2))  # as the test suite has it
    rows = sorted(_rows(args), key=lambda row: -row.ratio)
    shown = rows if args.all else rows[:40]
    for row in shown:
        print(
            f"{row.title:50} eager {row.eager:8.1e}  ours {row.ours:8.1e}  ratio {row.ratio:5.2f}"
        )
    result = summary(rows)
    print(f"{result.count} outputs, geomean {result.geomean:.2f}, worst {result.worst.ratio:.2f}")
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
