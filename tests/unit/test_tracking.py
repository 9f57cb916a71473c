"""The seam for trackers: the base class, the registry, and names to classes."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from typing import ClassVar

import pytest

from accelbus import tracking
from accelbus.errors import ConfigurationError, MissingExtraError, UnknownTrackerError
from accelbus.rundir import RunRecord
from accelbus.tracking import (
    GeneralTracker,
    Row,
    TrackerSpec,
    finish_with_status,
    load_tracker_class,
    make_tracker,
    overrides,
    registry as tracker_registry,
    resolve,
)


class Recorder(GeneralTracker):
    """Remembers its calls; written as for Accelerate, without any of our hooks."""

    name = "recorder"
    requires_logging_directory = False

    def __init__(self, run_name, **kwargs):
        super().__init__()
        self.run_name, self.kwargs, self.calls = run_name, kwargs, []

    @property
    def tracker(self):
        return self.calls

    def log(self, values, step=None):
        self.calls.append((values, step))

    def finish(self):
        self.calls.append("finish")


class Foreign:
    """A tracker that inherits from somebody else's base class."""

    name = "foreign"
    requires_logging_directory = True

    def __init__(self, run_name, logging_dir):
        self.arguments = (run_name, logging_dir)

    def log(self, values, step=None, **kwargs): ...


RECORDER = f"{__name__}:Recorder"
THIRD_PARTY = importlib.metadata.EntryPoint("theirs", RECORDER, tracking.ENTRY_POINTS)
RUN = RunRecord(run_id="digits-1", project="digits")


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A registry of this test's own."""
    monkeypatch.setattr(tracker_registry, "_registered", {})
    return tracker_registry._registered


@pytest.fixture
def entry_points(monkeypatch):
    """One third-party tracker is installed, and nothing else."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [THIRD_PARTY] if group == tracking.ENTRY_POINTS else [])


@pytest.fixture
def no_tensorboard(monkeypatch):
    """TensorBoard is known, and its package is not installed."""
    monkeypatch.setitem(
        tracking.BUILT_IN, "tensorboard", TrackerSpec("tensorboard", "tensorboard_of_nobody", "tensorboard", "TensorBoardTracker")
    )


def test_a_class_without_the_required_attributes_names_all_of_them():
    """The message is Accelerate's, so that what is found about it on the web applies."""
    with pytest.raises(NotImplementedError, match=r"`name`, `requires_logging_directory`, `tracker`$"):
        type("Bare", (GeneralTracker,), {})()
    with pytest.raises(NotImplementedError, match=r"class definition: `tracker`$"):
        type("Half", (GeneralTracker,), {"name": "half", "requires_logging_directory": False})()


def test_a_blank_tracker_takes_every_call():
    """It stands for a tracker where there is none, and needs no attributes."""
    blank = GeneralTracker(_blank=True)
    blank.start()
    blank.store_init_configuration({"lr": 0.1})
    blank.log({"loss": 1.0}, step=1)
    blank.log_batch([Row(1, {"loss": 1.0}, 0)])
    blank.flush()
    blank.restore(blank.checkpoint())
    blank.finish("failed")
    assert blank.url is None


def test_a_batch_is_logged_row_by_row_by_default():
    """A tracker with nothing but ``log`` gets every row, in order, with its step."""
    tracker = Recorder("run")
    tracker.log_batch([Row(10, {"loss": 1.0}, 0), Row(5, {"loss": 2.0}, 0)])
    assert tracker.calls == [({"loss": 1.0}, 10), ({"loss": 2.0}, 5)]


def test_own_hooks_are_told_from_inherited_ones():
    """Delivery uses a tracker's own batches, and logs row by row where it has none."""
    assert not overrides(Recorder("run"), "log_batch")
    assert not overrides(Foreign("run", "dir"), "log_batch")
    assert overrides(type("Batching", (Recorder,), {"log_batch": lambda self, rows: None})("run"), "log_batch")


