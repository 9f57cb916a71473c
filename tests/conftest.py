"""Fixtures that every kind of test may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.job import QUICK, Job, running_job
from tests.support.scripts import done, jobs_of_module

__all__ = ["done", "jobs_of_module"]


@pytest.fixture
def job() -> Iterator[Job]:
    """A job without ranks yet; whatever it starts is gone after the test."""
    with running_job() as one:
        yield one


@pytest.fixture
def quick_job() -> Iterator[Job]:
    """A job whose intervals and patience are short."""
    with running_job(**QUICK) as one:
        yield one
