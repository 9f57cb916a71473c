"""The suite: what delivery relies on, and what a tracker says it keeps."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from accelbus.events import STATUSES
from accelbus.testing.arrivals import ArrivalTests
from accelbus.testing.driving import EPOCH_NS, environment_of, made, row_of
from accelbus.testing.reading import ReadBack
from accelbus.testing.recognising import is_equal
from accelbus.testing.samples import ODD_KEYS, RECORD, RECORD_AT_ONCE
from accelbus.tracking import GeneralTracker, finish_with_status, overrides


class SinkContract(ArrivalTests):
    """What delivery relies on. Class attributes say where a tracker cannot do better."""

    tracker_class: ClassVar[type[Any]]
    """A `GeneralTracker`, or a class written for Accelerate, with its base class or none."""
    init_kwargs: ClassVar[dict[str, Any]] = {}
    tolerance: ClassVar[float] = 0.0
    """Relative error of a stored number: 1e-6 for 32-bit floats."""
    keeps_time: ClassVar[bool] = True
    """Whether the event's own time is stored."""
    keeps_replaced: ClassVar[bool] = False
    """Whether a value that a crash left behind stays, below the one that replaced it."""
    replaces_attempts: ClassVar[bool] = False
    """Whether a step that a later attempt logs again is stored once. Most stores only grow: they keep both, and show the newer value."""
    one_run_per_process: ClassVar[bool] = False
    """The library keeps its run in globals: runs side by side are in processes of their own, as with delivery."""

    @property
    def durable_after(self) -> str:
        return getattr(self.tracker_class, "durable_after", "flush")

    def read(self, logging_dir: Path) -> ReadBack:
        """Return what is stored below *logging_dir*, with the tracker's own reader."""
        raise NotImplementedError

    def has_stored(self, text: str, tmp_path: Path) -> bool:
        """Whether *text* is in what the tracker stored below *tmp_path*; for trackers that store plain files or archives of them."""
        return any(text.encode() in content for path in tmp_path.rglob("*") if path.is_file() for content in _contents(path))

    @pytest.fixture
    def logging_dir(self, tmp_path: Path) -> Path:
        return tmp_path / "output"

    @pytest.fixture
    def tracker(self, logging_dir: Path) -> GeneralTracker:
        """A tracker of a new run."""
        return self.open(logging_dir, {})

    def open(self, logging_dir: Path, checkpoint: dict[str, Any]) -> GeneralTracker:
        """Return a started tracker, as delivery starts one."""
        tracker = made(self.tracker_class, logging_dir, self.init_kwargs, resumed=bool(checkpoint))
        tracker.restore(checkpoint)
        tracker.start()
        return tracker

    @pytest.fixture(autouse=True)
    def _environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in environment_of(self.tracker_class, tmp_path / "environment").items():
            monkeypatch.setenv(name, value)

    def test_every_point_of_steps_in_any_order_is_stored(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Steps 10, 5, 11, 11 leave three points, the last one with its newer value."""
        for step, value in ((10, 1.0), (5, 2.0), (11, 3.0), (11, 4.0)):
            tracker.log_batch([row_of(step, {"loss": value})])
            tracker.flush()
        tracker.finish()
        self._check(logging_dir, {(10, "loss"): 1.0, (5, "loss"): 2.0, (11, "loss"): 4.0})

    def test_a_changed_point_hides_no_other(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """A late value changes its own point; those that came before and after it stay."""
        tracker.log_batch([row_of(step, {"loss": float(step), "lr": 0.5}) for step in range(6)])
        tracker.flush()
        tracker.log_batch([row_of(2, {"loss": 20.0}), row_of(6, {"loss": 6.0, "lr": 0.5})])
        tracker.finish()
        losses = {0: 0.0, 1: 1.0, 2: 20.0, 3: 3.0, 4: 4.0, 5: 5.0, 6: 6.0}
        self._check(logging_dir, {(step, "loss"): loss for step, loss in losses.items()} | {(step, "lr"): 0.5 for step in losses})

    def test_calls_of_one_step_add_up(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Different keys logged at the same step in several calls are all there."""
        tracker.log_batch([row_of(3, {"loss": 1.0}), row_of(3, {"accuracy": 0.5})])
        tracker.flush()
        tracker.log_batch([row_of(3, {"lr": 0.25})])
        tracker.finish()
        self._check(logging_dir, {(3, "loss"): 1.0, (3, "accuracy"): 0.5, (3, "lr"): 0.25})

    def test_log_without_a_step_stays_at_the_step_before(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """``log(values)`` belongs to the step that was given last."""
        tracker.log({"loss": 1.0}, step=7)
        tracker.log({"lr": 0.5})
        tracker.finish()
        self._check(logging_dir, {(7, "loss"): 1.0, (7, "lr"): 0.5})

    def test_numbers_that_are_not_finite_stay_so(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """NaN and both infinities come back as they went in, never as 0 or nothing."""
        values = {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "one": 1.0}
        tracker.log_batch([row_of(1, values)])
        tracker.finish()
        self._check(logging_dir, {(1, key): value for key, value in values.items()})

    def test_numbers_of_all_kinds_come_back_as_numbers(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Booleans count as 0 and 1; integers, small and large floats keep their value."""
        values = {"true": True, "false": False, "zero": 0, "negative": -3, "int": 2**53 + 1, "small": 1e-30, "large": -1e30}
        tracker.log_batch([row_of(1, values)])
        tracker.finish()
        self._check(logging_dir, {(1, key): value for key, value in values.items()})

    def test_large_steps_are_exact(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Steps count tokens as well as batches."""
        steps = (0, 1, 127, 128, 2**31, 2**40 + 1)
        tracker.log_batch([row_of(step, {"loss": 1.0}) for step in steps])
        tracker.finish()
        self._check(logging_dir, {(step, "loss"): 1.0 for step in steps})

    def test_text_is_kept(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Text comes back unchanged, also text that looks like a number, beside numbers."""
        values = {"note": "première **ligne**\nзавершено 🦀", "word": "NaN", "loss": 1.0, "empty": ""}
        tracker.log_batch([row_of(1, values)])
        tracker.finish()
        self._check(logging_dir, {(1, key): value for key, value in values.items()})

    def test_a_list_is_kept(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """A list of numbers comes back as that list, in whatever form the tracker has."""
        tracker.log_batch([row_of(1, {"betas": [0.5, 2, 0.25]})])
        tracker.finish()
        self._check(logging_dir, {(1, "betas"): [0.5, 2, 0.25]})

    def test_odd_keys_stay_apart(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Long, non-ASCII, reserved and path-like keys each keep their own value."""
        tracker.log_batch([row_of(1, {key: float(index) for index, key in enumerate(ODD_KEYS)})])
        tracker.finish()
        self._check(logging_dir, {(1, key): float(index) for index, key in enumerate(ODD_KEYS)})

    def test_many_keys_are_all_stored(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """A row of 2,000 values is no special case."""
        values = {f"layer{index}/norm": float(index) for index in range(2000)}
        tracker.log_batch([row_of(1, values), row_of(2, values)])
        tracker.finish()
        self._check(logging_dir, {(step, key): value for step in (1, 2) for key, value in values.items()})

    def test_the_time_is_the_rows_own(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Curves over wall time show when the rank logged, not when we delivered."""
        if not self.keeps_time:
            pytest.skip("this tracker stamps values itself")
        tracker.log_batch([row_of(1, {"loss": 1.0}), row_of(2, {"loss": 1.0})])
        tracker.finish()
        times = [point.time for point in self.read(logging_dir).points]
        assert times == pytest.approx([EPOCH_NS / 1e9 + 1, EPOCH_NS / 1e9 + 2], abs=0.001, rel=0)

    def test_configuration_is_kept(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Nested hyperparameters, lists, None, text and numbers that are not finite raise nothing and arrive."""
        tracker.store_init_configuration(
            {
                "lr": 0.1,
                "model": {"depth": 3, "name": "résnet"},
                "betas": [0.9, 0.99],
                "resume": None,
                "amp": True,
                "clip": math.inf,
                "seed": 2**60,
            }
        )
        tracker.log_batch([row_of(1, {"loss": 1.0})])
        tracker.finish()
        config = self.read(logging_dir).config
        assert {"lr", "model/depth", "model/name", "betas", "resume", "amp", "clip", "seed"} <= set(config)
        assert config["lr"] == pytest.approx(0.1)
        assert (config["model/depth"], config["model/name"], config["amp"], int(config["seed"])) == (3, "résnet", True, 2**60)

    def test_a_later_configuration_replaces_the_first(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """Updates in the middle of a run are seen by who opens the run afterwards."""
        tracker.store_init_configuration({"lr": 0.1})
        tracker.log_batch([row_of(1, {"loss": 1.0})])
        tracker.flush()
        tracker.store_init_configuration({"lr": 0.2, "warmup": 10})
        tracker.finish()
        config = self.read(logging_dir).config
        assert config["lr"] == pytest.approx(0.2)
        assert config["warmup"] == 10

    def test_a_run_record_is_kept(self, tracker: GeneralTracker, logging_dir: Path, tmp_path: Path) -> None:
        """It comes in parts, things may be unknown or large, and none of it disturbs the points."""
        for unknown in (RECORD_AT_ONCE, {**RECORD_AT_ONCE, **dict.fromkeys(RECORD)}):
            tracker.store_run_record(unknown)
        tracker.log_batch([row_of(1, {"loss": 1.0})])
        tracker.flush()
        tracker.store_run_record({**RECORD_AT_ONCE, **RECORD})
        tracker.finish()
        self._check_numbers(logging_dir, {(1, "loss"): 1.0})
        if overrides(tracker, "store_run_record"):
            assert self.has_stored(RECORD["git"]["commit"], tmp_path)

    def test_console_output_is_kept(self, tracker: GeneralTracker, logging_dir: Path, tmp_path: Path) -> None:
        """Lines come in batches between rows, long ones, empty ones and whatever characters they have."""
        tracker.log_console(["one", "", "x" * 1000])
        tracker.log_batch([row_of(1, {"loss": 1.0})])
        tracker.log_console(["损失 \x00 \\udcff", "the last line of all"])
        tracker.flush()
        tracker.finish()
        self._check_numbers(logging_dir, {(1, "loss"): 1.0})
        if overrides(tracker, "log_console"):
            assert self.has_stored("the last line of all", tmp_path)

    @pytest.mark.parametrize("status", STATUSES)
    def test_every_status_finishes_a_run(self, tracker: GeneralTracker, logging_dir: Path, status: str) -> None:
        """A run ends with the status it has, and what was logged is there."""
        tracker.log_batch([row_of(1, {"loss": 1.0})])
        finish_with_status(tracker, status)
        self._check(logging_dir, {(1, "loss"): 1.0})
        found = self.read(logging_dir).status
        assert found is None or (found == "finished") == (status == "finished")

    def test_an_empty_run_finishes(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """A job that fails before its first step is no error of the tracker."""
        tracker.flush()
        tracker.finish()
        assert self.read(logging_dir).points == []

    def test_two_runs_do_not_mix(self, tmp_path: Path) -> None:
        """Runs fed in turns, by one process where the library can, keep their own points."""
        if self.one_run_per_process:
            self._feed_two_processes(tmp_path)
            return
        trackers = [self.open(tmp_path / name, {}) for name in ("one", "two")]
        for step in range(3):
            for index, tracker in enumerate(trackers):
                tracker.log_batch([row_of(step, {"loss": float(10 * index + step)})])
        for index, name in enumerate(("one", "two")):
            trackers[index].finish()
            self._check(tmp_path / name, {(step, "loss"): float(10 * index + step) for step in range(3)})

    def test_a_newer_attempt_replaces_steps(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """A resume at an earlier step shows the newer value where there are two, and loses none of the rest."""
        tracker.log_batch([row_of(step, {"loss": float(step)}) for step in range(5)])
        tracker.flush()
        tracker.log_batch([row_of(step, {"loss": 10.0 + step}, attempt=1) for step in (3, 4, 5)])
        tracker.finish()
        expected = {(0, "loss"): 0.0, (1, "loss"): 1.0, (2, "loss"): 2.0, (3, "loss"): 13.0, (4, "loss"): 14.0, (5, "loss"): 15.0}
        self._check(logging_dir, expected, once=self.replaces_attempts)

    def test_a_refused_batch_leaves_nothing(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """A batch with a value that nobody can store raises and stores nothing, so that its rows can be tried one by one."""
        if not overrides(tracker, "log_batch"):
            pytest.skip("delivery logs row by row")
        with pytest.raises((TypeError, ValueError)):
            tracker.log_batch([row_of(1, {"loss": 1.0}), row_of(2, {"loss": object()})])
        tracker.log_batch([row_of(1, {"loss": 1.0})])
        tracker.log_batch([row_of(3, {"loss": 3.0})])
        tracker.finish()
        self._check(logging_dir, {(1, "loss"): 1.0, (3, "loss"): 3.0}, once=True)

    def test_logging_before_start_is_refused(self, logging_dir: Path) -> None:
        """A value that would go nowhere raises."""
        tracker = made(self.tracker_class, logging_dir, self.init_kwargs)
        with pytest.raises(Exception, match="start"):
            tracker.log({"loss": 1.0}, step=1)

    def test_flushed_rows_survive_a_kill(self, logging_dir: Path) -> None:
        """What was flushed is there after SIGKILL, in a C locale, without a home; the declared durability is true."""
        if self.durable_after == "finish":
            pytest.skip("durable only after finish; delivery feeds it again")
        self._killed(logging_dir, "flush" if self.durable_after == "flush" else "nothing")
        self._check(logging_dir, {(step, "损失"): float(step) for step in range(10)})

    @pytest.mark.parametrize("after", ["log", "flush"])
    def test_a_restart_continues_at_the_cursor(self, logging_dir: Path, after: str) -> None:
        """Killed past its cursor, with or without a flush since, and fed again from there: each point once."""
        checkpoint, first = self._killed(logging_dir, "checkpoint", "log", *([after] if after != "log" else [])), 10
        is_fed_anew = self.durable_after == "finish"
        if is_fed_anew:
            # Delivery moves no cursor before the end of such a tracker: it gets everything again.
            checkpoint, first = {}, 0
        tracker = self.open(logging_dir, checkpoint)
        tracker.log_batch([row_of(step, {"损失": float(step)}) for step in range(first, 25)])
        tracker.finish()
        once = is_fed_anew or (overrides(tracker, "checkpoint") and not self.keeps_replaced)
        self._check(logging_dir, {(step, "损失"): float(step) for step in range(25)}, once=once)

    def test_a_restart_without_a_cursor_begins_anew(self, logging_dir: Path) -> None:
        """Killed before its first cursor and fed everything again: each point once."""
        self._killed(logging_dir, "flush")
        tracker = self.open(logging_dir, {})
        tracker.log_batch([row_of(step, {"损失": float(step)}) for step in range(12)])
        tracker.finish()
        self._check(logging_dir, {(step, "损失"): float(step) for step in range(12)}, once=overrides(tracker, "checkpoint"))

    def test_a_finished_run_can_go_on(self, tracker: GeneralTracker, logging_dir: Path) -> None:
        """A resumed job opens the run where the first one closed it."""
        tracker.log_batch([row_of(1, {"loss": 1.0})])
        tracker.flush()
        finish_with_status(tracker, "failed")
        resumed = self.open(logging_dir, tracker.checkpoint() if overrides(tracker, "checkpoint") else {})
        resumed.log_batch([row_of(2, {"loss": 2.0}, attempt=1)])
        finish_with_status(resumed, "finished")
        self._check(logging_dir, {(1, "loss"): 1.0, (2, "loss"): 2.0}, once=True)
        assert self.read(logging_dir).status in {None, "finished"}

    def _check(self, logging_dir: Path, expected: Mapping[tuple[int, str], Any], *, once: bool = False) -> None:
        """Compare the newest value of each point; with *once* also that none is stored twice."""
        points = self.read(logging_dir).points
        found = {(point.step, point.key): point.value for point in points}
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert is_equal(found[name], value, self.tolerance), f"{name}: expected {value!r}, found {found[name]!r}"
        if once:
            assert len(points) == len(found), "a point is stored twice"

    def _check_numbers(self, logging_dir: Path, expected: Mapping[tuple[int, str], float]) -> None:
        """Compare the points but for texts, which may say other things about the run."""
        points = [point for point in self.read(logging_dir).points if not isinstance(point.value, str | list)]
        assert {(point.step, point.key): pytest.approx(point.value) for point in points} == expected

    def _killed(self, logging_dir: Path, *script: str) -> dict[str, Any]:
        """Feed ten rows in another process, follow *script*, kill it, and return its checkpoint."""
        child = self._child(logging_dir, script)
        reported, errors = child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL, errors.decode(errors="replace")
        checkpoint: dict[str, Any] = json.loads((reported.splitlines() or [b"{}"])[-1])
        return checkpoint

    def _feed_two_processes(self, tmp_path: Path) -> None:
        """Feed two runs in turns, each by a process of its own, and check what each has."""
        children = [self._child(tmp_path / name, ["feed"]) for name in ("one", "two")]
        pipes = [(child.stdin, child.stdout) for child in children if child.stdin and child.stdout]
        for step in range(3):
            for index, (orders, answers) in enumerate(pipes):
                orders.write(json.dumps([step, {"loss": float(10 * index + step)}]).encode() + b"\n")
                orders.flush()
                assert answers.readline() == b"ok\n"
        for index, child in enumerate(children):
            _, errors = child.communicate(timeout=60)
            assert child.returncode == 0, errors.decode(errors="replace")
            self._check(tmp_path / ("one", "two")[index], {(step, "loss"): float(10 * index + step) for step in range(3)})

    def _child(self, logging_dir: Path, script: Iterable[str]) -> subprocess.Popen[bytes]:
        """Start a process with a tracker that follows *script*, in a C locale and without a home."""
        path = f"{self.tracker_class.__module__}:{self.tracker_class.__qualname__}"
        arguments = json.dumps({"path": path, "logging_dir": str(logging_dir), "init_kwargs": self.init_kwargs, "script": list(script)})
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C", "LANG": "C", "HOME": "/nonexistent"}
        command = [sys.executable, "-m", "accelbus.testing", arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S603  the command is ours


def _contents(path: Path) -> Iterator[bytes]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from map(archive.read, archive.namelist())
    else:
        yield path.read_bytes()


__all__ = ["SinkContract"]
