"""Asserts of the shipped suite show their values, as those of tests do."""

import pytest

pytest.register_assert_rewrite("accelbus.testing")