def test_the_status_reaches_trackers_that_take_one_only():
    """Accelerate's ``finish()`` has no argument; ours has, by name or in ``**kwargs``."""
    plain = Recorder("run")
    finish_with_status(plain, "failed")
    assert plain.calls == ["finish"]
    seen = []
    for method in (lambda self, status=None: seen.append(status), lambda self, **kwargs: seen.append(kwargs["status"])):
        finish_with_status(type("Own", (Recorder,), {"finish": method})("run"), "failed")
    assert seen == ["failed", "failed"]


def test_trackers_are_built_as_accelerate_builds_them(tmp_path):
    """Project, then the logging directory where one is asked for, then the arguments for this tracker."""
    plain = make_tracker(Recorder, RUN, tmp_path, {"mode": "offline"})
    assert (plain.run_name, plain.kwargs) == ("digits", {"mode": "offline"})
    assert make_tracker(Foreign, RUN, tmp_path, {}).arguments == ("digits", str(tmp_path))


@pytest.mark.parametrize(
    "refused, message",
    [
        (object(), "`tracker_class` must be a subclass of `GeneralTracker`, but got"),
        ({"name": "x"}, "`tracker_class` must be a subclass of `GeneralTracker`, but got"),
        (type("Silent", (), {"name": "x", "requires_logging_directory": False}), "`tracker_class` must be a subclass of `GeneralTracker`"),
        (type("Nameless", (GeneralTracker,), {}), "must define a non-empty `name` attribute"),
        (type("Empty", (GeneralTracker,), {"name": ""}), "must define a non-empty `name` attribute"),
        (type("Directory", (GeneralTracker,), {"name": "x"}), "must define a `requires_logging_directory` class attribute"),
    ],
)
def test_registering_what_is_no_tracker_is_refused(refused, message, registry):
    """The reference's checks, with the reference's words."""
    with pytest.raises(ValueError, match=message):
        tracking.register_tracker_class(refused)
    assert registry == {}


@pytest.mark.parametrize("taken", ["recorder", "tensorboard"])
def test_a_name_that_is_taken_is_overwritten_with_a_warning(taken, registry):
    """Shadowing a built-in tracker works, and is said."""
    first, second = (type("Named", (Recorder,), {"name": taken}) for _ in range(2))
    if taken == "recorder":
        tracking.register_tracker_class(first)
    with pytest.warns(UserWarning, match=f"A tracker with the name '{taken}' is already registered"):
        tracking.register_tracker_class(second)
    assert registry[taken] is second


def test_curves_without_a_decision(no_tensorboard):
    """Nothing said means JSONL where TensorBoard is missing."""
    assert resolve(None) == ("jsonl",)


def test_tensorboard_where_it_is_installed():
    """Nothing said means TensorBoard otherwise: curves, and no account."""
    pytest.importorskip("tensorboard")
    assert resolve(None) == ("tensorboard",)


def test_names_come_back_in_order_and_once():
    """A name alone, several, and doubled ones."""
    assert resolve("jsonl") == ("jsonl",)
    assert resolve(["jsonl", RECORDER, "jsonl"]) == ("jsonl", RECORDER)
    assert resolve([]) == ()


@pytest.mark.usefixtures("entry_points", "no_tensorboard")
def test_all_means_everything_that_is_there():
    """Installed, registered and third-party trackers, without those whose package is missing."""
    tracking.register_tracker_class(Recorder)
    found = resolve("all")
    assert found[0] == "jsonl"
    assert found[-2:] == ("recorder", "theirs")
    assert "tensorboard" not in found
    assert resolve(["all", "jsonl"])[0] == "jsonl"


@pytest.mark.usefixtures("entry_points")
def test_an_unknown_name_is_an_error_that_names_the_known_and_the_close():
    """A typing error must not train for a day without a tracker."""
    tracking.register_tracker_class(Recorder)
    with pytest.raises(
        UnknownTrackerError, match=r"unknown tracker 'tensorbord' \(known: .*jsonl, .*recorder, .*theirs.*, or 'module:Class'\)"
    ):
        resolve(["jsonl", "tensorbord"])
    with pytest.raises(ConfigurationError, match="did you mean 'tensorboard'"):
        resolve("tensorbord")
    with pytest.raises(UnknownTrackerError, match="unknown tracker ''"):
        resolve("")


