"""What is in a repository of Aim's, found with Aim's own readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aim import Repo, Run
from aim.sdk.index_manager import RepoIndexManager
from aim.storage.context import Context

from accelbus_sinks._keys import read_keys

KINDS = ("metric", "texts", "images", "audios", "distributions", "figures")


def run_of(directory: Path, run_id: str) -> Run:
    """Return the one run with our *run_id* in the repository, as Aim's server sees it: also one that was not closed."""
    repo = Repo.from_path(str(directory))
    manager = RepoIndexManager.get_index_manager(repo)
    for run_hash in hashes(directory):
        manager.index(run_hash)
    repo.container_pool.clear()
    (found,) = [run for run in repo.iter_runs() if run.get("accelbus", {}).get("run_id") == run_id]
    return found


def hashes(directory: Path) -> list[str]:
    """Return the hashes of all runs in the repository."""
    return sorted(path.name for path in (directory / ".aim" / "meta" / "chunks").iterdir())


def points(run: Run, state: Path) -> list[tuple[int, str, Any, float]]:
    """Return (step, key, value, seconds) of numbers, texts and lists."""
    names = keys(state)
    found: list[tuple[int, str, Any, float]] = []
    for kind, name, context, items in sequences(run):
        if kind in {"metric", "texts"}:
            key = names["number" if kind == "metric" else "text", name] + (f"/rank{context['rank']}" if "rank" in context else "")
            found += [(step, key, value if kind == "metric" else _parsed(value.data), seconds) for step, value, seconds in items]
    return found


def sequences(run: Run) -> Iterator[tuple[str, str, dict[str, Any], list[tuple[int, Any, float]]]]:
    """Yield (kind, name, context, [(step, value, seconds)]) of everything that was tracked."""
    for kind, found in run.collect_sequence_info(KINDS).items():
        for info in found:
            sequence = run._get_sequence(kind, info["name"], Context(info["context"]))
            yield kind, info["name"], info["context"], [(step, value, seconds) for step, (value, _, seconds) in sequence.data.items()]


def _parsed(text: str) -> Any:
    return json.loads(text) if text.startswith("[") else text


def keys(state: Path) -> dict[tuple[str, str], str]:
    """Return {(kind, name): key}."""
    found = {}
    for kind_and_key, name in read_keys(state / "names.jsonl").items():
        kind, _, key = kind_and_key.partition(":")
        found[kind, name] = key
    return found
