"""Beside and after the run: readers of a run directory.

- `audit`: where every event and value is, exactly
- `report`: what ``accelbus status`` shows
- `export`: every raw event as JSON lines

Nothing is imported here: the command line is to be quick.
"""
