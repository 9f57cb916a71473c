"""Measure subjects side by side: each repeat of each in a fresh interpreter, interleaved, so that drift of the machine hits all alike.

A bench file defines one `Bench`. A subject is a function without state that measures once and returns numbers; what it prints is
kept off stdout, on which the child hands its numbers to the parent.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

Numbers = dict[str, float]
"""{measure: value}; times in ns, rates per second."""

ROOT = Path(__file__).resolve().parent.parent
SUBJECT_SECONDS = 300.0
PACKAGES = (
    "accelbus", "msgspec", "pyzmq", "anyio", "torch", "google-crc32c",
    "tensorboard", "wandb", "trackio", "mlflow", "comet_ml", "aim", "clearml", "swanlab", "dvclive",
)  # fmt: skip


class Bench(msgspec.Struct, frozen=True):
    """One question: what is measured, beside what."""

    question: str
    subjects: dict[str, Callable[[bool], Numbers]]
    """{name: function(quick) -> numbers}"""
    baselines: dict[str, str] = {}
    """{subject: the subject that its numbers are divided by}"""
    floors: dict[str, str] = {}
    """{subject: the subject whose median is the cost of measuring; net ratios are without it, on both sides}"""
    ratio_of: tuple[str, ...] = ("p50",)
    """Measures for which the ratio is shown."""
    repeats: int = 7
    quick_repeats: int = 2
    subject_seconds: float = SUBJECT_SECONDS
    """How long a subject may take; then something hangs."""
    report: Callable[[Sequence[Result]], str] | None = None
    """Returns what people are shown instead of the table of all measures."""


class Result(msgspec.Struct):
    """All repeats of one subject, in the order in which they ran."""

    bench: str
    subject: str
    numbers: list[Numbers]

    def of(self, measure: str) -> list[float]:
        """Return *measure* of every repeat."""
        return [numbers[measure] for numbers in self.numbers]


class Machine(msgspec.Struct):
    """Where and with what it was measured."""

    cpu: str
    cores: int
    load: float
    kernel: str
    python: str
    versions: dict[str, str]
    commit: str
    time: str


def percentiles(durations: Sequence[int] | array[int]) -> Numbers:
    """Return min, median, 99th percentile and worst of *durations*."""
    ordered = sorted(durations)
    last = len(ordered) - 1
    return {
        "min": float(ordered[0]),
        "p50": float(ordered[last // 2]),
        "p99": float(ordered[round(last * 0.99)]),
        "worst": float(ordered[last]),
        "n": float(len(ordered)),
    }


def compare(
    name: str, *, repeats: int | None = None, quick: bool = False, only: str = "", progress: Callable[[str], None] = print
) -> list[Result]:
    """Run every subject of bench *name* *repeats* times, interleaved; every other round backwards.

    Args:
        name: of the bench.
        repeats: fresh interpreters per subject; not given: as the bench has it.
        quick: small numbers.
        only: part of the names of the subjects to be run.
        progress: is told when a round is over.
    """
    bench = load(name)
    rounds = (bench.quick_repeats if quick else bench.repeats) if repeats is None else repeats
    results = {subject: Result(name, subject, []) for subject in bench.subjects if only in subject}
    for turn in range(rounds):
        for subject in list(results)[:: 1 if turn % 2 == 0 else -1]:
            results[subject].numbers.append(_in_fresh_interpreter(name, subject, quick=quick, seconds=bench.subject_seconds))
        progress(f"{name}: round {turn + 1} of {rounds}")
    return list(results.values())


def ratios(bench: Bench, results: Sequence[Result]) -> dict[str, dict[str, list[float]]]:
    """Return {subject: {measure: ratio to its baseline, round by round}}, as measured and net of the floor."""
    by_subject = {result.subject: result for result in results}

    def divided(subject: str, measure: str, floor: float) -> list[float]:
        pairs = zip(by_subject[subject].of(measure), by_subject[bench.baselines[subject]].of(measure), strict=True)
        return [(mine - floor) / (base - floor) for mine, base in pairs]

    found: dict[str, dict[str, list[float]]] = {}
    for subject, baseline in bench.baselines.items():
        if not {subject, baseline} <= by_subject.keys():
            continue
        found[subject] = {measure: divided(subject, measure, 0.0) for measure in bench.ratio_of}
        if subject in bench.floors:
            floor = statistics.median(by_subject[bench.floors[subject]].of("p50"))
            found[subject] |= {f"{measure} net": divided(subject, measure, floor) for measure in bench.ratio_of}
    return found


def load(name: str) -> Bench:
    """Return the `Bench` of ``bench/bench_<name>.py``."""
    found = importlib.import_module(f"bench.bench_{name}").BENCH
    assert isinstance(found, Bench)
    return found


def names() -> list[str]:
    """Return the benches that there are."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def machine() -> Machine:
    """Describe this machine and the versions in this environment."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        load=os.getloadavg()[0],
        kernel=platform.release(),
        python=platform.python_version(),
        versions={package: version for package in PACKAGES if (version := _version(package))},
        commit=_commit(),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return (smallest, median, largest)."""
    return min(values), statistics.median(values), max(values)


def _in_fresh_interpreter(name: str, subject: str, *, quick: bool, seconds: float = SUBJECT_SECONDS) -> Numbers:
    command = [sys.executable, "-m", "bench.child", name, subject, "quick" if quick else "full"]
    # Bytecode as for a user: without it the first import of everything is measured too.
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=True, timeout=seconds)  # noqa: S603  our own module
    return msgspec.json.decode(child.stdout.splitlines()[-1], type=dict[str, float])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    try:
        described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607  git is wherever it is
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()
