"""What a user can get wrong: loud at `init`, counted and warned about during the run, raised under ``ACCELBUS_STRICT=1``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.job import Job, running_job
from tests.support.scripts import script

REFUSED = {
    "unknown tracker": ("log_with='tensorbord'", "UnknownTrackerError", ["'tensorbord'", "did you mean 'tensorboard'"]),
    "unknown tracker among others": ("log_with=['jsonl', 'nobody']", "UnknownTrackerError", ["'nobody'", "known: ", "jsonl"]),
    "missing extra": ("log_with=without('tensorboard')", "MissingExtraError", ["pip install 'accelbus[tensorboard]'"]),
    "unknown setting": ("run_ids='a'", "ConfigurationError", ["'run_ids'", "did you mean 'run_id'"]),
    "wrong type": ("tags=3", "ConfigurationError", ["tags=3", "Expected"]),
    "wrong choice": ("mode='on'", "ConfigurationError", ["mode='on'"]),
    "negative time": ("finish_timeout=-1.0", "ConfigurationError", ["finish_timeout=-1.0", ">= 0"]),
    "negative attempt": ("attempt=-1", "ConfigurationError", ["attempt=-1", ">= 0"]),
    "empty role": ("role=''", "ConfigurationError", ["role=''"]),
    "unsafe run id": ("run_id='../elsewhere'", "ConfigurationError", ["'../elsewhere'", "letters, digits"]),
    "no run to resume": ("resume='must', run_id='nothing'", "ConfigurationError", ["'nothing'"]),
    "required and not there": ("require=['tensorboard']", "ConfigurationError", ["'tensorboard'", "log_with (jsonl)"]),
    "arguments for nobody": ("init_kwargs={'wandb': {}}", "ConfigurationError", ["'wandb'", "log_with (jsonl)"]),
    "configuration from nobody": ("config_from='wandb'", "ConfigurationError", ["'wandb'", "log_with (jsonl)"]),
    "configuration without anybody to ask": ("config_from='jsonl', mode='offline'", "ConfigurationError", ["mode='offline'", "'online'"]),
    "configuration from the main rank": ("config_from='jsonl', inline=['jsonl']", "ConfigurationError", ["'jsonl'", "process of its own"]),
    "no address": ("endpoint='localhost'", "ConfigurationError", ["'localhost'", "tcp://127.0.0.1:5557"]),
    "address of no kind": ("endpoint='foo://bar'", "ConfigurationError", ["'foo://bar'", "ipc://", "tcp://127.0.0.1:5557"]),
    "address without a port": ("endpoint='tcp://127.0.0.1'", "ConfigurationError", ["'tcp://127.0.0.1'", "port"]),
    "address with a port beyond all": ("endpoint='tcp://127.0.0.1:65536'", "ConfigurationError", ["65536", "port"]),
    "relative address": ("endpoint='ipc://run/bus.sock'", "ConfigurationError", ["'ipc://run/bus.sock'", "absolute path"]),
    "address longer than a socket's": ("endpoint='ipc:///' + 'a' * 120", "ConfigurationError", ["at most 103 bytes", "121"]),
    "plain text to another machine": (
        "endpoint='tcp://head:5557'",
        "ConfigurationError",
        ["'tcp://head:5557'", "encrypted", "ipc://", "127.0.0.1"],
    ),
    "reduction nobody knows": ("reduce={'*': 'median'}", "ConfigurationError", ["median"]),
    "config that is none": ("config=[1, 2]", "ConfigurationError", ["[1, 2]"]),
    "required without anybody to start it": (
        "require=['jsonl'], mode='offline'",
        "ConfigurationError",
        ["require=('jsonl',)", "'offline'", "'online'"],
    ),
    "arguments that cannot be written down": (
        "init_kwargs={'jsonl': {'a': object()}}",
        "ConfigurationError",
        ["init_kwargs=", "plain data"],
    ),
    "number that cannot be written down": ("init_kwargs={'jsonl': {'a': 2**70}}", "ConfigurationError", ["init_kwargs=", "plain data"]),
    "name that is no text": ("name='a' + chr(0xd800)", "ConfigurationError", ["name='a\\ud800'", "UTF-8"]),
    "project that is no text": ("'a' + chr(0xd800)", "ConfigurationError", ["project='a\\ud800'", "UTF-8"]),
    "tag that is no text": ("tags=['a' + chr(0xd800)]", "ConfigurationError", ["tags=", "UTF-8"]),
    "directory that is no text": (
        "dir=os.environ['ROOT'] + '/' + os.fsdecode(b'\\xff')",
        "ConfigurationError",
        ["dir=", "\\udcff", "UTF-8"],
    ),
    "directory with a null": ("dir='a' + chr(0) + 'b'", "ConfigurationError", ["dir='a\\x00b'", "null"]),
    "directory with too long a name": (
        "dir=os.environ['ROOT'] + '/' + 'a' * 300",
        "ConfigurationError",
        ["aaaa", "too long", "ACCELBUS_DIR"],
    ),
    "directory that is a file": ("dir=os.environ['ROOT'] + '/script0.py'", "ConfigurationError", ["cannot be written", "ACCELBUS_DIR"]),
}


@pytest.fixture(scope="module")
def refusals() -> Iterator[list[str]]:
    """What `init` said to each of the wrong settings, in order, all in one process."""
    attempts = [arguments for arguments, _, _ in REFUSED.values()]
    with running_job(ACCELBUS_RUN_ID="") as job:
        (rank,) = job.run(
            f"""
            def without(package):
                sys.modules[package] = None
                return package
            for arguments in {attempts!r}:
                try:
                    eval(f"accelbus.init({{arguments}})")
                except accelbus.AccelbusError as error:
                    say(f"{{type(error).__name__}} {{isinstance(error, ValueError)}} {{error}}".replace("\\n", " "))
                else:
                    say("nothing")
            assert accelbus.run is None
            """
        )
        assert rank.process.returncode == 0, rank.stderr
        assert not job.runs.exists() or not list(job.runs.iterdir())
        yield rank.lines


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_cannot_work_are_refused_by_init(refusals: list[str], name: str) -> None:
    """The error names what came and what was expected or what to do, and nothing is left behind."""
    _, kind, texts = REFUSED[name]
    said = refusals[list(REFUSED).index(name)]
    assert said.startswith(f"{kind} True "), said
    for text in texts:
        assert text in said


def test_a_wrong_variable_is_named_like_a_wrong_argument(quick_job: Job) -> None:
    """Whoever reads it must find the line to change."""
    (rank,) = quick_job.run("accelbus.init()", ACCELBUS_FINISH_TIMEOUT="soon", ACCELBUS_PROJECT="")
    assert rank.process.returncode == 1
    assert "ACCELBUS_FINISH_TIMEOUT" in rank.stderr
    (rank,) = quick_job.run("accelbus.init()", ACCELBUS_PROJECT="")
    assert "project is missing" in rank.stderr
    assert "ACCELBUS_PROJECT" in rank.stderr


@script(
    """
        good = accelbus.init()
        good.log({"loss": 0.5}, step=0)
        for wrong in (
            {"resume": "never"}, {"resume": "must", "run_id": "nothing"}, {"dir": os.environ["ROOT"] + "/script0.py"}, {"require": ["nobody"]},
            {"run_id": "a b"}, {"endpoint": "foo://bar"}, {"log_with": "nobody"}, {"config": 3}, {"mode": "on"}, {"mode": "disabled", "tags": 3},
        ):
            try:
                accelbus.init(**wrong)
            except accelbus.ConfigurationError:
                assert accelbus.run is good, wrong
            else:
                raise AssertionError(wrong)
        accelbus.log({"loss": 1.5}, step=1)
        assert accelbus.finish()
    """
)
def test_a_second_init_that_is_wrong_does_not_end_the_run(done: Job) -> None:
    """It is a mistake in a cell or a helper; the run that is there goes on."""
    done.check({("loss", 0): 0.5, ("loss", 1): 1.5}, status="finished")


FULL = """
import errno
from accelbus import durable, rundir
def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
def refused(**arguments):
    try:
        accelbus.init(**arguments)
    except accelbus.ConfigurationError as error:
        say(str(error))
    else:
        raise AssertionError(arguments)
