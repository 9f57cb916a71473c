"""The numbers in a bench's table mean what they say."""

from __future__ import annotations

import json

import pytest

from bench import __main__ as command, harness
from bench.harness import Bench, Result

NOTHING = Bench(question="?", subjects={}, baselines={"ours": "theirs"}, floors={"ours": "empty"})


def test_percentiles_of_a_known_sample():
    """Median, 99th percentile and extremes are picked from the sample, whatever its order."""
    assert harness.percentiles(list(range(100, 0, -1))) == {"min": 1.0, "p50": 50.0, "p99": 99.0, "worst": 100.0, "n": 100.0}


def test_percentiles_of_one_measurement():
    """A single measurement is all of them."""
    assert harness.percentiles([7]) == {"min": 7.0, "p50": 7.0, "p99": 7.0, "worst": 7.0, "n": 1.0}


def test_ratio_is_taken_round_by_round_with_and_without_the_cost_of_measuring():
    """Each round's ratio compares neighbours in time; net, the empty call is subtracted on both sides."""
    results = [
        Result("x", "ours", [{"p50": 120.0}, {"p50": 210.0}]),
        Result("x", "theirs", [{"p50": 60.0}, {"p50": 105.0}]),
        Result("x", "empty", [{"p50": 10.0}, {"p50": 10.0}]),
    ]
    assert harness.ratios(NOTHING, results) == {"ours": {"p50": [2.0, 2.0], "p50 net": [2.2, 200 / 95]}}


@pytest.mark.parametrize("name", harness.names())
def test_every_bench_compares_what_it_measures(name: str):
    """Baselines and floors are subjects of the same bench."""
    bench = harness.load(name)
    mentioned = {*bench.baselines, *bench.baselines.values(), *bench.floors, *bench.floors.values()}
    assert mentioned <= set(bench.subjects)


def test_subject_runs_in_a_fresh_interpreter_and_returns_numbers():
    """The child's numbers arrive, whatever else it printed."""
    numbers = harness._in_fresh_interpreter("log_call", "warm: msgspec encoding alone", quick=True)
    assert 0 < numbers["min"] <= numbers["p50"] <= numbers["p99"] <= numbers["worst"]


def test_unknown_bench_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]):
    """A typo says what there is."""
    with pytest.raises(SystemExit):
        command.main(["log_cal"])
    assert "log_call" in capsys.readouterr().err


def test_results_carry_machine_and_versions(tmp_path):
    """A line of the raw results can be understood without the terminal it was printed on."""
    out = tmp_path / "bench.jsonl"
    command._append(out, harness.machine(), [Result("x", "ours", [{"p50": 1.0}])])
    line = json.loads(out.read_text())
    assert line["machine"]["versions"]["msgspec"]
    assert line["machine"]["cores"] >= 1
    assert line["numbers"] == [{"p50": 1.0}]
