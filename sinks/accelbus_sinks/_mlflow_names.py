"""What MLflow takes: names, lengths and sizes, as the installed version has them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from mlflow.utils import validation

_Item = TypeVar("_Item")

UNNAMED: Final = "unnamed"
"""What becomes of a key without a character that can be kept."""
_FILE_NAME: Final = re.compile(r"[^A-Za-z0-9_./ -]")
"""Names of images, and of files: artifact stores are file systems, buckets and web servers."""


class Limits(NamedTuple):
    """Of one request, and of what is in it."""

    metrics: int = getattr(validation, "MAX_METRICS_PER_BATCH", 1000)
    params: int = getattr(validation, "MAX_PARAMS_TAGS_PER_BATCH", 100)
    tags: int = getattr(validation, "MAX_PARAMS_TAGS_PER_BATCH", 100)
    request_bytes: int = getattr(validation, "MAX_BATCH_LOG_REQUEST_SIZE", 1_000_000)
    key: int = getattr(validation, "MAX_ENTITY_KEY_LENGTH", 250)
    param_value: int = getattr(validation, "MAX_PARAM_VAL_LENGTH", 500)
    tag_value: int = getattr(validation, "MAX_TAG_VAL_LENGTH", 5000)
    experiment_name: int = getattr(validation, "MAX_EXPERIMENT_NAME_LENGTH", 500)


LIMITS: Final = Limits()


def metric_rule() -> Callable[[str], str]:
    """Return what becomes of the key of a metric, parameter or tag: letters of all scripts, digits, and ``/_.- ``, as a path."""
    check = getattr(validation, "validate_param_and_metric_name", None)
    takes_colon = check is not None and bool(check("a:b"))
    return _rule(re.compile(r"[^/\w.\- :]" if takes_colon else r"[^/\w.\- ]"))


def file_rule() -> Callable[[str], str]:
    """Return what becomes of a key in the name of an image or artifact."""
    return _rule(_FILE_NAME)


def _rule(refused: re.Pattern[str]) -> Callable[[str], str]:
    def name(key: str) -> str:
        parts = [part if part != ".." else "__" for part in refused.sub("_", key).split("/") if part not in {"", "."}]
        return "/".join(parts) or UNNAMED

    return name


def size_of(*texts: str) -> int:
    """Return the bytes that *texts* take in a request, with what stands around them."""
    return sum(map(len, map(json.dumps, texts))) + 120


def requests(items: Iterable[tuple[_Item, int]], most: int) -> Iterator[list[_Item]]:
    """Yield *items*, each with its size, in requests of at most *most* of them, small enough for the server."""
    request: list[_Item] = []
    size = 0
    for item, item_size in items:
        if request and (len(request) >= most or size + item_size > LIMITS.request_bytes * 0.9):
            yield request
            request, size = [], 0
        request.append(item)
        size += item_size
    if request:
        yield request
