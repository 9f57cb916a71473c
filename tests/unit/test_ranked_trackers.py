"""Which trackers every rank has one of, and what they are called."""

from __future__ import annotations

import pytest

from accelbus import GeneralTracker
from accelbus.tracking import name_and_rank, sink_of_rank, wants_every_rank


class EveryRank(GeneralTracker):
    name = "every"
    requires_logging_directory = False
    main_process_only = False
    tracker = None


def test_a_class_or_an_instance_asks_for_one_in_every_rank():
    """By the attribute that Accelerate has for it."""
    assert wants_every_rank(EveryRank)
    assert wants_every_rank(EveryRank())
    assert not wants_every_rank(GeneralTracker)
    assert not wants_every_rank(None)


def test_trackers_that_come_with_accelerate_are_one_as_there():
    """Its W&B tracker has the attribute, and its ``Accelerator`` makes it in the main process all the same."""
    accelerate = pytest.importorskip("accelerate.tracking")
    assert accelerate.WandBTracker.main_process_only is False
    assert not wants_every_rank(accelerate.WandBTracker)


@pytest.mark.parametrize("name", ["wandb", "my_module:Class", "a@rank", "x@rank3"])
def test_names_of_sinks_can_be_taken_apart(name: str):
    """Whatever the tracker is called."""
    assert name_and_rank(sink_of_rank(name, 12)) == (name, 12)
    assert name_and_rank("wandb") == ("wandb", None)
