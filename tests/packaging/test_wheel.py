"""What is shipped."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and source distribution, as a release does."""
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(directory)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    """Open the wheel."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        yield archive


def test_wheel_holds_both_packages_typed_and_nothing_else(wheel: zipfile.ZipFile):
    """It holds accelbus and accelbus_sinks, with their type markers; no tests, benches or ``sinks`` package."""
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"accelbus", "accelbus_sinks"}
    assert {"accelbus/__init__.py", "accelbus/py.typed", "accelbus_sinks/jsonl.py", "accelbus_sinks/py.typed"} <= set(names)


def test_wheel_holds_every_module_of_the_repository(wheel: zipfile.ZipFile):
    """No module is left behind by an ignore rule."""
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "accelbus").rglob("*.py")}
    sources |= {path.relative_to(ROOT / "sinks").as_posix() for path in (ROOT / "sinks").rglob("*.py")}
    assert sources - set(wheel.namelist()) == set()


def test_wheel_carries_licence_command_and_entry_points(wheel: zipfile.ZipFile):
    """The trackers are found by their entry points, the command by its script."""
    info = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    entry_points = configparser.ConfigParser()
    entry_points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert entry_points["console_scripts"]["accelbus"] == "accelbus.cli:main"
    assert {"jsonl", "tensorboard"} <= set(entry_points["accelbus.sinks"])


def test_wheel_works_without_the_repository(wheel: zipfile.ZipFile, tmp_path: Path):
    """Unpacked anywhere, the two packages import from there."""
    wheel.extractall(tmp_path)
    program = "import accelbus, accelbus_sinks.jsonl as sink; print(accelbus.__file__); print(sink.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert all(line.startswith(str(tmp_path)) for line in result.stdout.splitlines())


def test_source_distribution_can_run_the_tests(built: Path):
    """It holds the tests, the documentation and the recipes."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "constraints.txt",
        "LICENSE",
        "tests/packaging/test_wheel.py",
        "docs/README.md",
        "examples/train_digits.py",
    } <= names
