"""What arrives of each type of value: declared by a tracker's test class, and read back with the tracker's own reader.

The documentation's table is written from these declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from accelbus.blobs import BlobStore
from accelbus.config import Tuning
from accelbus.delivery.ledger import Rows, rows_of
from accelbus.events import AnyEvent, Metrics, RunStart
from accelbus.journal.merge import Item
from accelbus.media import TIME, Media, unpack
from accelbus.testing.driving import EPOCH_NS
from accelbus.testing.reading import Arrived, ReadBack
from accelbus.testing.specimens import SPECIMENS, Specimen
from accelbus.tracking import GeneralTracker, finish_with_status
from accelbus.values import Hook, config_values, encoder, flatten, sanitise
from accelbus.view import Rules, View

STEP = 7


class ArrivalTests:
    """The part of `accelbus.testing.SinkContract` that looks at types of values."""

    tolerance: ClassVar[float]
    arrivals: ClassVar[Mapping[str, str]] = {}
    """{name of a specimen: what arrives}: the place, and in parentheses the form if it is not the one the value was given in; several
    are separated with ``; ``. See `accelbus.testing.SPECIMENS`. Empty: not said, and not looked at."""

    def read(self, logging_dir: Path) -> ReadBack:
        raise NotImplementedError

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        """Return everything that the tracker's own reader finds; by default what `read` returns, which knows no media."""
        found = self.read(logging_dir)
        for point in found.points:
            yield Arrived(point.key, "text" if isinstance(point.value, str | list) else "scalar", point.value)
        for key, value in found.config.items():
            yield Arrived(f"config/{key}", "config", value)

    def test_every_type_of_value_arrives_as_declared(self, tracker: GeneralTracker, logging_dir: Path, tmp_path: Path) -> None:
        """What a user logs, through encoding, merging and the tracker's hooks, is found where the class says, and is what was logged."""
        if not self.arrivals:
            pytest.skip("the class declares nothing")
        specimens = [specimen for specimen in SPECIMENS if specimen.is_possible]
        given = _deliver(tracker, specimens, tmp_path / "specimens")
        finish_with_status(tracker, "finished")
        arrived = list(self.arrived(logging_dir))
        found = {specimen.name: _described(specimen, given.of(specimen), arrived, self.tolerance) for specimen in specimens}
        impossible = {specimen.name for specimen in SPECIMENS} - found.keys()
        assert found == {name: said for name, said in self.arrivals.items() if name not in impossible}
        assert set(self.arrivals) == {specimen.name for specimen in SPECIMENS}


class _Given(NamedTuple):
    """What the tracker was given."""

    values: Mapping[str, Any]
    """Flat; media unpacked."""
    config: Mapping[str, Any]

    def of(self, specimen: Specimen) -> dict[str, Any]:
        """Return {key as a reader names it: value}; none for a value that holds nothing."""
        where: Mapping[str, Any] = self.config if specimen.how == "config" else self.values
        beneath = specimen.key + "/"
        return {key: value for key, value in where.items() if key == specimen.key or key.startswith(beneath)}


def _deliver(tracker: GeneralTracker, specimens: Iterable[Specimen], directory: Path) -> _Given:
    """Log *specimens* as a rank does, and hand over what comes out as delivery does."""
    logged: dict[str, dict[str, Any]] = {"log": {}, "alert": {}, "config": {}, "summary": {}}
    blobs = BlobStore(directory / "blobs", "rank-0", quota=2**30)
    for specimen in specimens:
        place = directory / specimen.key.replace("/", "-")
        place.mkdir(parents=True)
        logged[specimen.how][specimen.key.rpartition("/")[2]] = specimen.make(place)
    config = config_values(logged["config"])
    summary, faults = sanitise(logged["summary"])
    assert not faults, faults
    tracker.store_init_configuration(dict(config))
    values = _encoded({**logged["log"], **logged["alert"]}, blobs)
    rows = _merged(values)
    tracker.log_batch([owed.row for owed in rows.scalars])
    media = {}
    for owed in rows.media:
        one = media[owed.media_key or ""] = unpack(owed.media, directory / "blobs")
        one.meta[TIME] = owed.row.time_ns
        tracker.log_media(owed.media_key or "", one, owed.row.step)
    tracker.summarise(summary)
    tracker.flush()
    said = {f"summary/{key}": value for key, value in summary.items()}
    return _Given({**values, **media, **said}, {f"config/{key}": value for key, value in {**config, **flatten(config)}.items()})


def _encoded(logged: Mapping[str, Any], blobs: BlobStore) -> dict[str, Any]:
    """Return what a reader of the journal finds of one call of ``log``."""
    own = encoder()
    assert isinstance(own.enc_hook, Hook)
    own.enc_hook.blobs = blobs
    clean, faults = sanitise(logged, own)
    assert not faults, faults
    return flatten(clean)


def _merged(values: dict[str, Any]) -> Rows:
    """Return what becomes of it in a run of one rank."""
    view = View(Rules(), tuning=Tuning())
    events: list[AnyEvent] = [RunStart(EPOCH_NS, "run", 0, 1, 0, "host", 1), Metrics(EPOCH_NS + STEP * 10**9, STEP, values)]
    items = [Item(EPOCH_NS, b"0123456789abcdef", 0, 0, "trainer", number, event) for number, event in enumerate(events, 1)]
    return rows_of([*view.feed(items), *view.finish()])


def _described(specimen: Specimen, given: Mapping[str, Any], arrived: Iterable[Arrived], tolerance: float) -> str:
    """Return what arrived of *specimen*, in the words of `ArrivalTests.arrivals`."""
    beneath = specimen.key + "/"
    said = []
    for one in arrived:
        if one.key == specimen.key or one.key.startswith(beneath):
            value = given.get(one.key, next(iter(given.values()), None))
            form = specimen.recognise(one.content, value, tolerance)
            assert form is not None, f"{specimen.name}: expected {_shown(value)}, found {one!r}"
            said.append(f"{one.place} ({form})" if form else one.place)
    return "; ".join(dict.fromkeys(said)) or "nothing"


def _shown(value: Any) -> str:
    return f"a {value.kind}" if isinstance(value, Media) else repr(value)
