"""Values too large for an event: a file in the run directory, and a reference to it in the event.

A reference is a msgpack extension, so that an event with one is an ordinary event to everybody who only passes it on.

::

    reference.py    what stands for a file, and reading it
    store.py        writing files, within bounds
    copying.py      taking a file or directory of the user's as it is now
    settling.py     making all of it durable, behind the program's back
"""

from __future__ import annotations

from accelbus.blobs.copying import COPIED_BYTES
from accelbus.blobs.reference import EXTENSION, Reference, load, read, whole
from accelbus.blobs.store import BlobStore

__all__ = ["COPIED_BYTES", "EXTENSION", "BlobStore", "Reference", "load", "read", "whole"]
