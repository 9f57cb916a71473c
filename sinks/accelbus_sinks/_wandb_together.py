"""Many records in one hand-over to W&B's service.

W&B wakes its thread for the socket for each record, and waits until that has taken it: two thirds of the time of a row, and half of
the CPU. These are internals of W&B 0.31; where they are not as they were, each record goes alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from wandb.proto import wandb_server_pb2 as protocol

INTERNALS: Final = ("_publish", "_assign", "_asyncer", "_client")
"""What is used of a run's interface."""


@contextlib.contextmanager
def together(run: Any) -> Iterator[None]:
    """Keep what *run* records until the end of the block, and hand it over then, in order; also when the block raises.

    Only for what expects no answer from the service: a question would overtake the records before it.

    Raises:
        ConnectionError: the service is gone; whatever was recorded in the block may be lost.
    """
    interface: Any = getattr(run, "_interface", None)
    if not all(hasattr(interface, name) for name in INTERNALS):
        yield
        return
    records: list[Any] = []

    def keep(record: Any, *, nowait: bool = False) -> None:
        records.append(record)

    interface._publish = keep  # noqa: SLF001  what this module is about
    try:
        yield
    finally:
        del interface._publish  # noqa: SLF001  see above: the method is there again
        if records:
            interface._asyncer.run(lambda: _send(interface, records))  # noqa: SLF001  see above


async def _send(interface: Any, records: Sequence[Any]) -> None:
    """Do what ``InterfaceSock._publish`` does with each record."""
    for record in records:
        interface._assign(record)  # noqa: SLF001  see above
        request = protocol.ServerRequest()
        request.record_publish.CopyFrom(record)
        await interface._client.publish(request)  # noqa: SLF001  see above


__all__ = ["together"]
