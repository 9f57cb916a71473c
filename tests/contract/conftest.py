"""The contract suite: asserts that show their values, and which part of it belongs to which recipe."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("accelbus.testing")

ROUND_TRIP = "test_every_point_of_steps_in_any_order_is_stored"
LIGHT = ("test_jsonl.py", "test_tensorboard.py", "test_foreign.py")
"""Trackers that start at once: their whole suite belongs to ``make test``."""


def pytest_collection_modifyitems(items):
    """Leave one real round trip per tracker to ``make test``; the full matrix is ``make test-sinks``."""
    for item in items:
        is_ours = item.path.parent == Path(__file__).parent
        if is_ours and item.path.name not in LIGHT and getattr(item, "originalname", "") != ROUND_TRIP:
            item.add_marker(pytest.mark.sinks)
