"""The built-in trackers, one file each, named like the tracker.

Nothing imports this package by name: trackers are found through the ``accelbus.sinks`` entry points, third-party ones in the same
group. Modules with a leading underscore are what several trackers, or one tracker and its tests, share.
"""
