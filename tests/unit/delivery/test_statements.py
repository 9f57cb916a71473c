"""What ranks say about a run beside its values, and how a tracker is told."""

from __future__ import annotations

import msgspec
import pytest

from accelbus.blobs import BlobStore
from accelbus.config import Tuning
from accelbus.delivery.cursor import Cursor
from accelbus.delivery.statements import Statements, Teller, loaded
from accelbus.delivery.status import SinkStatus
from accelbus.events import ConfigUpdate, ConsoleLines, MetricDefinition, RunFacts, RunStart, Summary
from tests.support.views import item, log

TUNING = Tuning()


@pytest.fixture
def statements():
    return Statements(Cursor(), "wandb")


class TestStatements:
    def test_each_kind_is_merged_for_itself(self, statements):
        """And says what changed."""
        events = [
            ConfigUpdate(1, {"lr": 0.1}),
            Summary(1, {"best": 0.9}),
            MetricDefinition(1, "eval/*", axis="epoch", summary="max"),
            RunFacts(1, {"git": {"commit": "abc"}}),
            ConsoleLines(1, ["hello"]),
        ]
        assert [statements.take(item(0, event, 1.0)) for event in events] == ["config", "summary", "definitions", "facts", "console"]
        assert statements.of("config") == {"lr": 0.1}
        assert statements.of("summary") == {"best": 0.9}
        assert statements.of("definitions") == {"eval/*": ["epoch", "max", ""]}
        assert statements.of("facts") == {"git": {"commit": "abc"}}
        assert statements.of("console") == ["hello"]

    def test_the_lowest_rank_of_the_newest_attempt_rules(self, statements):
        """As for the configuration."""
        for rank, attempt, value in ((1, 0, 1), (0, 0, 2), (1, 0, 3), (3, 1, 4), (0, 0, 5)):
            statements.take(item(rank, Summary(1, {"best": value}), 1.0, attempt=attempt))
        assert statements.of("summary") == {"best": 4}

    def test_what_is_said_again_changes_nothing(self, statements):
        """All ranks run the same script; the tracker is told once."""
        definition = MetricDefinition(1, "loss", summary="min")
        assert [statements.take(item(rank, definition, 1.0)) for rank in range(3)] == ["definitions", None, None]

    def test_what_is_for_others_is_not_for_us(self, statements):
        """Events may name their sinks."""
        assert statements.take(item(0, ConfigUpdate(1, {"a": 1}, ("mlflow",)), 1.0)) is None
        assert statements.take(item(0, ConfigUpdate(1, {"a": 1}, ("mlflow", "wandb")), 1.0)) == "config"
        assert statements.take(item(0, Summary(1, {"a": 1}, ("mlflow",)), 1.0)) is None
        assert statements.take(item(0, MetricDefinition(1, "a", sinks=("mlflow",)), 1.0)) is None

    def test_the_run_record_has_the_hosts(self, statements):
        """Of the newest attempt's trainers; without a record nobody is told where they run."""

        def begins(rank, host, attempt=0, role="trainer"):
            return statements.take(item(rank, RunStart(1, "run", rank, 3, 0, host, 1, role), 1.0, attempt=attempt))

        assert [begins(1, "b"), begins(0, "a"), begins(0, "c", role="evaluator")] == [None, None, None]
        assert statements.of("facts") == {}
        assert statements.take(item(0, RunFacts(1, {"argv": ["x"]}), 1.0)) == "facts"
        assert begins(2, "b") == "facts"
        assert begins(2, "b") is None
        assert statements.of("facts") == {"argv": ["x"], "hosts": {"a": [0], "b": [1, 2]}}
        begins(0, "d", attempt=1)
        assert begins(1, "a") is None
        assert statements.of("facts")["hosts"] == {"d": [0]}

    def test_values_are_no_statements(self, statements):
        """The view has them."""
        assert statements.take(log(0, 1, {"a": 1.0})) is None

    def test_what_a_cursor_has_to_hold_is_bounded(self, statements):
        """Programs that invent keys, and print without end, fill no cursor."""
        for number in range(5000):
            statements.take(item(0, Summary(1, {f"key{number}": 1}), 1.0))
        statements.take(item(0, Summary(1, {"key1": 2, "one more": 1}), 1.0))
        assert len(statements.of("summary")) == 4096
        assert statements.of("summary")["key1"] == 2
        statements.take(item(0, ConsoleLines(1, [str(number) for number in range(3000)]), 1.0))
        statements.take(item(0, ConsoleLines(1, ["x" * 10**6]), 1.0))
        assert (len(statements.of("console")), statements.lines_left_out) == (1000, 2001)
        assert sum(map(len, statements.of("console"))) < 10**4


def test_large_values_are_read_from_their_files(tmp_path):
    """A configuration of a megabyte is no event; a file that is gone is said where the value was."""
    store = BlobStore(tmp_path, "me", quota=10**6)
    large = store.write(b"\xa5large")
    assert loaded({"a": large, "b": {"c": 1}}, tmp_path) == {"a": "large", "b": {"c": 1}}
    for file in tmp_path.iterdir():
        file.unlink()
    assert loaded({"a": large}, tmp_path)["a"].startswith("(lost: ")


def test_a_part_of_a_large_mapping_can_change(tmp_path):
    """It is merged into what the file holds."""
    store = BlobStore(tmp_path, "me", quota=10**6)
    model = store.write(msgspec.msgpack.encode({"depth": 3, "names": ["x"]}))
    statements = Statements(Cursor(), "wandb", tmp_path)
    statements.take(item(0, ConfigUpdate(1, {"model": model}), 1.0))
    assert statements.config.values["model"] == model
    statements.take(item(0, ConfigUpdate(1, {"model": {"depth": 4}}), 1.0))
    assert loaded(statements.of("config"), tmp_path) == {"model": {"depth": 4, "names": ["x"]}}


class Tracker:
    """Remembers what it is told; raises what it is told to."""

    def __init__(self):
        self.told = []
        self.error = None
        self.now = 0.0
        self.notices = []
        self.letters = []

    def tell(self, kind, said):
        if self.error is not None:
            raise self.error
        self.told.append((kind, list(said)))

    def give_up(self, kind, said, reason):
        if self.letters is None:
            raise OSError(28, "No space left on device")
        self.letters.append((kind, dict(said), reason))


@pytest.fixture
def tracker():
    return Tracker()


def teller(statements, tracker, *, known=(), deadly=()):
    return Teller(
        statements,
        tracker.tell,
        tracker.give_up,
        tracker.notices.append,
        known=known,
        deadly=deadly,
        tuning=TUNING,
        status=SinkStatus(sink="wandb"),
        monotonic=lambda: tracker.now,
    )


def say(statements, about, *events):
    about.note({kind for event in events if (kind := statements.take(item(0, event, 1.0))) is not None})


