"""Under torchrun on two and on four ranks: any of them may profile, and none waits for another."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
InitProcessGroupKwargs(backend="gloo", timeout=timedelta(seconds=60)).init()
schedule = {"wait": 0, "warmup": 1, "active": 1}

def steps(profiler, count):
    for step in range(count):
        torch.ones(8, 8) @ torch.ones(8, 8)
        profiler.step()

tables = []
some = ProfileKwargs(activities=["cpu"], schedule_option=schedule, ranks=[1], output_trace_dir=out / "some")
with some.build(on_export=lambda path, table: tables.append([path.name, len(table.data)])) as profiler:
    steps(profiler, 4)
report["some"] = [profiler.is_active, sorted(tables)]

# One rank leaves the block with an exception, the others long before or after: a barrier in it would wait for the timeout.
all_of_them = ProfileKwargs(activities=["cpu"], output_trace_dir=out / "all")
try:
    with all_of_them.build() as profiler:
        steps(profiler, 2)
        if rank == 1:
            raise RuntimeError("rank 1 only")
    report["left"] = "normally"
except RuntimeError as error:
    report["left"] = str(error)
end()
"""


@pytest.fixture(scope="module")
def job(launch):
    """One launch for all of it."""
    return launch(SCRIPT)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_subset_of_ranks_profiles(job):
    """The others run the same code, and write nothing."""
    directory, reports = job
    traces = ["profile_rank1_step1_cycle0.json.gz", "profile_rank1_step3_cycle1.json.gz"]
    assert [one["some"] for number, one in enumerate(reports) if number != 1] == [[False, []]] * (len(reports) - 1)
    assert reports[1]["some"][0] is True
    assert [name for name, _ in reports[1]["some"][1]] == traces
    assert all(rows > 0 for _, rows in reports[1]["some"][1])
    assert names(directory / "some") == traces


def test_an_exception_on_one_rank_holds_up_nobody(job):
    """All ranks leave the block by themselves, and all have written their trace."""
    directory, reports = job
    assert [one["left"] for one in reports] == ["normally", "rank 1 only", "normally", "normally"][: len(reports)]
    assert names(directory / "all") == [f"profile_rank{rank}_step2_cycle0.json.gz" for rank in range(len(reports))]
