"""The trackers of a run, as its ranks know them: names, where each comes from, which stay in the main rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from accelbus import tracking
from accelbus.config import Settings
from accelbus.errors import ConfigurationError
from accelbus.rundir import Origin


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
    return Trackers(
        sinks,
        {name: crossing.origin for name, crossing in crossings.items()},
        inline,
        {name: crossing.carried for name, crossing in crossings.items() if crossing.carried and name not in inline},
        {name: trackers[name] for name in inline if name in trackers},
        stays,
    )


__all__ = ["Trackers", "admit"]
