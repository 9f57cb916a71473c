"""What all commands have in common."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import accelbus as package
from accelbus.delivery.status import SinkStatus, write_status
from tests.support.runs import finished_run


def test_the_version_is_printed(accelbus):
    """One line."""
    assert accelbus("--version") == (0, f"accelbus {package.__version__}\n", "")


def test_help_lists_the_commands(accelbus):
    """With a line each, also when nothing was asked."""
    printed = accelbus("--help")
    assert printed.code == 0
    for command in ("status", "sync", "export", "salvage"):
        assert f"\n  {command} " in printed.out
    assert accelbus() == printed


@pytest.mark.parametrize("command", ["status", "sync", "export", "salvage"])
def test_every_command_explains_itself(accelbus, command):
    """And says where runs are looked for."""
    printed = accelbus(command, "--help")
    assert printed.code == 0
    assert "--state-dir" in printed.out
    assert "ACCELBUS_STATE_DIR" in printed.out


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["status", "--frobnicate"], "No such option: --frobnicate"),
        (["export"], "Missing argument 'RUN'"),
        (["export", "x", "--format", "csv"], "'csv' is not"),
        (["sync", "x", "--timeout", "soon"], "--timeout"),
        (["status", "a", "b"], "unexpected extra argument"),
    ],
)
def test_a_command_line_that_is_not_understood_is_one_line_and_code_2(accelbus, arguments, expected):
    """It says what is wrong and where the help is."""
    printed = accelbus(*arguments)
    assert (printed.code, printed.out) == (2, "")
    assert printed.err.startswith("accelbus: ")
    assert expected in printed.err
    assert "--help" in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["status", "nope"], ["export", "nope"], ["sync", "nope"]])
def test_an_unknown_run_is_one_line_and_code_2(accelbus, tmp_path, arguments):
    """It names the places looked at and the runs that are there."""
    finished_run(tmp_path / "runs", run_id="digits-1")
    printed = accelbus(*arguments)
    assert printed.code == 2
    assert printed.err == "accelbus: no run 'nope' in 'runs', and no run directory of that path; runs there: digits-1\n"


def test_a_foreign_directory_is_no_run(accelbus, tmp_path):
    """A path is not enough: there must be a journal."""
    (tmp_path / "foreign").mkdir()
    printed = accelbus("status", tmp_path / "foreign")
    assert printed.code == 2
    assert "no run directory of that path; there are no runs there" in printed.err


def test_runs_are_looked_for_where_the_variables_say(accelbus, tmp_path, monkeypatch):
    """An option beats ACCELBUS_STATE_DIR, that beats ACCELBUS_DIR, that beats ./runs."""
    for name in ("runs", "one", "two", "three"):
        finished_run(tmp_path / name, run_id=name, sinks=())
    assert "\nruns: finished" in accelbus("status").out
    monkeypatch.setenv("ACCELBUS_DIR", str(tmp_path / "one"))
    assert "\none: finished" in accelbus("status").out
    monkeypatch.setenv("ACCELBUS_STATE_DIR", str(tmp_path / "two"))
    assert "\ntwo: finished" in accelbus("status").out
    assert "\nthree: finished" in accelbus("status", "--state-dir", tmp_path / "three").out


def test_what_the_system_refuses_is_one_line(accelbus, run):
    """Code 1, no traceback."""
    printed = accelbus("export", run.path, "--output", "/nowhere/file")
    assert printed.code == 1
    assert printed.err == "accelbus: [Errno 2] No such file or directory: '/nowhere/.file." + printed.err.partition("/nowhere/.file.")[2]
    assert printed.err.count("\n") == 1


def test_a_wrong_setting_in_the_environment_is_one_line(accelbus, run, monkeypatch):
    """It names the variable."""
    monkeypatch.setenv("ACCELBUS_GAP_HOLD", "long")
    printed = accelbus("status", run.path)
    assert printed.code == 2
    assert printed.err.startswith("accelbus: ACCELBUS_GAP_HOLD")
    assert printed.err.count("\n") == 1


def test_help_imports_nothing_that_is_slow():
    """Commands import what they need when they run."""
    script = "import sys; from accelbus.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    slow = {"anyio", "zmq", "torch", "numpy", "tensorboard", "asyncio", "rich", "accelbus.journal.merge", "accelbus.delivery.cursor"}
    assert slow.isdisjoint(done.stderr.split())


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    """`accelbus export RUN | head -1` ends without a traceback."""
    run = finished_run(tmp_path, ranks=2, steps=2000)
    script = "import sys; from accelbus.cli import main; sys.exit(main(sys.argv[1:]))"
    export = subprocess.Popen([sys.executable, "-c", script, "export", str(run.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert export.stdout is not None
    assert export.stderr is not None
    export.stdout.readline()
    export.stdout.close()
    assert export.stderr.read() == b""
    export.stderr.close()
    export.wait()


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONUTF8": "1"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_every_path_can_be_printed_in_every_locale(tmp_path, locale):
    """Also one that is no text at all; the module runs like the script."""
    root = tmp_path / "l\u00e4ufe-\u4e16"
    run = finished_run(root, sinks=("jsonl",))
    run.deliver(finish=True)
    write_status(run.dir.sink("jsonl"), SinkStatus(sink="jsonl", url="/l\u00e4ufe-\u4e16"))
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.rename(root, odd)
    for path in (odd + b"/hand", b"/nowhere/\xff"):
        done = subprocess.run(
            [sys.executable, "-m", "accelbus", "status", path, "-v"], capture_output=True, env={**os.environ, **locale}, check=False
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == (2 if b"nowhere" in path else 0)


def test_a_full_disk_is_named(accelbus, tmp_path, monkeypatch):
    """A write that fails does not know the name of its file."""
    run = finished_run(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("accelbus.delivery.deliver.sync", refuse)
    assert accelbus("sync", run.path) == (1, "", f"accelbus: [Errno 28] No space left on device: '{run.path}'\n")
