"""A tracker in a process of its own, for `SinkContract`: ``python -m accelbus.testing JSON``."""

import json
import sys

from accelbus.testing.driving import live

live(**json.loads(sys.argv[1]))
