"""Settings: bounds, and what a wrong one is told."""

from __future__ import annotations

import pytest

from accelbus.config import Tuning, from_environment
from accelbus.errors import ConfigurationError

BEYOND = {
    "SPOOL_BYTES": ["100", "134217729", "100000000000", "-1", "0"],
    "SPOOL_MIN_BYTES": ["100", "134217729"],
    "FRAME_BYTES": ["100", "98303", "16777217"],
    "EVENT_BYTES": ["1", "8388609"],
    "PUMP_INTERVAL": ["0", "1e9", "inf", "nan"],
    "ACK_TIMEOUT": ["inf", "nan", "-1"],
}


@pytest.mark.parametrize("name, text", [(name, text) for name, texts in BEYOND.items() for text in texts])
def test_sizes_and_times_with_which_nothing_would_work_are_refused(name: str, text: str) -> None:
    """The error names the variable, what came and what was expected."""
    with pytest.raises(ConfigurationError, match="Expected") as refused:
        from_environment(Tuning, {f"ACCELBUS_{name}": text})
    assert f"ACCELBUS_{name}={text!r}" in str(refused.value)


@pytest.mark.parametrize(
    "bounds", [{"SPOOL_BYTES": "262144", "SPOOL_MIN_BYTES": "262144"}, {"SPOOL_BYTES": "134217728"}, {"FRAME_BYTES": "98304"}]
)
def test_sizes_at_their_bounds_are_taken(bounds: dict[str, str]) -> None:
    """The smallest and the largest ring, and the smallest frame."""
    from_environment(Tuning, {f"ACCELBUS_{name}": text for name, text in bounds.items()})


@pytest.mark.parametrize(
    "sizes",
    [{"EVENT_BYTES": "600000"}, {"EVENT_BYTES": "70000", "SPOOL_MIN_BYTES": "262144"}, {"FRAME_BYTES": "98304", "EVENT_BYTES": "49153"}],
)
def test_an_event_that_fits_into_no_frame_or_ring_is_refused(sizes: dict[str, str]) -> None:
    """Nothing of that size would ever arrive."""
    with pytest.raises(ConfigurationError, match=f"ACCELBUS_EVENT_BYTES={sizes['EVENT_BYTES']}: expected at most"):
        from_environment(Tuning, {f"ACCELBUS_{name}": text for name, text in sizes.items()})