def test_a_missing_package_is_an_error_with_the_install_command(no_tensorboard):
    """Named trackers are never skipped in silence."""
    with pytest.raises(MissingExtraError, match=r"needs the package 'tensorboard_of_nobody'.*pip install 'accelbus\[tensorboard\]'"):
        resolve(["tensorboard"])


def test_registered_and_given_trackers_go_by_their_names():
    """In every setting, file and message."""
    tracking.register_tracker_class(Recorder)
    assert resolve("recorder") == ("recorder",)
    assert load_tracker_class("recorder") is Recorder
    assert resolve(["given", "jsonl"], given={"given"}) == ("given", "jsonl")


def test_a_tracker_of_another_base_class_can_be_registered(registry):
    """What has the attributes and methods is a tracker."""
    tracking.register_tracker_class(Foreign)
    assert registry == {"foreign": Foreign}


@pytest.mark.parametrize(
    "path", ["__main__:Tracker", "no_such_module:Tracker", "no_such_package.module:Tracker", ":Tracker", ".relative:Tracker"]
)
def test_a_path_into_no_package_is_unknown(path):
    """Import paths are checked as far as that goes without importing."""
    with pytest.raises(UnknownTrackerError):
        resolve(path)


def test_resolving_imports_no_tracker():
    """The training process never pays for a tracker's import."""
    pytest.importorskip("tensorboard")
    script = f"""
import sys
sys.path[:] = {sys.path!r}
from accelbus.tracking import resolve
resolve("all"), resolve(None), resolve("tensorboard.plugins:X")
assert not {{"tensorboard", "accelbus_sinks", "torch", "numpy"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_built_in_trackers_are_found_by_their_entry_points():
    """They use the door that third parties use."""
    names = set(tracker_registry._entry_points())
    assert set(tracking.BUILT_IN) <= names
    # The others' libraries are imported by their contract tests.
    for name in ("jsonl", "tensorboard"):
        assert load_tracker_class(name).name == name


@pytest.mark.usefixtures("entry_points")
def test_a_third_party_tracker_is_found_by_its_entry_point():
    """Installing a package is all it takes."""
    assert resolve("theirs") == ("theirs",)
    assert load_tracker_class("theirs") is Recorder


def test_a_tracker_of_another_base_class_loads(registry):
    """What has the attributes and methods is a tracker."""
    assert load_tracker_class(f"{__name__}:Foreign") is Foreign


@pytest.mark.parametrize(
    "path, message",
    [
        ("no_such_module:Tracker", "cannot be imported from 'no_such_module:Tracker'"),
        (f"{__name__}:Nothing", "has no 'Nothing'"),
        (f"{__name__}:RUN", "expected a GeneralTracker class"),
        ("collections:OrderedDict", "expected a GeneralTracker class"),
        ("nobody", "unknown tracker 'nobody'"),
    ],
)
def test_loading_what_is_no_tracker_says_what_is_there(path, message):
    """A wrong path, name or class is named with what was expected."""
    with pytest.raises(UnknownTrackerError, match=message):
        load_tracker_class(path)


class _Broken:
    """An installed entry point whose package is missing."""

    entry: ClassVar = importlib.metadata.EntryPoint("tensorboard", "tensorboard_of_nobody:Tracker", tracking.ENTRY_POINTS)


def test_loading_a_built_in_tracker_without_its_package_says_the_install_command(monkeypatch, no_tensorboard):
    """Also from a login node that delivers a run of a cluster which had the package."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [_Broken.entry])
    with pytest.raises(MissingExtraError, match=r"pip install 'accelbus\[tensorboard\]'"):
        load_tracker_class("tensorboard")


