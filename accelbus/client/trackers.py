"""The trackers of a run, as its ranks know them: names, where each comes from, which stay in the main rank."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from accelbus import tracking
from accelbus.config import Settings, SinkOptions
from accelbus.errors import ConfigurationError
from accelbus.rundir import Origin, RunRecord
from accelbus.tracking.ranks import MOST, sink_of_rank

_log = logging.getLogger("accelbus")


class Trackers(NamedTuple):
    """All trackers of one run."""

    sinks: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = {}
    """Of those that were given, or registered, as class or instance."""
    inline: tuple[str, ...] = ()
    """Those that live in the main rank."""
    carried: Mapping[str, bytes] = {}
    """Those that reach their process by value."""
    given: Mapping[str, Any] = {}
    """Classes and instances of those that live in the main rank."""
    stays: Mapping[str, str] = {}
    """{inline tracker: why it has to be}"""

    per_rank: tuple[str, ...] = ()
    """Those of which every rank has one."""

    def in_world_of(self, size: int) -> Trackers:
        """Return the same for a run of *size* ranks.

        Raises:
            ConfigurationError: too many ranks would have a tracker of their own.
        """
        if size == 1 or not self.per_rank:
            return self._replace(per_rank=())
        if size > MOST:
            raise ConfigurationError(
                f"every rank would have a tracker {self.per_rank[0]!r} of its own (main_process_only = False, or per_rank), each of "
                f"them a process: expected at most {MOST} ranks, got {size}; log to it with the key of one rank instead"
            )
        return self

    def sink_of(self, name: str, rank: int) -> str:
        """Return what the tracker *name*, as *rank* has it, is called in the run's record."""
        return sink_of_rank(name, rank) if name in self.per_rank else name

    def spread(self, record: RunRecord) -> RunRecord:
        """Return *record* with a sink for each rank in place of those that every rank has."""
        if not self.per_rank:
            return record
        ranks = range(record.world_size)

        def names(given: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(
                sink for name in given for sink in ([sink_of_rank(name, rank) for rank in ranks] if name in self.per_rank else [name])
            )

        def keyed(given: Mapping[str, Any]) -> dict[str, Any]:
            return {sink: value for name, value in given.items() for sink in names((name,))}

        changes: dict[str, Any] = {
            field: keyed(getattr(record, field)) for field in ("init_kwargs", "log_kwargs", "sink_options", "trackers")
        }
        changes |= {field: names(getattr(record, field)) for field in ("sinks", "require")}
        if record.config_from is not None:
            changes["config_from"] = self.sink_of(record.config_from, 0)
        return msgspec.structs.replace(record, **changes)

    def for_others(self) -> Trackers:
        """Return what another process of the run needs to know."""
        return self._replace(carried={}, given={}, stays={})


def admit(settings: Settings, sinks: tuple[str, ...], given: Mapping[str, Any]) -> Trackers:
    """Decide where each of *sinks* will live, and how it gets there. Imports no tracker.

    Args:
        settings: ``inline``, ``mode`` and ``endpoint`` are used.
        sinks: names, checked.
        given: {name: class or instance}, beside the registered classes.

    Raises:
        ConfigurationError: a tracker that only the main rank could have, of a run that is offline or waits for it.
        MissingExtraError: cloudpickle is needed and not installed.
    """
    known = {**tracking.registered(), **given}
    trackers = {name: known[name] for name in sinks if name in known}
    crossings = {name: tracking.cross(tracker, by_value=settings.endpoint is None) for name, tracker in trackers.items()}
    stays = {name: crossing.stays for name, crossing in crossings.items() if crossing.stays and name not in settings.inline}
    if settings.mode != "online" and (lost := [name for name, crossing in crossings.items() if not crossing.origin.path]):
        raise ConfigurationError(
            f"the tracker {lost[0]!r} cannot be imported by the process that will deliver an offline run: "
            f"define its class at the top level of a module, and make it with plain arguments"
        )
    for setting, names in (("require", settings.require), ("config_from", (settings.config_from,))):
        if waiting := [name for name in names if name in stays]:
            raise ConfigurationError(
                f"{setting} names {waiting[0]!r}, which has to live in the main rank ({stays[str(waiting[0])]}): "
                "expected a tracker with a process of its own"
            )
    inline = (*settings.inline, *stays)
    per_rank = [
        name for name in sinks if settings.sink_options.get(name, SinkOptions()).per_rank or tracking.wants_every_rank(known.get(name))
    ]
    for name in [name for name in per_rank if name in inline]:
        per_rank.remove(name)
        _log.warning("the tracker %r runs in the main rank: it is one for all ranks, although it asks for one in every rank", name)
    return Trackers(
        sinks,
        {name: crossing.origin for name, crossing in crossings.items()},
        inline,
        {name: crossing.carried for name, crossing in crossings.items() if crossing.carried and name not in inline},
        {name: trackers[name] for name in inline if name in trackers},
        stays,
        tuple(per_rank),
    )


__all__ = ["Trackers", "admit"]
