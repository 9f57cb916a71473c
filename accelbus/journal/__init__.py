"""The journal of a run: append-only segment files, one directory per writer, read by any number of readers with a cursor.

- `segments`: `JournalWriter` and `SegmentReader`, one writer's directory
- `merge`: `JournalReader`, all writers of a run, each event once
- `spool`: the ring that is a rank's memory

Nothing is imported here: a training process needs the spool and should not pay for the readers.
"""