class TestAccelerateNames:
    def test_logger_types_are_the_built_in_trackers(self):
        """Members work wherever names do."""
        assert set(tracking.LoggerType.list()) - {"all"} >= {"jsonl", "tensorboard", "wandb", "mlflow"}
        assert set(tracking.BUILT_IN) <= set(tracking.LoggerType.list())
        assert str(tracking.LoggerType.WANDB) == "wandb"
        assert "wandb" in tracking.LoggerType
        assert "wandbb" not in tracking.LoggerType
        assert resolve([tracking.LoggerType.JSONL]) == ("jsonl",)

    def test_filtering_gives_each_tracker_once(self):
        """Instances and classes stay what they are; None is nothing."""
        recorder = Recorder("x")
        assert tracking.filter_trackers(None) == []
        assert tracking.filter_trackers(["jsonl", tracking.LoggerType.JSONL, recorder, Foreign]) == ["jsonl", recorder, Foreign]
        assert tracking.filter_trackers(tracking.LoggerType.JSONL, "somewhere") == ["jsonl"]

    @pytest.mark.usefixtures("entry_points", "no_tensorboard")
    def test_all_stands_for_what_is_there(self):
        """And is said by name."""
        tracking.register_tracker_class(Recorder)
        there = tracking.get_available_trackers()
        assert {"jsonl", "recorder", "theirs"} <= set(there)
        assert "tensorboard" not in there
        assert tracking.filter_trackers("all") == there

    def test_what_is_unknown_or_missing_is_a_value_error(self, no_tensorboard):
        """Accelerate's code expects that; the message says more."""
        with pytest.raises(ValueError, match="unknown tracker 'wandbb'"):
            tracking.filter_trackers("wandbb")
        with pytest.raises(ValueError, match="pip install"):
            tracking.filter_trackers(["tensorboard"])


class TestNotices:
    def test_a_notice_outside_of_delivery_is_logged_once(self, caplog):
        """So that a tracker may give one wherever it is used."""
        tracker = Recorder("digits")
        for text in ("one", "two", "one"):
            tracker.notice(text)
        assert caplog.messages == ["one", "two"]

    def test_in_delivery_it_goes_to_the_user(self, caplog):
        """And nowhere else."""
        told = []
        tracker = Recorder("digits")
        tracker.tell_user = told.append
        tracker.notice("one")
        assert (told, caplog.messages) == (["one"], [])

    def test_a_tracker_that_knows_nothing_of_it_refuses_nothing(self):
        """Also one that was written for Accelerate, behind its adapter, whatever methods of that name it has."""
        inner = Foreign("digits", "logs")
        inner.refused_rows = lambda: ["mine"]
        assert tracking.adapted(inner).refused_rows() == Recorder("digits").refused_rows() == []
        assert not overrides(tracking.adapted(inner), "refused_rows")


class TestVersionsOfPackages:
    @pytest.fixture
    def aim_of(self, tmp_path, monkeypatch):
        """Return a function that installs a package called aim, of a version, before every other."""

        def install(version):
            (tmp_path / "aim").mkdir()
            (tmp_path / "aim" / "__init__.py").touch()
            (tmp_path / f"aim-{version}.dist-info").mkdir()
            monkeypatch.delitem(sys.modules, "aim", raising=False)
            monkeypatch.syspath_prepend(tmp_path)

        return install

    def test_a_package_that_is_too_new_counts_as_missing(self, aim_of):
        """Aim 4 is another program: the error says which version is needed, and "all" goes without it."""
        aim_of("4.0.1")
        with pytest.raises(MissingExtraError, match=r"needs the package 'aim' below 4, 4\.0\.1 is installed; pip install"):
            resolve("aim")
        assert "aim" not in resolve("all")

    def test_a_version_that_is_known_to_work_does(self, aim_of):
        """By its major number alone."""
        aim_of("3.29.1")
        assert resolve("aim") == ("aim",)

    def test_no_command_is_advised_that_installs_nothing(self, monkeypatch):
        """Aim has no release for Python 3.13, so its extra is empty there."""
        monkeypatch.setattr(tracker_registry.importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(tracker_registry.sys, "version_info", (3, 13, 1))
        with pytest.raises(MissingExtraError, match=r"not installed; it has no release for Python 3\.13, use one below 3\.13$"):
            resolve("aim")
        monkeypatch.setattr(tracker_registry.sys, "version_info", (3, 12, 1))
        with pytest.raises(MissingExtraError, match=r"pip install 'accelbus\[aim\]'"):
            resolve("aim")

    def test_no_rank_loads_the_metadata_of_packages_to_know_a_version(self):
        """It brings email, csv and zipfile."""
        code = "import sys; from accelbus.tracking import BUILT_IN, registry; [registry._is_installed(s) for s in BUILT_IN.values()]; print('importlib.metadata' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
