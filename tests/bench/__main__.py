"""`make bench`: side-by-side figures, a table on the terminal and JSON in bench_results/.

python -m tests.bench [--device cpu|cuda] [--only WORD] [--rounds N] [--no-cold] [--dynamic]
                      [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .cases import CASES, DYNAMIC
from .cold import measure
from .timing import Timing, interleave


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="cases whose title contains this")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-cold", action="store_true", help="skip first-call latencies")
    parser.add_argument("--dynamic", action="store_true", help="beside static: sizes as symbols")
    parser.add_argument("--json", default="bench_results/latest.json")
    return parser.parse_args()


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _show(console: Console, results: dict[str, dict[str, Timing]]) -> None:
    names = list(dict.fromkeys(name for row in results.values() for name in row))
    is_dynamic = any(DYNAMIC in row for row in results.values())
    table = Table(title="median time per call (ratio to eager)", title_justify="left")
    table.add_column("case")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("promise", justify="right")
    if is_dynamic:
        table.add_column("dynamic / static", justify="right")
    for case in CASES:
        row = results.get(case.title)
        if row is None:
            continue
        cells = [_cell(row[name]) if name in row else "" for name in names]
        table.add_row(case.title, *cells, _promise(case, row), *_dynamic(row))
    console.print(table)


def _cell(timing: Timing) -> str:
    micro = timing.seconds * 1e6
    time = f"{micro:.2f} µs" if micro < 1000 else f"{micro / 1000:.2f} ms"
    return f"{time} ({timing.ratio:.2f})"


def _promise(case: Any, row: dict[str, Timing]) -> str:
    if case.limit is None:
        return ""
    ratio = row["jitmagic"].ratio / row[case.versus].ratio
    verdict = "kept" if ratio <= case.limit else "MISSED"
    return f"{ratio:.2f} <= {case.limit} of {case.versus}: {verdict}"


def _dynamic(row: dict[str, Timing]) -> list[str]:
    if DYNAMIC not in row:
        return []
    dynamic, static = row[DYNAMIC].seconds, row["jitmagic"].seconds
    return [f"{dynamic / static:.2f} ({(dynamic - static) * 1e6:+.2f} µs)"]


def _show_cold(console: Console, cold: dict[str, dict[str, float]]) -> None:
    table = Table(title="seconds of the first call, after import torch", title_justify="left")
    for column in ("contestant", "first function", "a further function"):
        table.add_column(column, justify="right")
    for name, row in cold.items():
        table.add_row(name, f"{row['first']:.2f}", f"{row['further']:.2f}")
    console.print(table)


def main() -> None:
    arguments = _arguments()
    device = torch.device(arguments.device)
    console = Console(width=180 if not sys.stdout.isatty() else None)
    results: dict[str, dict[str, Timing]] = {}
    for case in CASES:
        if arguments.only not in case.title:
            continue
        console.print(f"measuring {case.title}", style="dim")
        with torch.set_grad_enabled(case.grad):
            contestants = case.make(device)
            if not arguments.dynamic:
                contestants.pop(DYNAMIC, None)
            results[case.title] = interleave(contestants, rounds=arguments.rounds)
        torch._dynamo.reset()
    cold = {} if arguments.no_cold else measure()
    _show(console, results)
    if cold:
        _show_cold(console, cold)
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "machine": _machine(device),
        "cases": {t: {n: asdict(v) for n, v in row.items()} for t, row in results.items()},
        "cold": cold,
    }
    path.write_text(json.dumps(record, indent=1))
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
