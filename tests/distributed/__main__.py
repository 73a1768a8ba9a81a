"""`python -m tests.distributed` runs the programs and prints what each was captured as."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .corpus import load
from .runner import Outcome, run_all

# mixed: jitmagic on rank 0, eager on the other; autocast: jitmagic, under autocast to bfloat16;
# joined: jitmagic, with small collectives joined
SYSTEMS = ("jitmagic", "torch", "mixed", "autocast", "joined")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.distributed")
    parser.add_argument("--system", nargs="+", default=["jitmagic"], choices=SYSTEMS)
    parser.add_argument("--only", default="", help="programs whose title contains this")
    parser.add_argument("--seconds", type=float, default=60, help="longest time of a program")
    parser.add_argument("--table", type=Path, help="write the outcomes to this file, as Markdown")
    return parser.parse_args()


def _counts(outcome: Outcome) -> str:
    eager = f", {outcome.eager} eager" if outcome.eager else ""
    return f"{outcome.graphs}/{outcome.breaks}{eager}" + (" wrong" if outcome.wrong else "")


def _print(outcome: Outcome) -> None:
    verdict = "WRONG" if outcome.wrong else "right"
    print(f"{outcome.title}: {verdict}, {_counts(outcome)}, {outcome.seconds:.1f} s", flush=True)
    for text in (outcome.wrong, outcome.reordered, *outcome.why):
        if text:
            print("    " + text.replace("\n", "\n    "), flush=True)


def _table(titles: list[str], found: dict[str, dict[str, Outcome]]) -> str:
    """Return graphs and breaks under each system, and the reasons under the first."""
    lines = ["| program |" + "".join(f" {system} |" for system in found) + " reasons |"]
    lines.append("|---|" + "---|" * len(found) + "---|")
    for title in titles:
        outcomes = [of_system[title] for of_system in found.values()]
        reasons = dict.fromkeys(reason.partition(" @ ")[0] for reason in outcomes[0].why)
        cells = [title, *map(_counts, outcomes), "; ".join(reasons)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    arguments = _arguments()
    titles = [title for title in load() if arguments.only in title]
    found: dict[str, dict[str, Outcome]] = {system: {} for system in arguments.system}
    for system in arguments.system:
        print(f"-- {system}")
        for outcome in run_all(titles, system, arguments.seconds):
            found[system][outcome.title] = outcome
            _print(outcome)
        wrong = sum(bool(outcome.wrong) for outcome in found[system].values())
        print(f"{len(titles)} programs, {wrong} wrong")
    if arguments.table:
        arguments.table.write_text(_table(titles, found))
    return int(any(outcome.wrong for one in found.values() for outcome in one.values()))


if __name__ == "__main__":
    sys.exit(main())
