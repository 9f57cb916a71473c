"""Images, tables, files, alerts and what else is no number: the methods, one signature for every tracker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from accelbus.client.compiled import outside_of_graphs
from accelbus.media import Alert, Artifact, Audio, Figure, Histogram, Html, Image, Table, Video, Wrapper

ARTIFACTS: Final = "artifact/"
ALERTS: Final = "alert/"
"""Beginnings of the keys of files and alerts, so that neither shares one with a metric."""


class MediaMethods:
    """Mixed into `Run` and into the trackers of `Run.get_tracker`.

    Any rank may call them, from any thread. What is passed is copied before a call returns; then it travels beside the numbers and
    never delays them. A tracker without a place for the kind gets the nearest thing it has: an image for a figure, text for a table, a
    file for the rest. What cannot be read is counted in ``statistics().dropped`` and warned about once; nothing raises in training.

    A step that is not given is this rank's last one. Of several ranks that log the same key at the same step, the lowest counts.
    """

    def _log_beside(self, values: Mapping[str, Any], step: Any) -> None:
        """Queue *values* for whom they are meant; see `accelbus.client.intake.Intake.put`."""
        raise NotImplementedError

    @outside_of_graphs
    def log_image(self, key: str, image: Any, step: int | None = None, caption: str | None = None) -> None:
        """Log a picture.

        Args:
            key: its name.
            image: see `accelbus.Image`: array or tensor with channels first or last, ``PIL.Image``, matplotlib figure, path.
            step: as for ``log``.
            caption: shown below it.
        """
        self._log_beside({key: Image(image, caption)}, step)

    @outside_of_graphs
    def log_images(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Log pictures under several keys.

        Args:
            values: {key: an image, ``(image, caption)``, a sequence of these, or an array or tensor of images}. Of several under one
                key, each gets a key of its own: ``key/0``, ``key/1``, …
            step: as for ``log``.
            _: what Accelerate's trackers pass on to their libraries; it means nothing here.
        """
        self._log_beside(_all_pictures(values), step)

    @outside_of_graphs
    def log_histogram(
        self, key: str, values: Any = None, step: int | None = None, *, bins: int = 64, np_histogram: tuple[Any, Any] | None = None
    ) -> None:
        """Log how *values*, of any shape, are distributed, or ``np_histogram=(counts, edges)``."""
        self._log_beside({key: Histogram(values, bins=bins, np_histogram=np_histogram)}, step)

    @outside_of_graphs
    def log_table(
        self,
        table_name: str,
        columns: Sequence[Any] | None = None,
        data: Iterable[Any] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **_: Any,
    ) -> None:
        """Log rows under named columns; see `accelbus.Table`. Other keyword arguments, as for `log_images`, mean nothing."""
        self._log_beside({table_name: Table(columns, data, dataframe)}, step)

    @outside_of_graphs
    def log_text(self, key: str, text: str, step: int | None = None) -> None:
        """Log text; the same as ``log({key: text})``, except that it counts no step."""
        self._log_beside({key: text}, step)

    @outside_of_graphs
    def log_figure(
        self,
        key: Any,
        figure: Any = None,
        step: int | None = None,
        caption: str | None = None,
        *,
        artifact_file: str | None = None,
        **_: Any,
    ) -> None:
        """Log a matplotlib figure, drawn now, or a plotly figure as it is.

        As in Accelerate's MLflow tracker *key* may come second, or be called *artifact_file*, and then it is the figure's path in MLflow;
        other keyword arguments mean nothing.
        """
        if artifact_file is not None:
            key, figure = artifact_file, key
        elif isinstance(figure, str):
            artifact_file = figure
            key, figure = figure, key
        self._log_beside({key: Figure(figure, caption, place=artifact_file)}, step)

    @outside_of_graphs
    def log_audio(self, key: str, data: Any, sample_rate: int = 44100, step: int | None = None, caption: str | None = None) -> None:
        """Log sound; see `accelbus.Audio`."""
        self._log_beside({key: Audio(data, sample_rate, caption)}, step)

    @outside_of_graphs
    def log_video(self, key: str, data: Any, fps: float = 4, step: int | None = None, caption: str | None = None) -> None:
        """Log moving pictures; see `accelbus.Video`."""
        self._log_beside({key: Video(data, fps, caption)}, step)

    @outside_of_graphs
    def log_html(self, key: str, html: str, step: int | None = None, caption: str | None = None) -> None:
        """Log a piece of HTML."""
        self._log_beside({key: Html(html, caption)}, step)

    @outside_of_graphs
    def log_artifact(
        self,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        type: str = "file",  # noqa: A002  the trackers' word
        aliases: str | Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        step: int | None = None,
        *,
        local_path: str | os.PathLike[str] | None = None,
        artifact_path: str | None = None,
    ) -> None:
        """Log a file or directory as it is now; it may be deleted or replaced right after the call.

        Args:
            path: see `accelbus.Artifact` for files that are written to in place.
            name: what trackers call it; not given: the file's name. Ranks that log files of their own give each its own name.
            type: file, model, dataset, …
            aliases: latest, best, …
            metadata: plain values.
            step: as for ``log``.
            local_path: *path*, as Accelerate's MLflow tracker calls it.
            artifact_path: the same tracker's directory for it; it is there in MLflow, and becomes the first part of *name*.
        """
        path = path if local_path is None else local_path
        place = None
        if artifact_path is not None:
            place = f"{artifact_path}/{_name_of(path)}"
            name = f"{artifact_path}/{name or _name_of(path)}"
        self._log_artifact(path, name, type, aliases, metadata, step, place)

    @outside_of_graphs
    def log_artifacts(
        self,
        local_dir: str | os.PathLike[str],
        name: str | None = None,
        type: str = "file",  # noqa: A002  the trackers' word
        aliases: str | Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        step: int | None = None,
        *,
        artifact_path: str | None = None,
    ) -> None:
        """Log a directory and all that is in it, as one artifact; see `log_artifact`. *artifact_path* is its name, too, and its place in MLflow."""
        self._log_artifact(local_dir, name or artifact_path, type, aliases, metadata, step, artifact_path)

    def _log_artifact(
        self, path: Any, name: str | None, kind: str, aliases: Any, metadata: Any, step: int | None, place: str | None
    ) -> None:
        wrapper = Artifact(path, name, kind, aliases, metadata, place=place)  # None is refused when it is read
        self._log_beside({ARTIFACTS + (str(name) if name else _name_of(path)): wrapper}, step)

    @outside_of_graphs
    def alert(self, title: str, text: str = "", level: str = "info", step: int | None = None) -> None:
        """Send a message to whoever watches the run: in the tracker's way, else into its log.

        Args:
            title: short; of several with one title at one step one is sent.
            text: the rest.
            level: info, warning or error.
            step: as for ``log``.
        """
        self._log_beside({f"{ALERTS}{title}": Alert(title, text, level)}, step)


def _all_pictures(values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values  # refused, with what was expected
    return {key: _pictures(value) for key, value in values.items()}


def _pictures(value: Any) -> Any:
    """Return one wrapper, or a mapping of them by number."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        return _wrapped(value)
    if isinstance(value, list | tuple) or getattr(value, "ndim", None) == 4:
        return {str(index): _wrapped(item) for index, item in enumerate(value)}
    return _wrapped(value)


def _wrapped(value: Any) -> Any:
    if isinstance(value, Wrapper):
        return value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        return Image(*value)
    return Image(value)


def _name_of(path: Any) -> str:
    try:
        return str(os.path.basename(os.path.abspath(os.fspath(path))))
    except TypeError:
        return str(path)  # no path: refused when it is read, under this name


__all__ = ["ALERTS", "ARTIFACTS", "MediaMethods"]
