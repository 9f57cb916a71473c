"""One writer's directory of segment files: write it and read it. The bytes are described in `accelbus.journal.layout`."""

from __future__ import annotations

from accelbus.journal.follow import START, Position, Row, SegmentReader
from accelbus.journal.writer import JournalWriter, WriterStatistics

__all__ = ["START", "JournalWriter", "Position", "Row", "SegmentReader", "WriterStatistics"]
