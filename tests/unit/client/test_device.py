"""Values on a device: marks at once, values when they have arrived, nobody waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from accelbus import pending
from accelbus.client.device import MOST_ITEMS, Arrivals, CapturingError, CudaCopier, Ring
from accelbus.client.faults import Faults
from accelbus.values import MAX_ITEMS, UnsupportedValueError


class FakeTensor:
    """What `Arrivals` asks of a tensor."""

    def __init__(self, value: Any, items: int = 1) -> None:
        self.value = value
        self.items = items

    def numel(self) -> int:
        return self.items

    def item(self) -> Any:
        return self.value

    def tolist(self) -> Any:
        return self.value


class FakeCopy:
    def __init__(self, value: Any) -> None:
        self._value = value
        self.arrived = False
        self.forgotten = False

    def is_done(self) -> bool:
        return self.arrived

    def value(self) -> Any:
        assert self.arrived
        return self._value

    def forget(self) -> None:
        self.forgotten = True


class FakeCopier:
    """A device whose copies are done when a test says so."""

    def __init__(self, room: int = 1000) -> None:
        self.copies: list[FakeCopy] = []
        self.room = room
        self.capturing = False

    def begin(self, tensor: FakeTensor) -> FakeCopy | None:
        if self.capturing:
            raise CapturingError("capturing")
        if len(self.copies) == self.room:
            return None
        self.copies.append(FakeCopy(tensor.value))
        return self.copies[-1]


@pytest.fixture
def copier() -> FakeCopier:
    return FakeCopier()


@pytest.fixture
def faults() -> Faults:
    return Faults(strict=False)


@pytest.fixture
def arrivals(copier, faults) -> Arrivals:
    return Arrivals(faults, patience=60.0, copier_of=lambda _: copier)


def test_a_mark_stands_for_a_value_until_it_arrives(arrivals, copier):
    """Nothing is asked of the device in between."""
    mark = arrivals.begin(FakeTensor(0.5))
    assert arrivals.collect() == {}
    assert arrivals
    copier.copies[0].arrived = True
    assert arrivals.collect() == {pending.token_of(mark): 0.5}
    assert not arrivals
    assert arrivals.collect() == {}


def test_values_come_in_whatever_order_the_device_finishes(arrivals, copier):
    """Streams are independent of each other."""
    tokens = [pending.token_of(arrivals.begin(FakeTensor(value))) for value in (1.0, 2.0, 3.0)]
    copier.copies[2].arrived = True
    assert arrivals.collect() == {tokens[2]: 3.0}
    copier.copies[0].arrived = True
    assert arrivals.collect() == {tokens[0]: 1.0}
    copier.copies[1].arrived = True
    assert arrivals.collect() == {tokens[1]: 2.0}


def test_a_copy_that_never_ends_is_given_up_and_counted(copier, faults):
    """The view must not wait for it for ever; its place is not used again."""
    arrivals = Arrivals(faults, patience=-1.0, copier_of=lambda _: copier)
    token = pending.token_of(arrivals.begin(FakeTensor(1.0)))
    assert arrivals.collect() == {token: None}
    assert faults.dropped() == {"device_lost": 1}
    assert copier.copies[0].forgotten


def test_at_the_end_what_has_arrived_is_kept_and_the_rest_is_counted(arrivals, copier, faults):
    """Each mark gets an answer."""
    first, second = (pending.token_of(arrivals.begin(FakeTensor(value))) for value in (1.0, 2.0))
    copier.copies[0].arrived = True
    assert arrivals.give_up() == {first: 1.0, second: None}
    assert faults.dropped() == {"device_lost": 1}


def test_without_room_the_value_is_refused_with_a_reason(faults):
    """Waiting for room would wait for the device."""
    arrivals = Arrivals(faults, patience=60.0, copier_of=lambda _: FakeCopier(room=0))
    with pytest.raises(UnsupportedValueError, match="on their way") as refusal:
        arrivals.begin(FakeTensor(1.0))
    assert refusal.value.reason == "device_lost"


def test_a_value_is_no_part_of_a_graph_that_is_being_captured(arrivals, copier):
    """It would be copied at every replay."""
    copier.capturing = True
    with pytest.raises(UnsupportedValueError, match="capturing") as refusal:
        arrivals.begin(FakeTensor(1.0))
    assert refusal.value.reason == "device_lost"


def test_large_tensors_are_waited_for(arrivals, copier):
    """They would take all the room there is; beyond the bound of host memory they are refused."""
    assert arrivals.begin(FakeTensor([1.0, 2.0], items=MOST_ITEMS + 1)) == [1.0, 2.0]
    with pytest.raises(UnsupportedValueError) as refusal:
        arrivals.begin(FakeTensor(None, items=MAX_ITEMS + 1))
    assert refusal.value.reason == "too_large"
    assert copier.copies == []


def test_devices_without_a_copier_are_waited_for(faults):
    """There is no other way to their values."""
    arrivals = Arrivals(faults, patience=60.0, copier_of=lambda _: None)
    assert arrivals.begin(FakeTensor(2.5)) == 2.5
    assert not arrivals


class FakePlace:
    def __init__(self) -> None:
        self.free = False

    def is_free(self) -> bool:
        return self.free


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), max_size=60))
def test_places_of_a_ring_never_overlap(wishes):
    """Whatever comes back in whatever order; and a ring that is empty has room for all of its size."""
    ring, held = Ring(64), []
    for size, freed in wishes:
        place = FakePlace()
        at = ring.take(place, size)
        if at is not None:
            assert at >= 0
            assert at + size <= 64
            assert all(at + size <= other or other + its <= at for _, other, its in held)
            held.append((place, at, size))
        if held and freed:
            held.pop(freed % len(held))[0].free = True
    for place, _, _ in held:
        place.free = True
    assert ring.take(FakePlace(), 64) == 0


@pytest.mark.parametrize(
    "tensor, value",
    [
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor([[1.5]], dtype=torch.float16), 1.5),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (torch.tensor(2**53 + 1), 2**53 + 1),
        (torch.tensor(True), 1),
        (torch.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (torch.tensor([1.0, 2.0, 3.0], requires_grad=True), [1.0, 2.0, 3.0]),
        (torch.zeros(0), []),
    ],
)
def test_a_copy_is_the_value_whatever_its_type_and_shape(tensor, value):
    """The copier of CUDA devices, on tensors of the host, where each copy is done when it has begun."""
    copy = CudaCopier(torch.device("cpu")).begin(tensor)
    assert copy is not None
    assert copy.is_done()
    assert copy.value() == value


def test_a_copier_gives_its_room_back_and_says_when_there_is_none():
    """Room is bounded; what was taken out is free again."""
    copier = CudaCopier(torch.device("cpu"), size=64)
    copies = [copier.begin(torch.tensor(float(number))) for number in range(4)]
    assert copier.begin(torch.tensor(9.0)) is None
    assert [copy.value() for copy in copies if copy is not None] == [0.0, 1.0, 2.0, 3.0]
    assert copier.begin(torch.tensor(9.0)) is not None
