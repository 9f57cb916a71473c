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


@pytest.hookimpl(tryfirst=True)  # before the plugin that looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a fixture of their module in one process: it starts jobs, and would start them in each."""
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
        if any(fixtures[-1].scope == "module" for fixtures in definitions.values()):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
