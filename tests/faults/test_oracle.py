"""The oracle: whatever is killed and stopped, in whatever order, what comes out is what went in.

``ORACLE_SEED`` repeats one course of events as far as the machine lets it, ``ORACLE_SECONDS`` makes it longer.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict

from accelbus.config import Tuning
from accelbus.events import Metrics
from accelbus.journal.merge import JournalReader
from tests.support.chaos import Chaos, segments, value
from tests.support.job import Job, wait_until


def test_whatever_is_killed_what_was_kept_comes_out_once_in_order_and_unaltered(quick_job: Job) -> None:
    """Kept, delivered, issued: each holds the one before, in the journal and in the tracker, and the books balance."""
    job = quick_job
    seed = int(os.environ.get("ORACLE_SEED", random.randrange(10**6)))
    print("ORACLE_SEED", seed)
    job.environ |= {"ACCELBUS_SEGMENT_BYTES": "16384", "ACCELBUS_DISK_RETRY_INTERVAL": "0.1", "ACCELBUS_DRAIN_GRACE": "2"}
    chaos = Chaos(job, seed)
    chaos.run(float(os.environ.get("ORACLE_SECONDS", "8")))
    print(dict(chaos.faults))
    # The faults are over: a fresh event of every rank arrives.
    ranks = chaos.last_lives()
    for rank in ranks.values():
        rank.said("up", 60)
    before = chaos.books()
    newest = {rank: max(life for other, life in before if other == rank) for rank in ranks}
    for rank, life in newest.items():
        key, fresh = f"{rank}.{life}", before[rank, life].issued + 1
        wait_until(
            lambda key=key, fresh=fresh: (key, fresh) in job.points(),
            60,
            f"event {fresh} of {key}; {job.processes()} {job.bus_log()[-3000:]}",
        )
    job.signal_file("stop")
    for rank in ranks.values():
        assert rank.wait() == 0, rank.stderr
    job.wait_for_end(60)
    books = chaos.books()

    journal, rows = defaultdict(list), defaultdict(list)
    reader = JournalReader(job.run_dir.joinpath("journal"), tuning=Tuning())
    for item in [*reader.read(10**9), *reader.finish()]:
        if isinstance(item.event, Metrics):
            ((key, found),) = item.event.values.items()
            journal[key].append((item.event.step, found))
    for row in job.rows():
        for key, found in row["values"].items():
            rows[key].append((row["step"], found))
    for (rank, life), written in books.items():
        key = f"{rank}.{life}"
        # The view may emit the points of a key out of order while it does not know yet who contributes to it.
        for where, delivered in (("journal", journal[key]), ("tracker", sorted(rows[key]))):
            numbers = [number for number, _ in delivered]
            assert numbers == list(range(1, len(numbers) + 1)), f"{where}: {key} {written} {_disorder(numbers)}"
            assert written.kept <= len(numbers) <= written.issued, f"{where}: {key} {written} {len(numbers)}"
            assert all(found == value(rank, life, number) for number, found in delivered), f"{where}: {key} altered"
        assert written.acked <= len(journal[key]) + 2
        assert not written.dropped, (key, written)
    assert set(journal) | set(rows) <= {f"{rank}.{life}" for rank, life in books}

    audited = job.check({(key, number): found for key, delivered in journal.items() for number, found in delivered})
    happened = {
        "duplicates": audited.duplicates,
        "spills": sum(written.spilled for written in books.values()),
        "reconnects": sum(written.reconnects for written in books.values()),
        "segments": segments(job.run_dir / "journal"),
        "lives": len(books),
    }
    print(happened)
    assert all(happened.values()), happened
    assert "Traceback" not in job.bus_log(), job.bus_log()


def _disorder(numbers: list[int]) -> str:
    """Say where *numbers* stop being 1, 2, 3, …"""
    place = next((at for at, number in enumerate(numbers, 1) if number != at), len(numbers))
    return f"{len(numbers)} of them, odd from place {place} on: {numbers[max(0, place - 3) : place + 5]}"