"""


@script(
    FULL
    + """
import pathlib
write = pathlib.Path.write_bytes
pathlib.Path.write_bytes = full
refused()
pathlib.Path.write_bytes = write
rundir.write_atomically = full
refused()
assert not os.path.exists(os.environ["ACCELBUS_DIR"])
os.makedirs(os.environ["ACCELBUS_DIR"] + "/other")
refused()
assert os.listdir(os.environ["ACCELBUS_DIR"]) == ["other"]
"""
)
def test_a_full_disk_at_init_is_named_and_leaves_nothing(done: Job) -> None:
    """Not a run directory without a record, which every reader would have to explain."""
    (rank,) = done.ranks
    for line in rank.lines:
        assert "No space left" in line
        assert str(done.run_dir) in line
        assert "ACCELBUS_DIR" in line
    assert len(rank.lines) == 3


@script(
    FULL
    + """
for place in ("", "/journal", "/sinks", "/logs"):
    run = f"{os.environ['ACCELBUS_DIR']}/{place.strip('/')}x"
    for name in ("journal", "sinks", "logs"):
        os.makedirs(f"{run}/{name}")
        os.chmod(f"{run}/{name}", 0o777)
    os.chmod(run, 0o777)
    os.chmod(run + place, 0o500)
os.makedirs(os.environ["ACCELBUS_DIR"] + "/others")
os.chmod(os.environ["ACCELBUS_DIR"] + "/others", 0o700)
os.chmod(os.environ["ROOT"], 0o755)
os.chmod(os.environ["ACCELBUS_DIR"], 0o755)
import accelbus.client.current
access = os.access
os.access = lambda place, mode: access(place, mode, effective_ids=True)
os.setresuid(0, 65534, 0)
for run in ("x", "journalx", "sinksx", "logsx", "others"):
    refused(run_id=run)
os.setresuid(0, 0, 0)
"""
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play somebody else")
def test_a_run_of_somebody_else_is_an_error_at_init_that_names_it(done: Job) -> None:
    """Wherever in the directory nothing can be written."""
    (rank,) = done.ranks
    for line, run in zip(rank.lines, ("x", "journalx", "sinksx", "logsx", "others"), strict=True):
        assert f"{done.runs}/{run}" in line
        assert "ermission denied" in line


@script(
    FULL
    + """
import accelbus.client.current
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
refused(dir="here")
run = accelbus.init()
run.log({"loss": 0.5}, step=0)
run.finish()
"""
)
def test_a_working_directory_that_is_gone_matters_only_to_relative_paths(done: Job) -> None:
    """A notebook's kernel may outlive its folder."""
    (rank,) = done.ranks
    assert "dir='here'" in rank.lines[0]
    done.check({("loss", 0): 0.5}, status="finished")


@script(
    """
        run = accelbus.init()
        run.log([1], step=0)
        run.finish()
    """,
    ACCELBUS_LOGWITH="wandb",
    ACCELBUS_MINE="1",
)
def test_a_variable_that_is_misspelt_is_named(done: Job) -> None:
    """With what it is probably meant to be; what is not like any of ours is somebody's own."""
    (rank,) = done.ranks
    assert rank.stderr.count("ACCELBUS_LOGWITH") == 1, rank.stderr
    assert "accelbus: the environment variable ACCELBUS_LOGWITH means nothing; is it ACCELBUS_LOG_WITH?" in rank.errors
    assert "ACCELBUS_MINE" not in rank.stderr
    assert any(line.startswith("accelbus: bad_values ('values'): ") for line in rank.errors), rank.stderr


