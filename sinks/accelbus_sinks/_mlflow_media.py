"""Images, tables, figures and files of a run as artifacts: each has a place that follows from its key and step.

What is delivered again after a crash therefore replaces itself. Only images have names that MLflow makes up; those that were sent are
remembered.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mlflow.entities import RunTag

from accelbus.media import Media
from accelbus_sinks._config import shorten
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._mlflow_names import LIMITS

if TYPE_CHECKING:
    from mlflow import MlflowClient

TABLES_TAG: Final = "mlflow.loggedArtifacts"
"""What the user interface shows as tables: JSON, a list of path and type."""


class RunArtifacts:
    """The artifacts of one run.

    Args:
        client: of the run's server.
        run_id: MLflow's.
        state_dir: for names, and for what was sent.
        names: of files.
        image_names: of images.
        tables: value of the tag that lists the tables there are.
    """

    def __init__(self, client: MlflowClient, run_id: str, state_dir: Path, names: KeyMap, image_names: KeyMap, tables: str | None) -> None:
        self._client = client
        self._run_id = run_id
        self._names = names
        self._image_names = image_names
        self._tables: list[Any] = _list_in(tables)
        self._sent = _Sent(state_dir / "images-sent")

    def put(self, path: Path, place: str = "") -> None:
        """Send the file or directory at *path* to the directory *place*."""
        if path.is_dir():
            self._client.log_artifacts(self._run_id, str(path), "/".join(filter(None, [place, path.name])))
        else:
            self._client.log_artifact(self._run_id, str(path), place or None)

    def put_bytes(self, content: bytes, place: str) -> None:
        """Send *content* as the file *place*."""
        directory, _, name = place.rpartition("/")
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary, name)
            path.write_bytes(content)
            self.put(path, directory)

    def _put_as(self, source: Path, place: str) -> None:
        """Send the file *source* as *place*, or what is in the directory *source* to the directory *place*."""
        if source.is_dir():
            self._client.log_artifacts(self._run_id, str(source), place)
            return
        directory, _, name = place.rpartition("/")
        with _under_its_name(source, name) as path:
            self.put(path, directory)

    def place(self, kind: str, key: str, step: int, suffix: str) -> str:
        """Return where the media *key* of *step* goes."""
        return f"{kind}/{self._names[key]}/step_{step}.{suffix}"

    def image(self, key: str, media: Media, step: int) -> None:
        """Send a picture for MLflow's image charts.

        Raises:
            ValueError: it is so long and thin that MLflow cannot make a small one of it.
        """
        digest = hashlib.sha256(f"{key}\0{step}\0".encode("utf-8", "surrogatepass") + media.payload()).hexdigest()
        if digest not in self._sent:
            self._client.log_image(self._run_id, media.pil(), key=self._image_names[key], step=step, synchronous=True)
            self._sent.add(digest)

    def table(self, key: str, media: Media, step: int) -> None:
        """Send a table that the user interface shows and `MlflowClient.load_table` reads."""
        place = self.place("tables", key, step, "json")
        columns, rows = media.table()
        table = {"columns": columns, "data": [[_cell(cell) for cell in row] for row in rows]}
        self.put_bytes(json.dumps(table).encode(), place)
        self.show_as_table(place)

    def show_as_table(self, place: str) -> None:
        """List the artifact *place* among the tables; of very many the newest are listed."""
        entry = {"path": place, "type": "table"}
        if entry in self._tables:
            return
        tables = [*self._tables, entry]
        while len(listed := json.dumps(tables)) > LIMITS.tag_value:
            del tables[0]
        self._client.log_batch(self._run_id, tags=[RunTag(TABLES_TAG, listed)], synchronous=True)
        self._tables = tables

    def figure(self, key: str, media: Media, step: int) -> None:
        """Send a figure: a PNG, or for a figure of plotly's a page, where plotly is installed here."""
        if media.format != "plotly":
            content, suffix = media.png(), "png"
        elif (page := _plotly_page(media.payload())) is not None:
            content, suffix = page, "html"
        else:
            content, suffix = media.payload(), "json"
        asked_for = _place_asked_for(media) or ""
        self.put_bytes(content, asked_for if asked_for.lower().endswith(f".{suffix}") else self.place("figures", key, step, suffix))

    def histogram(self, key: str, media: Media, step: int) -> None:
        """Send counts and edges as JSON; MLflow has no histograms."""
        counts, edges = media.histogram()
        self.put_bytes(json.dumps({"counts": counts, "edges": edges}).encode(), self.place("histograms", key, step, "json"))

    def artifact(self, media: Media, step: int) -> str:
        """Send a file or directory to the place that was asked for, else one of its own, and return where it is."""
        if (asked_for := _place_asked_for(media)) is not None:
            self._put_as(media.source(), asked_for)
            return asked_for
        place = f"files/{self._names[str(media.meta['name'])]}/step_{step}"
        with _under_its_name(media.source(), os.path.basename(str(media.meta["filename"])) or "file") as path:
            self.put(path, place)
        return place


def artifact_tag(media: Media, place: str) -> str:
    """Return what is known of an artifact, as text for a tag."""
    known = {"path": place} | {name: media.meta[name] for name in ("type", "aliases", "metadata") if media.meta.get(name)}
    return shorten(json.dumps(known, default=str), LIMITS.tag_value)


def _place_asked_for(media: Media) -> str | None:
    """Return the path that the user gave in MLflow's own words, None where there is none or it leads out of the run's artifacts."""
    place = posixpath.normpath(str(media.meta.get("place") or "."))
    return None if place.startswith(("/", "..")) or place == "." else place


class _Sent:
    """Digests in a file, one a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests = set(path.read_text().split()) if path.exists() else set()

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests

    def add(self, digest: str) -> None:
        self._digests.add(digest)
        with self._path.open("a") as file:
            file.write(f"\n{digest}\n")


@contextmanager
def _under_its_name(source: Path, name: str) -> Iterator[Path]:
    """Yield a path that ends in *name* and leads to *source*, without a copy."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        try:
            path.symlink_to(source.absolute(), target_is_directory=source.is_dir())
        except OSError:  # a file system without links
            shutil.copytree(source, path) if source.is_dir() else shutil.copyfile(source, path)
        yield path


def _plotly_page(figure: bytes) -> bytes | None:
    try:
        from plotly import io  # noqa: PLC0415  optional
    except ImportError:
        return None
    page: str = io.to_html(io.from_json(figure.decode(), skip_invalid=True), include_plotlyjs="cdn")
    return page.encode()


def _cell(cell: Any) -> Any:
    """JSON has no NaN; pandas reads null as NaN."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return None if math.isnan(cell) else str(cell)
    return cell


def _list_in(text: str | None) -> list[Any]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []
