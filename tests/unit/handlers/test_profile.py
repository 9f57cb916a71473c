"""`ProfileKwargs` makes profilers that export every cycle."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path

import pytest
import torch

from accelbus.errors import ConfigurationError
from accelbus.handlers import KeyAverages, NoEffectWarning, ProfileKwargs

STEPS = 100


def compute() -> None:
    torch.ones(4, 4) @ torch.ones(4, 4)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def steps_in(path: Path) -> list[int]:
    """Return the numbers of the steps that a trace has recorded."""
    events = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())["traceEvents"]
    marks = {event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#") and event.get("ph") == "X"}
    return sorted(int(mark.partition("#")[2]) for mark in marks)


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@pytest.mark.parametrize(
    "schedule",
    [
        {"wait": 1, "warmup": 1, "active": 2, "repeat": 1},
        {"wait": 2, "warmup": 2, "active": 2, "repeat": 2},
        {"wait": 0, "warmup": 1, "active": 3, "repeat": 3, "skip_first": 1},
        {"wait": 3, "warmup": 2, "active": 1, "repeat": 1, "skip_first": 2},
        {"wait": 1, "warmup": 0, "active": 1, "repeat": 5},
        {"wait": 0, "warmup": 0, "active": 1, "repeat": 3},
    ],
)
def test_the_callback_is_called_once_per_cycle(schedule):
    """The reference's own check."""
    tables = []

    def ready(prof):
        tables.append(prof.key_averages().table(sort_by="cpu_time_total", row_limit=-1))

    with ProfileKwargs(activities=["cpu"], schedule_option=schedule, on_trace_ready=ready).build() as profiler:
        assert isinstance(profiler, torch.profiler.profile)
        for _ in range(STEPS):
            compute()
            profiler.step()
    assert len(tables) == schedule["repeat"] == profiler.cycle
    assert all("CPU time total:" in table for table in tables)


def test_every_cycle_has_a_file_with_its_own_steps(tmp_path):
    """Packed, named after rank, last step and cycle; torch alone would have kept the last cycle only."""
    schedule = {"wait": 1, "warmup": 1, "active": 2, "repeat": 3}
    handler = ProfileKwargs(activities=["cpu"], schedule_option=schedule, output_trace_dir=tmp_path / "traces")
    with handler.build(rank=3) as profiler:
        for _ in range(13):
            compute()
            profiler.step()
    assert names(tmp_path / "traces") == [
        "profile_rank3_step11_cycle2.json.gz",
        "profile_rank3_step3_cycle0.json.gz",
        "profile_rank3_step7_cycle1.json.gz",
    ]
    assert [steps_in(path) for path in profiler.exported] == [[2, 3], [6, 7], [10, 11]]


def test_without_a_schedule_everything_is_one_cycle(tmp_path):
    """It ends with the block; steps are counted from where the loop is."""
    with ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path)).build(first_step=100) as profiler:
        compute()
        profiler.step()
        compute()
    assert names(tmp_path) == ["profile_rank0_step101_cycle0.json.gz"]
    assert "aten::mm" in {average.key for average in profiler.key_averages()}


def test_an_exception_does_not_cost_the_trace(tmp_path):
    """What was recorded until then is exported, and the exception arrives."""
    schedule = {"wait": 0, "warmup": 1, "active": 5}
    with (
        pytest.raises(RuntimeError, match="out of memory"),
        ProfileKwargs(activities=["cpu"], schedule_option=schedule, output_trace_dir=tmp_path).build() as profiler,
    ):
        for step in range(10):
            compute()
            if step == 3:
                raise RuntimeError("out of memory")
            profiler.step()
    (path,) = profiler.exported
    assert path.name == "profile_rank0_step3_cycle0.json.gz"
    assert steps_in(path) == [1, 2, 3]


def test_an_exception_before_anything_was_recorded_leaves_no_file(tmp_path):
    """An empty trace helps nobody."""
    handler = ProfileKwargs(activities=["cpu"], schedule_option={"wait": 5, "warmup": 1, "active": 1}, output_trace_dir=tmp_path)
    with pytest.raises(RuntimeError), handler.build():
        raise RuntimeError
    assert names(tmp_path) == []


def test_a_failing_callback_does_not_hide_the_exception(tmp_path, caplog):
    """The one that ended the training loop is what its user sees; the callback's is in the log."""

    def fail(_profiler):
        raise ValueError("callback")

    handler = ProfileKwargs(activities=["cpu"], on_trace_ready=fail)
    with pytest.raises(RuntimeError, match="training"), handler.build():
        raise RuntimeError("training")
    assert "ValueError: callback" in caplog.text
    with pytest.raises(ValueError, match="callback"), handler.build():
        compute()


def test_files_of_the_block_before_stay(tmp_path):
    """The same names a second time are other files."""
    handler = ProfileKwargs(activities=["cpu"], output_trace_dir=tmp_path)
    for _ in range(3):
        with handler.build():
            compute()
    assert names(tmp_path) == [f"profile_rank0_step0_cycle0{suffix}.json.gz" for suffix in (".1", ".2", "")]


def test_hooks_are_given_file_and_table(tmp_path):
    """The handler's own and the one of a façade, after each cycle, in this order."""
    seen = []
    handler = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 0, "warmup": 1, "active": 1, "repeat": 2},
        output_trace_dir=tmp_path,
        profile_memory=True,
        record_shapes=True,
        with_flops=True,
        on_export=lambda path, table: seen.append(("own", path, table)),
    )
    with handler.build(on_export=lambda path, table: seen.append(("facade", path, table))) as profiler:
        for _ in range(4):
            compute()
            profiler.step()
    assert [(who, path) for who, path, _ in seen] == [(who, path) for path in profiler.exported for who in ("own", "facade")]
    table = seen[0][2]
    assert isinstance(table, KeyAverages)
    assert table.columns == ["operation", "calls", "self CPU us", "CPU us", "self CPU bytes", "FLOPs", "shapes"]
    (product,) = [row for row in table.data if row[0] == "aten::mm"]
    assert product[1] == 1
    assert product[-2:] == [128, "[[4, 4], [4, 4]]"]
    assert [row[2] for row in table.data] == sorted((row[2] for row in table.data), reverse=True)


def test_a_table_fits_a_tracker():
    """`accelbus.Table` takes it as it is; without a directory there is no file."""
    from accelbus import Table

    seen = []
    with ProfileKwargs(activities=["cpu"]).build(on_export=lambda path, table: seen.append((path, table))):
        compute()
    ((path, table),) = seen
    assert path is None
    assert Table(**table._asdict())


def test_the_callback_may_export_as_well(tmp_path):
    """Packed and unpacked, where torch says "Trace is already saved."; and so may the user afterwards."""

    def ready(prof):
        prof.export_chrome_trace(str(tmp_path / "mine.json"))
        prof.export_chrome_trace(str(tmp_path / "mine.json.gz"))

    for directory in (tmp_path / "traces", None):
        with ProfileKwargs(activities=["cpu"], on_trace_ready=ready, output_trace_dir=directory).build() as profiler:
            compute()
        profiler.export_chrome_trace(str(tmp_path / "later.json"))
        events = json.loads((tmp_path / "mine.json").read_bytes())["traceEvents"]
        assert any(event.get("name") == "aten::mm" for event in events)
        assert gzip.decompress((tmp_path / "mine.json.gz").read_bytes()) == (tmp_path / "mine.json").read_bytes()
        assert (tmp_path / "later.json").read_bytes() == (tmp_path / "mine.json").read_bytes()


def test_tensorboards_handler_works_beside_the_export(tmp_path):
    """Torch's own callback writes its file, too."""
    handler = ProfileKwargs(
        activities=["cpu"],
        on_trace_ready=torch.profiler.tensorboard_trace_handler(str(tmp_path / "board")),
        output_trace_dir=tmp_path / "t",
    )
    with handler.build():
        compute()
    assert len(names(tmp_path / "board")) == len(names(tmp_path / "t")) == 1


def test_a_disk_that_takes_nothing_does_not_stop_the_training(tmp_path):
    """It is warned about, hooks are told that there is no file, and the table still arrives."""
    (tmp_path / "file").write_text("")
    seen = []
    handler = ProfileKwargs(activities=["cpu"], output_trace_dir=tmp_path / "file")

    def profile():
        with handler.build(on_export=lambda path, table: seen.append((path, len(table.data) > 0))) as profiler:
            compute()
        return profiler

    with pytest.warns(UserWarning, match="cycle 0 of the profile could not be written: .*file"):
        profiler = profile()
    assert seen == [(None, True)]
    assert profiler.exported == []
    assert names(tmp_path) == ["file"]