QUIET = """
import logging
{0}
run = accelbus.init()
run.log([1], step=0)
run.finish()
"""


@script(QUIET.format("logging.basicConfig(format='%(name)s says %(message)s')"))
def test_warnings_are_shown_once_where_logging_is_set_up(done: Job) -> None:
    """In the script's own format."""
    (rank,) = done.ranks
    assert [line for line in rank.errors if "bad_values" in line] == [
        line for line in rank.errors if line.startswith("accelbus says bad_v")
    ]
    assert rank.stderr.count("bad_values") == 1


@script(QUIET.format("logging.getLogger('accelbus').addHandler(logging.NullHandler())"))
def test_warnings_can_be_turned_off_as_those_of_any_library(done: Job) -> None:
    """With a handler that does nothing."""
    (rank,) = done.ranks
    assert "bad_values" not in rank.stderr


# {call: what is dropped by it}
MISUSE = {
    "run.log(None, step=0)": {"bad_values": 1},
    "run.log([1, 2], step=0)": {"bad_values": 1},
    "run.log('loss', step=0)": {"bad_values": 1},
    "run.log({'kept1': 1}, step='two')": {"bad_step": 1},
    "run.log({'kept2': 1}, step=1.5)": {"bad_step": 1},
    "run.log({'kept3': 1}, step=2**63)": {"bad_step": 1},
    "run.log({'kept4': 1}, step=float('nan'))": {"bad_step": 1},
    "run.log({'kept5': 1, 'bad': object()}, step=9)": {"unsupported_value": 1},
    "run.log({'kept6': 1, 'bad': lambda: 0, 'worse': sys}, step=9)": {"unsupported_value": 2},
    "run.log({'bad': object()}, step=9)": {"unsupported_value": 1},
    "run.log({'kept7': 1, 'cycle': cycle}, step=9)": {"unsupported_value": 1},
    "run.log(Raising(), step=9)": {"bad_values": 1},
    "run.log({'kept8': 1, 'bad': Raising()}, step=9)": {"unsupported_value": 1},
}

PREPARE = """
import collections.abc
class Raising(collections.abc.Mapping):
    def __getitem__(self, key): raise RuntimeError("no item")
    def __iter__(self): raise RuntimeError("no keys")
    def __len__(self): return 1
cycle = {}
cycle["again"] = cycle
run = accelbus.init()
run.log({"first": 1}, step=9)
"""


@script(
    PREPARE
    + f"""
for call, dropped in {MISUSE!r}.items():
    before = run.statistics().dropped
    eval(call)
    after = run.statistics().dropped
    difference = {{reason: after[reason] - before.get(reason, 0) for reason in after if after[reason] > before.get(reason, 0)}}
    assert difference == dropped, (call, difference)
run.finish()
"""
)
def test_misuse_of_log_never_raises_and_keeps_the_rest(done: Job) -> None:
    """Each fault is counted by its reason; the values beside it are kept, those with a bad step at the last good one."""
    books = done.check({("first", 9): 1, **{(f"kept{number}", 9): 1 for number in range(1, 9)}}, status="finished")
    assert books.dropped == {"bad_values": 4, "bad_step": 4, "unsupported_value": 6}


@script("""
        run = accelbus.init()
        for step in range(100):
            run.log({"loss": step, "picture": object(), "sound": object()}, step=step)
        for _ in range(100):
            run.log({"loss": -1}, step="end")
        run.finish()
    """)
def test_misuse_is_warned_about_once_for_each_key(done: Job) -> None:
    """A fault in every step of a long training fills no terminal."""
    (rank,) = done.ranks
    warnings = [line for line in rank.errors if "unsupported_value" in line or "bad_step" in line]
    assert [("picture" in line, "sound" in line, "'end'" in line) for line in warnings] == [
        (True, False, False), (False, True, False), (False, False, True),
    ]  # fmt: skip
    assert all("object" in line for line in warnings[:2])
    books = done.check({**{("loss", step): step for step in range(99)}, ("loss", 99): -1}, status="finished")
    assert books.dropped == {"bad_step": 100, "unsupported_value": 200}


