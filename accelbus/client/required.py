"""What the bus process says of the trackers without which training must not begin."""

from __future__ import annotations

from accelbus import control
from accelbus.client.session import Session
from accelbus.config import Settings, Tuning
from accelbus.errors import RequiredTrackerError


def wait_for_verdict(session: Session | None, tuning: Tuning) -> control.Verdict | None:
    """Return the verdict; None when it does not come."""
    if session is None:
        return None
    # The bus process gives up at require_timeout; the margin is for its own start and the way back.
    return session.wait_for_verdict(tuning.require_timeout + 2 * tuning.ack_timeout)


def refusal(settings: Settings, verdict: control.Verdict | None) -> RequiredTrackerError:
    """Return the error for a run that cannot begin."""
    reason = verdict.reason if verdict is not None else "the bus process did not answer"
    wanted = [f"require={list(settings.require)}"] if settings.require else []
    wanted += [f"config_from={settings.config_from!r}"] if settings.config_from else []
    return RequiredTrackerError(f"{', '.join(wanted)}: {reason}")


__all__ = ["refusal", "wait_for_verdict"]
