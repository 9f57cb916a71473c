"""Addresses at which a rank may look for a daemon."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from accelbus.errors import ConfigurationError

_LONGEST_SOCKET: Final = 103
"""Bytes; what macOS takes, Linux takes four more."""
_TCP: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]+):(?P<port>[0-9]{1,5})")
_WORKS: Final = "expected 'ipc://' and the absolute path of a socket, or a port of this machine such as 'tcp://127.0.0.1:5557'"


def check_endpoint(endpoint: str) -> None:
    """Check that a rank could connect to *endpoint*, and may.

    Raises:
        ConfigurationError: saying what is wrong with it and what works.
    """
    scheme, found, place = endpoint.partition("://")
    if not found or scheme not in ("ipc", "tcp"):
        raise _refusal(endpoint, _WORKS)
    if scheme == "ipc":
        _check_path(endpoint, place)
    else:
        _check_port(endpoint, place)


def _check_path(endpoint: str, path: str) -> None:
    if not path.startswith(("/", "@")) or len(path) == 1 or "\0" in path:
        raise _refusal(endpoint, _WORKS)
    if not _is_text(path):
        raise _refusal(endpoint, "expected a path in UTF-8")
    if (size := len(path.encode())) > _LONGEST_SOCKET:
        raise _refusal(endpoint, f"expected a path of at most {_LONGEST_SOCKET} bytes, got {size}; sockets take no longer ones")


def _check_port(endpoint: str, place: str) -> None:
    parts = _TCP.fullmatch(place)
    if parts is None or not 0 < int(parts["port"]) < 2**16:
        raise _refusal(endpoint, _WORKS)
    if not _is_loopback(parts["host"].strip("[]")):
        raise _refusal(endpoint, f"what is sent to another machine would not be encrypted; {_WORKS}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal(endpoint: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"endpoint={endpoint!r}: {expected} (or no endpoint, for a bus process of the run's own)")


__all__ = ["check_endpoint"]
