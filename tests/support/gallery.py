"""A tracker with hooks for media and statements, for tests of delivery; see `tests.support.trackers`."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tests.support.trackers import ExactTracker


class GalleryTracker(ExactTracker):
    """Keeps what it is told in ``media.jsonl`` and ``told.jsonl``; media misbehave as the arguments say.

    Args:
        refuses_media: keys that raise.
        hangs_on: key that never returns.
        dies_on: key that ends the process, the first *deaths* times, by the signal *dies_by*.
        seconds_per_media: how long each takes.
        until: file without which every media call fails, as when a store for files is down.
    """

    def __init__(
        self,
        project: str,
        directory: str,
        *,
        refuses_media: tuple[str, ...] = (),
        hangs_on: str = "",
        dies_on: str = "",
        dies_by: int = signal.SIGABRT,
        deaths: int = 10**9,
        seconds_per_media: float = 0.0,
        until: str = "",
        **arguments: Any,
    ) -> None:
        super().__init__(project, directory, **arguments)
        self.refuses_media = refuses_media
        self.hangs_on = hangs_on
        self.dies_on = dies_on
        self.dies_by = dies_by
        self.deaths = deaths
        self.seconds_per_media = seconds_per_media
        self.until = until

    @classmethod
    def environment(cls, state_dir: Any, environ: Any) -> dict[str, str]:
        assert environ["PYTHONUTF8"] == "1"
        return {"GALLERY_CACHE": str(state_dir / "cache"), "GALLERY_MODE": "offline"}

    def start(self) -> None:
        super().start()
        self._append("environ.jsonl", {name: os.environ.get(name) for name in ("GALLERY_CACHE", "GALLERY_MODE", "GALLERY_KEY")})

    def log_media(self, key: str, media: Any, step: int) -> None:
        if self.until and not os.path.exists(self.until):
            raise ConnectionError("the store for files is down")
        if key in self.refuses_media:
            raise ValueError(f"{key} is not to my taste")
        if key == self.hangs_on:
            time.sleep(3600)
        if key == self.dies_on and self._count("deaths", key) <= self.deaths:
            os.kill(os.getpid(), self.dies_by)
        time.sleep(self.seconds_per_media)
        self._append("calls.jsonl", {"step": step, "media": key})
        self._append("media.jsonl", {"step": step, "key": key, "kind": media.kind, "bytes": _size(media), "time_ns": media.time_ns})

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        super().log(values, step, **kwargs)
        if kwargs:
            self._append("keywords.jsonl", {"step": step, **kwargs})

    def define_metric(self, pattern: str, **how: str) -> None:
        self._append("told.jsonl", ["define", pattern, how])

    def summarise(self, values: Any) -> None:
        self._append("told.jsonl", ["summary", dict(values)])

    def store_run_record(self, facts: Any) -> None:
        self._append("told.jsonl", ["facts", dict(facts)])

    def log_console(self, lines: Any) -> None:
        self._append("told.jsonl", ["console", list(lines)])


def _size(media: Any) -> int:
    if media.kind != "artifact":
        return len(media.payload())
    source = media.source()
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


class SecondGalleryTracker(GalleryTracker):
    """Another one, for runs with two."""

    name = "second"
