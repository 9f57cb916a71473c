"""One value of each type that users log, and how to tell what has become of it."""

from __future__ import annotations

import datetime as dt
import enum
import math
import re
from collections.abc import Callable
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from accelbus.media import Alert, Artifact, Audio, Figure, Histogram, Html, Image, Table, Video
from accelbus.testing import recognising

How: TypeAlias = Literal["log", "config", "summary", "alert"]
PIXELS: Final = [[[250, 10, 10], [10, 250, 10]], [[10, 10, 250], [250, 250, 250]], [[0, 0, 0], [90, 90, 90]]]


class Specimen(NamedTuple):
    """A value of one type."""

    name: str
    """As the documentation names the type."""
    make: Callable[[Path], Any]
    """Return the value; takes an empty directory for files."""
    recognise: Callable[[Any, Any, float], str | None] = recognising.plain
    """(what was found, what the tracker was given, relative error of numbers) → the form it has, empty for the one it was given in;
    None: it is something else."""
    how: How = "log"
    needs: str = ""
    """A package without which there is no such value."""

    @property
    def key(self) -> str:
        """What it is logged as; see `accelbus.testing.Arrived` for how a reader names it."""
        slug = re.sub(r"\W+", "_", self.name).strip("_").lower()
        return {"log": "", "config": "config/", "summary": "summary/", "alert": ""}[self.how] + slug

    @property
    def is_possible(self) -> bool:
        return not self.needs or find_spec(self.needs) is not None


class _Phase(enum.Enum):
    WARMUP = "warm-up"


def _file(directory: Path) -> Path:
    path = directory / "weights.bin"
    path.write_bytes(b"\x00weights\xff")
    return path


def _folder(directory: Path) -> Path:
    path = directory / "checkpoint"
    (path / "part").mkdir(parents=True)
    (path / "part" / "one.bin").write_bytes(b"one")
    (path / "index.json").write_bytes(b"{}")
    return path


def _drawn(_: Path) -> Figure:
    figure = import_module("matplotlib.figure").Figure((1, 1))
    figure.subplots().plot([1, 2])
    return Figure(figure)


def _plotly(_: Path) -> Figure:
    return Figure(SimpleNamespace(to_json=lambda: '{"data":[{"type":"scatter","x":[1,2],"y":[3,4]}],"layout":{}}'))


def _tensor(value: float, **how: str) -> Any:
    torch = import_module("torch")
    return torch.tensor(value, **{name: getattr(torch, kind) for name, kind in how.items()})


def _array(value: Any, kind: str) -> Any:
    numpy = import_module("numpy")
    return numpy.asarray(value, dtype=getattr(numpy, kind))


def _tone(_: Path) -> Audio:
    return Audio(_array([math.sin(number / 9) / 2 for number in range(800)], "float32"), 8000)


def _clip(_: Path) -> Video:
    numpy = import_module("numpy")
    return Video(numpy.stack([numpy.full((6, 8, 3), shade, numpy.uint8) for shade in (0, 120, 240)]), fps=2)


GROUPS: Final[dict[str, tuple[Specimen, ...]]] = {
    "Numbers, text and lists": (
        Specimen("int", lambda _: 3),
        Specimen("int beyond 64 bits", lambda _: 2**80),
        Specimen("int beyond floats", lambda _: 10**400),
        Specimen("float", lambda _: 0.1),
        Specimen("bool", lambda _: True),
        Specimen("nan", lambda _: math.nan),
        Specimen("inf", lambda _: math.inf),
        Specimen("Decimal", lambda _: Decimal("0.25")),
        Specimen("numpy scalar", lambda _: _array(0.25, "float32")[()], needs="numpy"),
        Specimen("torch scalar", lambda _: _tensor(0.25), needs="torch"),
        Specimen("bf16 tensor", lambda _: _tensor(0.25, dtype="bfloat16"), needs="torch"),
        Specimen("str, log_text", lambda _: "première **ligne**\n🦀"),
        Specimen("Enum", lambda _: _Phase.WARMUP),
        Specimen("Path", lambda _: Path("runs") / "last.pt"),
        Specimen("datetime", lambda _: dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        Specimen("list", lambda _: [0.5, 2, 0.25]),
        Specimen("small array", lambda _: _array([0.5, 2.0], "float64"), needs="numpy"),
        Specimen("mapping", lambda _: {"inner": {"loss": 0.5}}),
        Specimen("None", lambda _: None),
    ),
    "Media and files": (
        Specimen("Image", lambda _: Image(_array(PIXELS, "uint8")), recognising.picture, needs="numpy"),
        Specimen("Figure, matplotlib", _drawn, recognising.picture, needs="matplotlib"),
        Specimen("Figure, plotly", _plotly, recognising.plotly, needs="plotly"),
        Specimen("Histogram", lambda _: Histogram(np_histogram=([1, 2, 4], [0.0, 1.0, 2.0, 3.0])), recognising.histogram),
        Specimen("Table", lambda _: Table(["a", "b"], [[1, "x"], [2.5, None]]), recognising.table),
        Specimen("Audio", _tone, recognising.sound, needs="numpy"),
        Specimen("Video", _clip, recognising.clip, needs="numpy"),
        Specimen("Html", lambda _: Html("<p>première</p>"), recognising.page),
        Specimen("Artifact, file", lambda path: Artifact(_file(path), "artifact_file"), recognising.files),
        Specimen("Artifact, directory", lambda path: Artifact(_folder(path), "artifact_directory"), recognising.files),
    ),
    "About the run": (
        Specimen("alert", lambda _: Alert("loss is NaN", "at step 3", "error"), recognising.message, "alert"),
        Specimen("summary, number", lambda _: 0.25, how="summary"),
        Specimen("summary, text", lambda _: "stopped early", how="summary"),
        Specimen("config, number", lambda _: 0.125, how="config"),
        Specimen("config, bool", lambda _: True, how="config"),
        Specimen("config, text", lambda _: "résnet", how="config"),
        Specimen("config, list", lambda _: [0.5, 0.25], how="config"),
        Specimen("config, None", lambda _: None, how="config"),
        Specimen("config, nan", lambda _: math.nan, how="config"),
        Specimen("config, nested", lambda _: {"inner": {"depth": 3}}, recognising.nested, "config"),
    ),
}
SPECIMENS: Final = tuple(specimen for group in GROUPS.values() for specimen in group)
"""One value of each type."""
