"""`make ecosystem`: what people do with libraries around torch, eager beside jitmagic.

python -m tests.ecosystem [--library NAME ...] [--only WORD] [--backend B] [--no-rival]

A table at the end and JSON in bench_results/. Ends with 1 where an answer is wrong, a library is
missing, its process died, or a case breaks that torch.compile captures whole.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.workers import Pool, serve

from .case import LIBRARIES, load
from .examine import Row, examine
from .systems import Captured

_ANSWER = "@answer "  # begins the line in which a worker answers; libraries print too
_TITLES = "titles"  # the task that asks for the cases
_LONGEST = 900  # seconds that a case may take under all systems: else it hangs
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "USE_HUB_KERNELS": "0"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make ecosystem")
    parser.add_argument("--library", nargs="*", default=LIBRARIES, choices=LIBRARIES)
    parser.add_argument("--only", default="", help="cases whose title contains this")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--no-rival", action="store_true", help="do not run torch.compile beside")
    parser.add_argument("--json", default="bench_results/ecosystem.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(arguments: argparse.Namespace) -> None:
    """A worker's side: it is asked for the titles of a library's cases, or to run one."""
    cases = {case.title: case for case in load(arguments.worker)}

    def handle(task: str) -> None:
        if task == _TITLES:
            answer = [title for title in cases if arguments.only in title]
        else:
            signal.alarm(_LONGEST)
            answer = asdict(examine(cases[task], arguments.backend, not arguments.no_rival))
        print("\n" + _ANSWER + json.dumps(answer), flush=True)

    serve(handle)


def _rows(library: str) -> Iterator[Row]:
    """The results of a library, in a process of its own; of a case at which it died, a row too."""
    command = [sys.executable, "-m", "tests.ecosystem", "--worker", library, *sys.argv[1:]]
    pool = Pool(command, 1)
    pool.add(_TITLES)
    for outcome in pool.outcomes():
        if outcome.died is not None:
            yield Row(library, outcome.task, f"the process died with {outcome.died}")
            continue
        text = next(line for line in outcome.lines if line.startswith(_ANSWER))
        answer = json.loads(text.removeprefix(_ANSWER))
        if outcome.task == _TITLES:
            for title in answer:
                pool.add(title)
        else:
            yield Row.read(answer)


def _counts(captured: Captured) -> str:
    return f"{captured.graphs}/{captured.breaks}"


def _table(rows: list[Row]) -> Table:
    table = Table(title="graphs and breaks, of jitmagic and torch.compile", title_justify="left")
    for column in ("library", "case", "right", "ours", "theirs", "s"):
        table.add_column(column)
    table.add_column("why", overflow="fold")
    for row in rows:
        behind = " BEHIND" if row.behind else ""
        table.add_row(
            row.library,
            row.title,
            "NO" if row.wrong else "yes",
            _counts(row.ours) + behind,
            _counts(row.theirs) if row.theirs else "",
            f"{row.seconds:.0f}",
            "\n".join(row.ours.why),
        )
    return table


def main() -> int:
    arguments = _arguments()
    os.environ.update(_OFFLINE)
    if arguments.worker:
        _work(arguments)
        return 0
    console = Console(width=180 if not sys.stdout.isatty() else None)
    rows = []
    for library in arguments.library:
        console.print(f"running {library}", style="dim")
        for row in _rows(library):
            rows.append(row)
            right = "WRONG" if row.wrong else "right"
            console.print(f"  {row.title}: {right}, {_counts(row.ours)}", style="dim", markup=False)
    console.print(_table(rows))
    for row in rows:
        if row.wrong:
            console.print(f"{row.library}, {row.title}:\n{row.wrong}", markup=False)
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    console.print(f"written to {path}")
    return int(any(row.wrong or row.behind for row in rows))


if __name__ == "__main__":
    sys.exit(main())
