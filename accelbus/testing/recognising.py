"""Tell in what form a value was found: each function returns it, empty for the form in which the tracker was given it.

None: what was found is something else. Arguments: what was found; the value, or `Media`, that the tracker was given; the relative
error that numbers may have.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelbus.media import Media


def plain(found: Any, given: Any, tolerance: float) -> str | None:
    """Of numbers, text, lists and None."""
    if type(found) is type(given) and is_equal(found, given, tolerance):
        return ""
    if isinstance(given, bool):
        return "1" if isinstance(found, int | float) and found == given else f"text {found}" if found in {"1", "True", "true"} else None
    if isinstance(given, int | float) and isinstance(found, int | float):
        if math.isinf(given) and found == math.copysign(sys.float_info.max, given):
            return "the largest float"
        return "" if is_equal(found, given, tolerance) else None
    if isinstance(found, str):
        return _as_text(found, given, tolerance)
    return None


def _as_text(found: str, given: Any, tolerance: float) -> str | None:
    if isinstance(given, float) and not math.isfinite(given):
        return f"text {found}" if found.lower() in {str(given), "infinity" if given > 0 else "nan"} else None
    if given is None:
        return "empty text" if not found else f"text {found}" if found in {"None", "null"} else None
    try:
        said = json.loads(found)
    except ValueError:
        return None
    return ("JSON" if isinstance(given, list) else "text") if is_equal(said, given, tolerance) else None


def nested(found: Any, given: Any, tolerance: float) -> str | None:
    """Of nested hyperparameters; *given* is a leaf where a leaf was found."""
    if isinstance(given, Mapping):
        return "" if found == given else None
    form = plain(found, given, tolerance)
    return None if form is None else f"flat, {form}" if form else "flat"


def picture(found: Any, given: Media, _: float) -> str | None:
    """Of what a picture file holds, pixel by pixel."""
    import PIL.Image  # noqa: PLC0415  trackers of pictures bring it

    try:
        with PIL.Image.open(io.BytesIO(found)) as image:
            same = image.convert("RGB").tobytes() == given.pil().convert("RGB").tobytes()
            return image.format if same else None
    except (OSError, TypeError):
        return None


def plotly(found: Any, given: Media, _: float) -> str | None:
    """Of a figure that is drawn where it is shown."""
    text = _text(found)
    if text is None:
        return None
    try:
        traces = json.loads(text)["data"]
    except (ValueError, KeyError, TypeError):
        return "HTML" if "Plotly" in text and "scatter" in text else None
    (trace,) = json.loads(given.payload())["data"]
    return "JSON" if [{name: one.get(name) for name in trace} for one in traces] == [trace] else None


def histogram(found: Any, given: Media, tolerance: float) -> str | None:
    """Of (counts, edges), or a JSON object of them."""
    form, bins = "", found
    if (text := _text(found)) is not None:
        said = json.loads(text)
        form, bins = "JSON", (said["counts"], said["edges"])
    counts, edges = given.histogram()
    if is_equal([list(part) for part in bins], [counts, edges], max(tolerance, 1e-9)):
        return form
    return "other bins" if math.isclose(sum(bins[0]), sum(counts)) else None


def table(found: Any, given: Media, tolerance: float) -> str | None:
    """Of (columns, rows), or a text that holds them."""
    columns, rows = given.table()
    if (text := _text(found)) is None:
        return "" if is_equal([list(found[0]), [list(row) for row in found[1]]], [columns, rows], tolerance) else None
    if text.strip() == given.markdown():
        return "Markdown"
    if text.startswith("{"):
        said = json.loads(text)
        return "JSON" if [said["columns"], said.get("rows", said.get("data"))] == [columns, rows] else None
    cells = [["" if cell is None else str(cell) for cell in row] for row in [columns, *rows]]
    return "CSV" if list(csv.reader(io.StringIO(text))) == cells else None


def sound(found: Any, given: Media, _: float) -> str | None:
    """Of a sound file, sample by sample."""
    if not isinstance(found, bytes) or not found.startswith(b"RIFF"):
        return None
    with wave.open(io.BytesIO(found)) as file:
        samples, rate, channels = given.audio()
        same = (file.readframes(file.getnframes()), file.getframerate(), file.getnchannels()) == (samples, rate, channels)
        return "WAV" if same else None


def clip(found: Any, given: Media, _: float) -> str | None:
    """Of a file of moving pictures."""
    import PIL.Image  # noqa: PLC0415  see above

    count, height, width, _channels = given.meta["shape"]
    try:
        with PIL.Image.open(io.BytesIO(found)) as image:
            same = (getattr(image, "n_frames", 1), image.height, image.width) == (count, height, width)
            return image.format if same else None
    except (OSError, TypeError):
        return None


def page(found: Any, given: Media, _: float) -> str | None:
    """Of HTML, alone or within a page."""
    text = _text(found)
    return "" if text is not None and given.payload().decode() in text else None


def files(found: Any, given: Media, _: float) -> str | None:
    """Of a file's bytes, or {path in the directory: bytes}."""
    source = given.source()
    if source.is_file():
        return "" if found == source.read_bytes() else None
    return "" if found == contents(source) else None


def contents(directory: Path) -> dict[str, bytes]:
    """Return {path in *directory*: bytes}."""
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def message(found: Any, given: Media, _: float) -> str | None:
    """Of an alert: its title and its text."""
    text = str(found)
    return "" if str(given.meta["title"]) in text and given.payload().decode() in text else None


def is_equal(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether two values are the same, but for the error of a float; nan is nan."""
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(is_equal(*pair, tolerance) for pair in zip(found, expected, strict=True))
        )
    if isinstance(expected, str) or expected is None or isinstance(found, str) or found is None:
        return bool(found == expected)
    return (math.isnan(found) and math.isnan(expected)) or math.isclose(found, expected, rel_tol=tolerance, abs_tol=0)


def _text(found: Any) -> str | None:
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    return found if isinstance(found, str) else None
