"""Fixtures that every kind of test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.job import QUICK, Job, running_job
from tests.support.scripts import done, jobs_of_module

__all__ = ["done", "jobs_of_module"]

# Tests fill the machine: at idle priority the workers that they wait for would hardly get to run.
os.environ.setdefault("ACCELBUS_WORKER_NICE", "0")


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
