"""One behaviour suite for every tracker, built-in or third-party: subclass `SinkContract` and say how to read back.

::

    pytest.register_assert_rewrite("accelbus.testing")  # in conftest.py


    class TestMyTracker(SinkContract):
        tracker_class = MyTracker

        def read(self, logging_dir):
            return ReadBack(points=[Point(step, key, value, seconds), ...], config={...})

The tests use the tracker's real library and drive the class as delivery does; some of them in a process that is killed. With
``arrivals`` the class says, for each type of value in `SPECIMENS`, what arrives, and the suite reads that back too.
"""

from __future__ import annotations

from accelbus.testing.contract import SinkContract
from accelbus.testing.driving import EPOCH_NS, state_dir
from accelbus.testing.reading import Arrived, Point, ReadBack
from accelbus.testing.samples import ODD_KEYS
from accelbus.testing.specimens import SPECIMENS

__all__ = ["EPOCH_NS", "ODD_KEYS", "SPECIMENS", "Arrived", "Point", "ReadBack", "SinkContract", "state_dir"]