def test_other_ranks_get_a_profiler_that_does_nothing(tmp_path, monkeypatch):
    """Every call works there, too."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    handler = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 0, "warmup": 1, "active": 1},
        ranks=[1],
        output_trace_dir=tmp_path,
        on_trace_ready=print,
    )
    with handler.build(rank=0, on_export=print) as profiler:
        for _ in range(5):
            compute()
            profiler.step()
    assert isinstance(profiler, torch.profiler.profile)
    assert (profiler.is_active, profiler.step_num, profiler.exported, profiler.cycle) == (False, 5, [], 0)
    assert profiler.key_averages().table() == ""
    assert list(profiler.events()) == []
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    assert names(tmp_path) == []
    with handler.build(rank=1) as profiler:
        assert profiler.is_active


def test_the_rank_is_the_launchers(tmp_path, monkeypatch):
    """Where no process group says another."""
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with ProfileKwargs(activities=["cpu"], output_trace_dir=tmp_path, ranks=[5]).build():
        compute()
    assert names(tmp_path) == ["profile_rank5_step0_cycle0.json.gz"]


def test_ranks_that_do_not_exist_say_so():
    """Nobody would profile, and nobody would notice."""
    with pytest.warns(NoEffectWarning, match=r"has no effect: none of the ranks \[8\] exists"):
        assert not ProfileKwargs(ranks=[8]).build().is_active


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_activity_that_this_machine_lacks_is_left_out():
    """A script for GPUs runs on a CPU; with nothing left there is an error."""
    with pytest.warns(NoEffectWarning, match='records nothing for "cuda", which does not exist here') as warned:
        profiler = ProfileKwargs(activities=["cpu", "cuda"]).build()
    assert profiler.activities == {torch.profiler.ProfilerActivity.CPU}
    assert warned[0].filename == __file__
    with pytest.raises(ConfigurationError, match=r"none of cuda exists here \(there is: cpu\)"):
        ProfileKwargs(activities=["cuda"]).build()


@pytest.mark.parametrize("activity", ["cpu", "CPU", torch.profiler.ProfilerActivity.CPU])
def test_activities_are_known_by_name_and_by_torchs_enum(activity):
    """All the same."""
    assert ProfileKwargs(activities=[activity]).activities == ["cpu"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"activities": ["gpu"]}, r"ProfileKwargs.activities: unknown 'gpu'.* \(known: cpu, xpu, mtia, cuda, hpu\)"),
        ({"activities": "cpu"}, "expected a list of cpu, xpu"),
        ({"activities": [1]}, "expected a list of cpu, xpu"),
        ({"activities": []}, "at least one activity, or None"),
        ({"schedule_option": {}}, r"\(missing: wait, warmup, active\), got {}"),
        ({"schedule_option": {"wait": 1, "warmup": 1, "activ": 1}}, "unknown key 'activ'; did you mean 'active'"),
        (
            {"schedule_option": {"wait": 1, "warmup": 1, "active": 0}},
            r"schedule_option\[active\]: expected an integer of at least 1, got 0",
        ),
        ({"schedule_option": {"wait": -1, "warmup": 1, "active": 1}}, r"schedule_option\[wait\]: expected an integer of at least 0"),
        ({"schedule_option": 3}, "expected a mapping with wait, warmup, active"),
    ],
)
def test_a_wrong_activity_or_schedule_is_an_error(arguments, message):
    """At construction, with the known names."""
    with pytest.raises(ConfigurationError, match=message):
        ProfileKwargs(**arguments)


def test_flags_and_further_arguments_reach_torch():
    """Set to their default or not."""
    profiler = ProfileKwargs(activities=["cpu"], with_stack=True, with_modules=True, record_shapes=False).build(acc_events=True)
    assert (profiler.with_stack, profiler.with_modules, profiler.record_shapes, profiler.acc_events) == (True, True, False, True)


def test_profiling_says_nothing(tmp_path, caplog):
    """Many cycles, no warning of torch's that the last ones are gone: they are not."""
    caplog.set_level(logging.WARNING)
    handler = ProfileKwargs(activities=["cpu"], schedule_option={"wait": 0, "warmup": 1, "active": 1}, output_trace_dir=tmp_path)
    with handler.build() as profiler:
        for _ in range(10):
            compute()
            profiler.step()
    assert len(profiler.exported) == 5
    assert caplog.text == ""
