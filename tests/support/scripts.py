"""Tests that run one script each and then look at what became of it: all scripts of a module run at once.

::

    @script('''
        run = accelbus.init()
        run.log({"loss": 1.0}, step=0)
    ''')
    def test_something(done: Job) -> None:
        done.check({("loss", 0): 1.0})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.support.job import QUICK, Job, jobs_at_once

_Test = TypeVar("_Test", bound=Callable[..., Any])


class _Script(NamedTuple):
    text: str
    options: dict[str, Any]
    exit_code: int


def script(text: str, *, exit_code: int = 0, **options: Any) -> Callable[[_Test], _Test]:
    """Give a test a job that has run *text*, with the *options* of `Job.run`, and is over: the fixture ``done``."""

    def mark(test: _Test) -> _Test:
        test.script = _Script(text, options, exit_code)  # type: ignore[attr-defined]  # a mark of ours
        return test

    return mark


@pytest.fixture(scope="module")
def jobs_of_module(request: pytest.FixtureRequest) -> Iterator[dict[str, Job]]:
    """{name of a selected test of the module: its job, over and done}"""
    scripts = {item.name: item.function.script for item in _tests_of(request) if hasattr(item.function, "script")}
    texts = {name: one.text for name, one in scripts.items()}
    with jobs_at_once(texts, {name: one.options for name, one in scripts.items()}, **QUICK) as jobs:
        yield jobs


@pytest.fixture
def done(request: pytest.FixtureRequest, jobs_of_module: dict[str, Job]) -> Job:
    """The job of a test's `script`; its ranks have ended with the exit code that was expected."""
    job = jobs_of_module[request.node.name]
    for rank in job.ranks:
        assert rank.process.returncode == request.function.script.exit_code, rank.stderr
    return job


def _tests_of(request: pytest.FixtureRequest) -> list[pytest.Function]:
    return [item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module]


__all__ = ["done", "jobs_of_module", "script"]
