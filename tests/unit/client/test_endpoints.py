"""Addresses a rank may connect to."""

from __future__ import annotations

import pytest

from accelbus.client.endpoints import check_endpoint
from accelbus.errors import ConfigurationError

TAKEN = ["ipc:///run/accelbus.sock", "ipc://@name", "tcp://127.0.0.1:5557", "tcp://127.8.0.1:1", "tcp://localhost:5557", "tcp://[::1]:5557"]
REFUSED = [
    "", "localhost", "foo://bar", "inproc://bus", "udp://127.0.0.1:1", "ipc://", "ipc:///", "ipc://relative", "ipc:///a\0b", "ipc:///\udcff",
    "ipc:///" + "ä" * 60, "tcp://", "tcp://localhost", "tcp://localhost:", "tcp://localhost:0", "tcp://localhost:70000", "tcp://:5557",
    "tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://10.0.0.1:5557", "tcp://localhost.evil.org:5557", "tcp://[::2]:5557", "tcp://127.0.0.1:1;8.8.8.8:1",
]  # fmt: skip


@pytest.mark.parametrize("endpoint", TAKEN)
def test_addresses_on_this_machine_are_taken(endpoint: str) -> None:
    """Sockets and ports of loopback."""
    check_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", REFUSED)
def test_addresses_that_cannot_work_or_would_not_be_encrypted_are_refused(endpoint: str) -> None:
    """The error shows what came and what works."""
    with pytest.raises(ConfigurationError, match="expected") as refused:
        check_endpoint(endpoint)
    assert repr(endpoint) in str(refused.value)
