"""Beside and after the run: readers of a run directory.

- `audit`: where every event and value is, exactly; `accounts` of producers and `books` of sinks, from the `evidence` there is
- `report`: what ``accelbus status`` shows, a `document`
- `export`: every raw event as JSON lines

Nothing is imported here: the command line is to be quick.
"""
