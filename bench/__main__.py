"""``python -m bench [NAME ...]``: ask the questions, print a table for people and append JSON lines for machines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench import harness


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benches named on the command line, all of them when none is."""
    known = harness.names()
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure accelbus side by side with what it builds on.")
    parser.add_argument("name", nargs="*", help=f"one of: {', '.join(known)}; all of them when none is given")
    parser.add_argument("--repeats", type=int, help="fresh interpreters per subject")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--only", default="", metavar="TEXT", help="only subjects with this in their name")
    parser.add_argument("--out", type=Path, default=Path("build/bench.jsonl"), help="JSON lines are appended here (default: %(default)s)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.name if name not in known]:
        parser.error(f"unknown bench {unknown[0]!r} (known: {', '.join(known)})")
    machine = harness.machine()
    print(f"{machine.cpu}, {machine.cores} cores, load {machine.load:.1f}, Python {machine.python}, {machine.commit}")
    print(", ".join(f"{package} {version}" for package, version in machine.versions.items()))
    for name in options.name or known:
        results = harness.compare(
            name,
            repeats=options.repeats,
            quick=options.quick,
            only=options.only,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        _print_table(harness.load(name), results)
        _append(options.out, machine, results)
    print(f"\nraw numbers: {options.out}")
    return 0


def _print_table(bench: harness.Bench, results: Sequence[harness.Result]) -> None:
    print(f"\n{bench.question}")
    if bench.report is not None:
        print(bench.report(results))
        return
    width = max((len(result.subject) for result in results), default=0)
    for result in results:
        for measure in result.numbers[0]:
            low, middle, high = harness.spread(result.of(measure))
            print(f"  {result.subject:<{width}}  {measure:<14} {_human(middle):>12}   ({_human(low)} … {_human(high)})")
    for subject, measures in harness.ratios(bench, results).items():
        for measure, values in measures.items():
            low, middle, high = harness.spread(values)
            print(f"  {subject:<{width}}  {measure:<14} {middle:>11.2f}x   ({low:.2f} … {high:.2f}) of {bench.baselines[subject]}")


def _human(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _append(path: Path, machine: harness.Machine, results: Sequence[harness.Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lines:
        for result in results:
            lines.write(msgspec.json.encode({"machine": machine, **msgspec.to_builtins(result)}) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