class TestTeller:
    def test_a_fresh_tracker_is_told_everything_there_is(self, statements, tracker):
        """In an order that makes sense: the configuration first."""
        for event in (Summary(1, {"best": 1}), MetricDefinition(1, "loss"), ConfigUpdate(1, {"lr": 0.1})):
            statements.take(item(0, event, 1.0))
        teller(statements, tracker).tell()
        assert tracker.told == [("config", ["lr"]), ("definitions", ["loss"]), ("summary", ["best"])]

    def test_it_is_told_again_only_what_changed(self, statements, tracker):
        """All of that kind."""
        about = teller(statements, tracker)
        say(statements, about, ConfigUpdate(1, {"lr": 0.1}), Summary(1, {"best": 1}))
        about.tell()
        say(statements, about, ConfigUpdate(1, {"seed": 1}), Summary(1, {"best": 1}))
        about.tell()
        assert tracker.told[2:] == [("config", ["lr", "seed"])]
        assert not about.owes

    def test_console_lines_are_told_once(self, statements, tracker):
        """They are no state; what was taken is forgotten."""
        about = teller(statements, tracker)
        for line in ("one", "two"):
            say(statements, about, ConsoleLines(1, [line]))
            about.tell()
        assert tracker.told == [("console", ["one"]), ("console", ["two"])]

    def test_what_fails_is_repeated_with_patience(self, statements, tracker):
        """Nothing waits for it meanwhile, and one kind does not hold up another."""
        about = teller(statements, tracker)
        tracker.error = RuntimeError("busy")
        say(statements, about, ConfigUpdate(1, {"lr": 0.1}))
        about.tell()
        tracker.error = None
        about.tell()
        assert tracker.told == []
        say(statements, about, Summary(1, {"best": 1}))
        about.tell()
        assert tracker.told == [("summary", ["best"])]
        tracker.now += 1.0
        about.tell()
        assert tracker.told[1:] == [("config", ["lr"])]

    def test_what_is_refused_again_and_again_is_a_dead_letter_until_it_changes(self, statements, tracker):
        """The user hears of the trouble once; later everything is told again."""
        about = teller(statements, tracker)
        tracker.error = ValueError("no")
        say(statements, about, ConfigUpdate(1, {"lr": 0.1}))
        for _ in range(TUNING.failures_of_last_row):
            about.tell()
            tracker.now += 60
        assert not about.owes
        assert tracker.letters == [("config", {"lr": 0.1}, "ValueError: no")]
        assert tracker.notices == ["the configuration is not taken (ValueError: no); trying again"]
        tracker.error = None
        say(statements, about, ConfigUpdate(1, {"seed": 1}))
        about.tell()
        assert tracker.told == [("config", ["lr", "seed"])]

    def test_an_outage_is_no_refusal_however_long_it_lasts(self, statements, tracker):
        """Also at the end of a run: it is owed, and told when the service is back."""
        about = teller(statements, tracker)
        tracker.error = ConnectionError("away")
        say(statements, about, Summary(1, {"best": 1}))
        for _ in range(10 * TUNING.failures_of_last_row):
            about.tell()
            tracker.now += 60
        assert about.owes
        assert tracker.letters == []
        tracker.error = None
        about.tell()
        assert tracker.told == [("summary", ["best"])]

    def test_what_no_dead_letter_can_be_written_of_stays_owed(self, statements, tracker):
        """A full disk loses no configuration."""
        about = teller(statements, tracker)
        tracker.error = ValueError("no")
        tracker.letters = None
        say(statements, about, ConfigUpdate(1, {"lr": 0.1}))
        for _ in range(TUNING.failures_of_last_row):
            about.tell()
            tracker.now += 60
        assert about.owes

    def test_keys_without_room_are_dead_letters_once(self, statements, tracker):
        """However often a summary repeats them."""
        about = teller(statements, tracker)
        for value in (1, 2):
            say(statements, about, Summary(1, {f"key {number}": value for number in range(4098)}))
            about.tell()
        assert tracker.letters == [("summary", {"key 4096": 1, "key 4097": 1}, "more than 4096 keys")]
        assert len(statements.of("summary")) == 4096

    def test_lines_that_were_not_taken_in_time_are_spoken_of(self, statements, tracker):
        """The journal has them."""
        about = teller(statements, tracker)
        say(statements, about, ConsoleLines(1, ["line"] * 1001))
        about.tell()
        assert [notice.partition(":")[0] for notice in tracker.notices] == ["lines of the console are left out"]

    def test_what_workers_died_of_is_left_out(self, statements, tracker):
        """The rest is told."""
        about = teller(statements, tracker, deadly=("config",))
        say(statements, about, ConfigUpdate(1, {"lr": 0.1}), Summary(1, {"best": 1}))
        about.tell()
        assert tracker.told == [("summary", ["best"])]
        assert tracker.letters == [("config", {"lr": 0.1}, "workers died or hung on it")]
