"""Trackers given as class or instance: who they are, and how they get into another process."""

from __future__ import annotations

import enum
import subprocess
import sys
import threading

import pytest

from accelbus import tracking
from accelbus.client.trackers import admit
from accelbus.config import Settings
from accelbus.errors import ConfigurationError
from accelbus.media import Html, Image, Table
from accelbus.tracking import GeneralTracker, adapted, cross, rebuild, separate

np = pytest.importorskip("numpy")


class Listed(GeneralTracker):
    """One that can be imported."""

    name = "listed"
    requires_logging_directory = False

    def __init__(self, project, level=1, *, options=None):
        super().__init__()
        self.project, self.level, self.options = project, level, options

    @property
    def tracker(self):
        return self


class Foreign:
    """Written for Accelerate, with signatures of its own."""

    name = "foreign"
    requires_logging_directory = False

    def __init__(self, run_name="x"):
        self.run_name, self.calls = run_name, []

    @property
    def tracker(self):
        return self.calls

    def log(self, values, step):
        self.calls.append(("log", values, step))

    def log_images(self, values, step=None):
        self.calls.append(("images", {key: image[0].shape for key, image in values.items()}, step))

    def log_table(self, table_name, columns=None, data=None, dataframe=None, step=None):
        self.calls.append(("table", table_name, columns, data, step))

    def log_artifact(self, local_path, artifact_path=None):
        raise AssertionError("not our hook")

    def finish(self):
        self.calls.append("finish")


class Color(enum.Enum):
    """Like Accelerate's LoggerType."""

    WANDB = "wandb"


class TestSeparating:
    def test_names_stay_what_they_are(self):
        """None, one, several, members of an enum."""
        assert separate(None) == (None, {})
        assert separate("wandb") == ("wandb", {})
        assert separate(["wandb", Color.WANDB]) == (("wandb", "wandb"), {})
        assert separate(Color.WANDB) == (("wandb",), {})
        assert separate({"wandb"}) == (("wandb",), {})

    def test_classes_and_instances_go_by_their_names(self):
        """In their places."""
        tracker = Listed("x")
        assert separate(["jsonl", tracker, Foreign]) == (("jsonl", "listed", "foreign"), {"listed": tracker, "foreign": Foreign})
        assert separate(Foreign) == (("foreign",), {"foreign": Foreign})

    def test_what_is_no_tracker_is_refused(self):
        """With what was expected."""
        for odd in (3, object(), dict, [None]):
            with pytest.raises(ConfigurationError, match="expected the name of a tracker, a tracker class or a tracker"):
                separate([odd])

    def test_two_of_one_name_are_refused(self):
        """They would share a directory."""
        with pytest.raises(ConfigurationError, match="two trackers called 'listed'"):
            separate([Listed("a"), Listed("b")])

    def test_a_name_that_is_no_directory_is_refused(self):
        """Everything about a sink lies in a directory of its name."""
        with pytest.raises(ConfigurationError, match="expected a name that can be a directory's"):
            separate([type("Odd", (Foreign,), {"name": "../x"})])


class TestCrossing:
    def test_a_class_that_can_be_imported_crosses_by_name(self):
        """Which is written down, so that ``sync`` can build it too."""
        crossing = cross(Foreign, by_value=False)
        assert (crossing.origin.path, crossing.origin.is_instance, crossing.carried) == (f"{__name__}:Foreign", False, b"")
        assert tracking.load_tracker_class(crossing.origin.path) is Foreign

    def test_an_instance_with_plain_arguments_crosses_by_them(self):
        """They were noted when it was made."""
        origin = cross(Listed("x", 2, options={"a": [1, None]}), by_value=False).origin
        assert (origin.path, origin.args, origin.kwargs) == (f"{__name__}:Listed", ["x", 2], {"options": {"a": [1, None]}})
        assert origin.is_instance

    @pytest.mark.parametrize("options", [{1: 2}, (1, 2), np.float32(1), {"nan": float("nan")}, Color.WANDB])
    def test_other_arguments_cross_by_value(self, options):
        """What JSON would change, or cannot hold."""
        crossing = cross(Listed("x", options=options), by_value=True)
        assert crossing.origin.path == ""
        rebuilt = rebuild(crossing.carried)
        assert (rebuilt.project, str(rebuilt.options)) == ("x", str(options))

    def test_an_instance_of_another_base_class_crosses_with_its_state(self):
        """Nobody noted how it was made; it has not started, so its state is what it was made with."""
        origin = cross(Foreign("y"), by_value=False).origin
        assert (origin.path, origin.is_instance, origin.state) == (f"{__name__}:Foreign", True, {"run_name": "y", "calls": []})
        rebuilt = rebuild(cross(Foreign((1, 2)), by_value=True).carried)
        assert isinstance(rebuilt, Foreign)
        assert rebuilt.run_name == (1, 2)

    def test_a_class_that_nobody_can_import_crosses_by_value(self):
        """A process that has never heard of it builds it and uses what it refers to."""
        factor = 3

        class Local(Listed):
            name = "local"

            def value(self):
                return factor * self.level

        crossing = cross(Local("x", 2), by_value=True)
        program = "import sys; from accelbus.tracking import rebuild; print(rebuild(sys.stdin.buffer.read()).value())"
        environ = {"PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], input=crossing.carried, capture_output=True, env=environ, timeout=60, check=False
        )
        assert done.stdout == b"6\n", done.stderr

    def test_what_cannot_be_pickled_stays_and_says_why(self):
        """A lock, an open file, a model of a gigabyte."""
        assert "cannot be pickled" in cross(Listed("x", options=threading.Lock()), by_value=True).stays
        assert "more than" in cross(Listed("x", options=bytes(10**6)), by_value=True).stays
        assert "more than" in cross(Listed("x", options=[np.zeros(10**6)]), by_value=True).stays
        assert "only to a bus process of its own" in cross(Listed("x", options=(1,)), by_value=False).stays

    def test_large_arguments_are_not_written_into_the_record(self):
        """They go by value."""
        assert cross(Listed("x", options=["long"] * 20_000), by_value=True).carried