@script(
    PREPARE
    + f"""
run.log({{"good": 1}}, step=3)
for call, dropped in {MISUSE!r}.items():
    try:
        eval(call)
    except accelbus.StrictError as error:
        assert any(reason in str(error) for reason in dropped), (call, error)
        assert isinstance(error, ValueError)
    else:
        raise AssertionError(call)
run.finish()
try:
    run.log({{"late": 1}}, step=4)
except accelbus.StrictError as error:
    say(str(error))
""",
    ACCELBUS_STRICT="1",
)
def test_misuse_raises_in_strict_mode(done: Job) -> None:
    """For tests: the first fault of a call is an exception that names key and type; what has no fault still works."""
    (rank,) = done.ranks
    assert "after finish" in rank.lines[0]
    points = done.check({("first", 9): 1, ("good", 3): 1}, status="finished")
    assert points.dropped == {}


@script("""
        run = accelbus.init()
        run.log({1: 1, None: 2, True: 3, 2.5: 4, ("a", 1): 5, "": 6, "k" * 600: 7, "tab\\tnull\\0": 8, "lone\\ud800": 9}, step=0)
        run.log({"a/b": 10, "a": {"b": 11, "c": {"d": 12}}, "": {"": 13}}, step=1)
        run.finish()
    """)
def test_odd_keys_are_kept_in_their_documented_form(done: Job) -> None:
    """Non-str keys as text, long and empty ones as they are, nested ones joined, colliding ones numbered."""
    books = done.check(
        {
            ("1", 0): 3, ("None", 0): 2, ("2.5", 0): 4, ("('a', 1)", 0): 5, ("", 0): 6, ("k" * 600, 0): 7, ("tab\tnull\0", 0): 8,
            ("lone\\ud800", 0): 9, ("a/b", 1): 10, ("a/b#2", 1): 11, ("a/c/d", 1): 12, ("/", 1): 13,
        },
        status="finished",
    )  # fmt: skip
    assert books.dropped == {}


@script("""
        run = accelbus.init()
        run.log({f"key{number}": number for number in range(10_000)}, step=0)
        run.log({"text": "x" * 40_000, "more": "y" * 40_000, "number": 1}, step=1)
        run.log({"huge": "z" * 3_000_000, "number": 2}, step=2)
        run.finish()
    """)
def test_large_calls_are_split_and_large_values_kept(done: Job) -> None:
    """Ten thousand keys in one call, a text larger than an event, one larger than a frame: nothing is lost."""
    expected = {
        **{(f"key{number}", 0): number for number in range(10_000)},
        ("text", 1): "x" * 40_000, ("more", 1): "y" * 40_000, ("number", 1): 1, ("huge", 2): "z" * 3_000_000, ("number", 2): 2,
    }  # fmt: skip
    books = done.check(expected, status="finished")
    assert books.dropped == {}


@script("""
        run = accelbus.init()
        values = {"first": 1.0}
        class Growing:
            def __float__(self):
                values[f"new{len(values)}"] = 2.0
                return 3.0
        values["growing"] = Growing()
        values["last"] = 4.0
        run.log(values, step=0)
        class Shrinking:
            def __float__(self):
                fewer.pop("last", None)
                return 3.0
        fewer = {"shrinking": Shrinking(), "last": 4.0}
        run.log(fewer, step=1)
        run.log({"after": 5.0}, step=2)
        run.finish()
    """)
def test_a_call_that_changes_under_its_own_encoding_is_kept_or_counted(done: Job) -> None:
    """Another thread, or a value's own method, changes the dict while it is encoded: no exception, and nothing broken in the journal."""
    done.wait_for_end()
    points = done.points()
    assert points["after", 2] == 5.0
    assert (points.get(("first", 0)), points.get(("growing", 0))) in ((1.0, 3.0), (None, None))
    done.check(points, status="finished")
