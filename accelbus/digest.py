"""Short names for long things: paths, launchers, keys. Not for secrets.

``hashlib`` loads OpenSSL, which costs every rank 3.6 MB; BLAKE2 is part of Python itself.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # a Python built without it
    from hashlib import blake2b


def digest(data: bytes, size: int) -> bytes:
    """Return *size* bytes, 1 to 64, that stand for *data*."""
    return blake2b(data, digest_size=size).digest()


__all__ = ["digest"]