class TestAdmitting:
    def test_a_run_knows_where_each_tracker_comes_from(self):
        """Names need nothing; the rest has an origin, or stays."""
        given = {"listed": Listed("x"), "foreign": Foreign((1, 2)), "stuck": Listed("x", options=threading.Lock())}
        trackers = admit(Settings(inline=("jsonl",)), ("jsonl", *given), given)
        assert set(trackers.origins) == set(given)
        assert trackers.inline == ("jsonl", "stuck")
        assert set(trackers.carried) == {"foreign"}
        assert set(trackers.given) == {"stuck"}
        assert set(trackers.stays) == {"stuck"}
        assert not trackers.for_others().carried

    def test_an_offline_run_takes_only_what_another_process_can_build(self):
        """It would never be delivered."""
        settings = Settings(mode="offline")
        assert admit(settings, ("listed",), {"listed": Listed("x")}).origins["listed"].args == ["x"]
        with pytest.raises(ConfigurationError, match="cannot be imported by the process that will deliver an offline run"):
            admit(settings, ("foreign",), {"foreign": Foreign((1, 2))})

    def test_nothing_is_carried_to_a_daemon(self):
        """It would have to run code that somebody sent."""
        trackers = admit(Settings(endpoint="ipc:///x"), ("foreign",), {"foreign": Foreign((1, 2))})
        assert (trackers.inline, trackers.carried) == (("foreign",), {})


class TestForeignTrackers:
    def test_the_interface_is_passed_on(self):
        """Also where methods are missing or take less."""
        inner = Foreign()
        tracker = adapted(inner)
        tracker.start()
        tracker.store_init_configuration({"lr": 0.1})
        tracker.log({"loss": 1.0}, step=3)
        tracker.finish("failed")
        assert tracker.tracker == [("log", {"loss": 1.0}, 3), "finish"]
        assert (tracker.name, tracker.url, adapted(tracker)) == ("foreign", None, tracker)

    def test_its_own_ways_with_media_are_used_where_they_are_known(self, tmp_path):
        """Images and tables have Accelerate's signatures; a file goes the way of trackers without a place for it."""
        inner = Foreign()
        tracker = adapted(inner)
        tracker.run_info = tracking.RunInfo(state_dir=tmp_path / "state", output_dir=tmp_path)
        for key, wrapper in (("image", Image(np.zeros((4, 5, 3)))), ("table", Table(["a"], [[1]])), ("page", Html("x"))):
            tracker.log_media(key, wrapper.to_media(None), 3)
        assert inner.calls == [("images", {"image": (4, 5, 3)}, 3), ("table", "table", ["a"], [[1]], 3)]
        assert [path.read_text() for path in (tmp_path / "files").rglob("*.html")] == ["x"]

    def test_images_come_in_the_form_that_is_taken(self, tmp_path):
        """A list, or a batch as TensorBoard's writer wants it, or a file."""
        seen = []

        class Batches(Foreign):
            def log_images(self, values, step=None):
                seen.append({key: images.shape for key, images in values.items()})

        class Nothing(Foreign):
            def log_images(self, values, step=None):
                raise ValueError("neither")

        image = Image(np.zeros((4, 5, 3))).to_media(None)
        for kind in (Batches, Nothing):
            tracker = adapted(kind())
            tracker.run_info = tracking.RunInfo(state_dir=tmp_path / "state", output_dir=tmp_path)
            tracker.log_media("image", image, 3)
        assert seen == [{"image": (1, 3, 4, 5)}]
        assert len(list((tmp_path / "files").rglob("*.png"))) == 1

    def test_a_configuration_that_is_refused_comes_again_in_simple_types(self):
        """Flat, lists and None as text: what Accelerate's documentation promises."""
        stored = []

        class Picky(Foreign):
            def store_init_configuration(self, values):
                if not all(isinstance(value, int | float | str) for value in values.values()):
                    raise ValueError("value should be one of int, float, str, bool, or torch.Tensor")
                stored.append(values)

        tracker = adapted(Picky())
        tracker.store_init_configuration({"lr": 0.1})
        tracker.store_init_configuration({"lr": 0.1, "model": {"depth": 3, "none": None}, "betas": [1, 2], "amp": True})
        assert stored == [{"lr": 0.1}, {"lr": 0.1, "model/depth": 3, "model/none": "None", "betas": "[1, 2]", "amp": True}]

    def test_a_tracker_of_accelerates_own_base_class_is_taken(self):
        """The real one."""
        accelerate = pytest.importorskip("accelerate.tracking")

        class Csv(accelerate.GeneralTracker):
            name = "csv"
            requires_logging_directory = False

            def __init__(self, path):
                super().__init__()
                self.path, self.rows = path, []

            @property
            def tracker(self):
                return self.rows

            def log(self, values, step=None, **kwargs):
                self.rows.append((values, step, kwargs))

        tracking.register_tracker_class(Csv)
        try:
            assert tracking.resolve("csv") == ("csv",)
        finally:
            del tracking.registry._registered["csv"]
        rebuilt = adapted(rebuild(cross(Csv("somewhere"), by_value=True).carried))
        rebuilt.start()
        rebuilt.log({"loss": 1.0}, step=2, by="us")
        assert rebuilt.tracker == [({"loss": 1.0}, 2, {"by": "us"})]
