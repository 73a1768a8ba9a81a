"""`python -m tests.accuracy`: rounding errors of compiled programs beside eager's, as a table.

python -m tests.accuracy [--device cpu|cuda] [--tier TIER] [--only WORDS] [--seeds N] [--models]
python -m tests.accuracy --suite FOLDER [--only REGEX] [--seeds N] [--modes infer,train]

Ends with status 1 where the errors are too large. `--models` trains models of timm, which has to be
importable; `--suite` runs the models of a folder like shared/models, each line as it is measured.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys

import torch

from .measure import Row, jitted, mean_row, measure, summary
from .models import MODELS, measure_model
from .programs import PROGRAMS, Program
from .suite import measure_case

TOGETHER = 13  # programs of one compiled function


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tier", help="cpp or numba, of the CPU")
    parser.add_argument("--only", default="", help="programs whose title has all of these words")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--models", action="store_true", help="the models, not the programs")
    parser.add_argument("--suite", help="a folder of models")
    parser.add_argument("--modes", default="infer,train", help="what of its models is run")
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


def _rows_of_suite(args: argparse.Namespace) -> list[Row]:
    """A row that is said to be bad at one seed may be chance: the geometric mean of all counts."""
    os.environ["JITMAGIC_KEEP"] = "compiled"
    sys.path.insert(0, args.suite)
    harness, suite = importlib.import_module("harness"), importlib.import_module("suite")
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name, mode in itertools.product(suite.names(args.only or "."), args.modes.split(",")):
        runs = [measure_case(harness, name, mode, 1337 + seed) for seed in range(args.seeds)]
        if isinstance(runs[0], str):
            print(f"{name}, {mode}: {runs[0]}", flush=True)
            continue
        for each in zip(*runs, strict=True):
            rows.append(mean_row(each))
            _show(rows[-1])
    return rows


def _show(row: Row) -> None:
    errors = f"eager {row.eager:8.1e}  ours {row.ours:8.1e}  ratio {row.ratio:5.2f}"
    print(f"{row.title:50} {errors}", flush=True)


def _batches(programs: list[Program]) -> list[list[Program]]:
    return [programs[at : at + TOGETHER] for at in range(0, len(programs), TOGETHER)]


def main() -> int:
    """Measure, print, judge."""
    args = _arguments()
    torch.set_num_threads(min(torch.get_num_threads(), 2))  # as the test suite has it
    measured = _rows_of_suite(args) if args.suite else _rows(args)
    rows = sorted(measured, key=lambda row: -row.ratio)
    shown = rows if args.all else rows[:40]
    for row in shown:
        _show(row)
    result = summary(rows)
    print(f"{result.count} outputs, geomean {result.geomean:.2f}, worst {result.worst.ratio:.2f}")
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
