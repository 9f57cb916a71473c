"""Images, tables, sound and files for Comet."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any, Final

from accelbus.media import Media
from accelbus.tracking import GeneralTracker
from accelbus_sinks._comet_said import Said
from accelbus_sinks._keys import KeyMap

logger = logging.getLogger(__name__)

MEDIA: Final = "media"
"""Where files wait for Comet, below the tracker's state."""


class CometMedia(GeneralTracker):
    """The media hooks of `CometMLTracker`. What Comet does not take raises: its calls only log it, and return nothing."""

    keys: KeyMap

    def __init__(self) -> None:
        super().__init__()
        self._experiment: Any = None
        self._saved = 0
        self.said = Said()

    def log_image(self, key: str, media: Media, step: int) -> None:
        answer = self._opened().log_image(io.BytesIO(media.png()), name=self.keys[key], step=step, metadata=_metadata(key, media))
        self._checked(answer, key)

    def log_figure(self, key: str, media: Media, step: int) -> None:
        """A picture; a plotly figure is kept as its JSON, since drawing it would need a browser."""
        if media.format == "plotly":
            data = media.payload().decode()
            answer = self._opened().log_asset_data(data, name=f"{self.keys[key]}.plotly.json", step=step, metadata=_metadata(key, media))
            self._checked(answer, key)
        else:
            self.log_image(key, media, step)

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        """Counts go to Comet's own bins, which are exponential: each whole count at the middle of its bin."""
        from comet_ml.data_structure import Histogram  # noqa: PLC0415  the package is imported when the tracker starts

        counts, edges = media.histogram()
        filled = [((low + high) / 2, round(count)) for low, high, count in zip(edges, edges[1:], counts, strict=False) if round(count)]
        experiment = self._opened()
        if filled:
            histogram = Histogram()
            histogram.add([middle for middle, _ in filled], counts=[count for _, count in filled])
            answer = experiment.log_histogram_3d(histogram, name=self.keys[key], step=step, metadata=_metadata(key, media))
        else:  # which Comet ignores
            answer = experiment.log_asset_data({"counts": counts, "edges": edges}, name=f"{self.keys[key]}.json", step=step)
        self._checked(answer, key)

    def log_table(self, key: str, media: Media, step: int) -> None:
        columns, rows = media.table()
        experiment = self._opened()
        experiment.set_step(step)  # ``log_table`` takes none
        # One row at least, and flat cells: Comet looks at the first row, and spreads lists.
        answer = experiment.log_table(f"{self.keys[key]}-{step}.csv", rows or [[""] * len(columns)], headers=columns)
        self._checked(answer, key)

    def log_audio(self, key: str, media: Media, step: int) -> None:
        path = self._save(media, f"step-{step}")
        name = f"{self.keys[key]}{path.suffix}"
        self._checked(self._opened().log_audio(str(path), file_name=name, step=step, metadata=_metadata(key, media)), key)

    def log_video(self, key: str, media: Media, step: int) -> None:
        path = self._save(media, f"step-{step}")
        name = f"{self.keys[key]}{path.suffix}"
        self._checked(self._opened().log_video(str(path), name=name, step=step, metadata=_metadata(key, media)), key)

    def log_html(self, key: str, media: Media, step: int) -> None:
        """The HTML tab has one page for all."""
        html = media.payload().decode("utf-8", "replace")
        self._opened().log_html(f"<h4>{self.keys[key]}, step {step}</h4>\n{html}\n")

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        """A model is a model; online everything else is an artifact with its aliases, offline, where Comet has none, assets."""
        experiment, meta = self._opened(), media.meta
        name, source = str(meta["name"]), media.source()
        if meta["type"] == "model":
            answer = experiment.log_model(
                name, str(source), file_name=str(meta["filename"]), metadata=_facts(media), prepend_folder_name=False
            )
            self._checked(answer, name)
        elif not self._log_as_artifact(experiment, media):
            for path, file_name in _files(source, str(meta["filename"])):
                self._checked(experiment.log_asset(str(path), file_name=file_name, step=step, metadata=_facts(media)), file_name)

    def _log_as_artifact(self, experiment: Any, media: Media) -> bool:
        import comet_ml  # noqa: PLC0415  see `log_histogram`

        meta = media.meta
        try:
            artifact = comet_ml.Artifact(
                name=str(meta["name"]), artifact_type=str(meta["type"]), aliases=list(meta["aliases"]), metadata=dict(meta["metadata"])
            )
            for path, file_name in _files(media.source(), str(meta["filename"])):
                artifact.add(str(path), logical_path=file_name)
            experiment.log_artifact(artifact)
        except NotImplementedError:  # offline
            return False
        return True

    def _opened(self) -> Any:
        if self._experiment is None:
            raise RuntimeError("the Comet experiment is not open; call start() first")
        return self._experiment

    def _checked(self, answer: object, what: str) -> None:
        if answer is None:
            raise RuntimeError(f"Comet did not take {what!r}{self.said.why()}")

    def _state_dir(self) -> Path | None:
        return None if self.run_info.state_dir == Path() else self.run_info.state_dir

    def _save(self, media: Media, stem: str) -> Path:
        """Return a file with *media*, kept until Comet has copied it, which it does in a thread."""
        self._saved += 1
        return media.save((self._state_dir() or Path.cwd()) / MEDIA / str(self._saved), stem)


def _files(source: Path, name: str) -> list[tuple[Path, str]]:
    """Return (path, name) of each file in *source*, which is called *name*."""
    if not source.is_dir():
        return [(source, name)]
    return [(path, f"{name}/{path.relative_to(source).as_posix()}") for path in sorted(source.rglob("*")) if path.is_file()]


def _metadata(key: str, media: Media) -> dict[str, Any]:
    return {"key": key} | ({"caption": media.caption} if media.caption else {})


def _facts(media: Media) -> dict[str, Any]:
    meta = media.meta
    return {"name": meta["name"], "type": meta["type"], "aliases": list(meta["aliases"]), **meta["metadata"]}
