"""Fixtures for the journal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.journals import close_writers


@pytest.fixture(autouse=True)
def closed_writers() -> Iterator[None]:
    """Let no test leave descriptors behind; what a test did to the disk calls is undone before."""
    yield
    close_writers()
