"""What does a training step cost more with `Accelerator` and all its telemetry than in plain torch DDP?

The step of ``examples/train_digits_accelerator.py``, under ``torchrun`` with two ranks. Both loops run in the same processes, an epoch of
one, an epoch of the other and an epoch of the first again, many times over: whatever the machine does hits all three alike, and the
first and the third, which are equal, show how much of a difference means nothing. CPU time is that of the whole process, the thread
that moves events included. The plain loop logs nothing. *construction* is ``Accelerator()`` and ``init_trackers`` with five trackers,
the process group being there.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench import harness
from bench.harness import ROOT, Bench, Numbers, Result

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader

    from accelbus import Accelerator

RANKS = 2
ROUNDS, QUICK_ROUNDS = 30, 6
EPOCH_STEPS = 40
BATCH = 64
TRACKERS = ("tensorboard", "jsonl", "mlflow", "wandb", "dvclive")
INIT_KWARGS = {"wandb": {"mode": "offline"}}
JOB_SECONDS = 600.0
LOOPS = ("plain", "accelerator", "plain again")


def job(quick: bool) -> Numbers:
    """Run the job; return the median of each ratio over its rounds, of the slowest rank, and the medians themselves."""
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-", ignore_cleanup_errors=True) as directory:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "ACCELBUS_FINISH_TIMEOUT": "0",
        }
        rounds = QUICK_ROUNDS if quick else ROUNDS
        subprocess.run(  # noqa: S603  our own module
            [*command, "-m", "bench.bench_accelerator", directory, str(rounds)], cwd=directory, env=environ, check=True, timeout=JOB_SECONDS
        )
        ranks = [msgspec.json.decode(path.read_bytes(), type=Numbers) for path in sorted(Path(directory).glob("rank-*.json"))]
    assert len(ranks) == RANKS, f"{len(ranks)} ranks have said what they measured"
    return {name: max(rank[name] for rank in ranks) for name in ranks[0]}


def report(results: Sequence[Result]) -> str:
    """Return the ratios and what they are ratios of."""
    (result,) = results
    lines = []
    for name in result.numbers[0]:
        low, middle, high = harness.spread(result.of(name))
        lines.append(f"  {name:<36} {middle:>8.4g}   ({low:.4g} … {high:.4g})")
    return "\n".join(lines)


# In each rank


def _rank(where: str, rounds: int) -> None:
    import torch
    from torch import distributed, nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from accelbus import Accelerator

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    images = TensorDataset(torch.rand(EPOCH_STEPS * BATCH * RANKS, 1, 8, 8), torch.randint(10, (EPOCH_STEPS * BATCH * RANKS,)))

    distributed.barrier()
    began = time.perf_counter()
    accelerator = Accelerator(cpu=True, log_with=list(TRACKERS), project_dir=where)
    accelerator.init_trackers("bench", config={"lr": 1e-3}, init_kwargs=INIT_KWARGS)
    construction = time.perf_counter() - began

    model = nn.parallel.DistributedDataParallel(_network())
    plain = _PlainLoop(model, DataLoader(images, BATCH, sampler=DistributedSampler(images)))
    prepared = _PreparedLoop(accelerator, DataLoader(images, BATCH, shuffle=True))
    loops: dict[str, Callable[[], None]] = dict(zip(LOOPS, (plain.epoch, prepared.epoch, plain.epoch), strict=True))
    for loop in loops.values():
        loop()
    used: dict[str, list[float]] = {name: [] for name in LOOPS}
    took: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(rounds):
        for name, loop in loops.items():
            distributed.barrier()
            cpu, wall = time.process_time(), time.perf_counter()
            loop()
            used[name].append((time.process_time() - cpu) / EPOCH_STEPS * 1e3)
            took[name].append((time.perf_counter() - wall) / EPOCH_STEPS * 1e3)
    distributed.barrier()
    numbers = {"construction with 5 trackers, ms": construction * 1e3}
    for kind, spent in (("CPU", used), ("wall", took)):
        numbers |= {f"{kind} per step, {name}, ms": statistics.median(spent[name]) for name in LOOPS}
        for name in LOOPS[1:]:
            numbers[f"{kind}, {name} / plain"] = statistics.median(
                mine / its for mine, its in zip(spent[name], spent["plain"], strict=True)
            )
    Path(where, f"rank-{rank}.json").write_bytes(msgspec.json.encode(numbers))
    accelerator.end_training(destroy_process_group=True)


class _PlainLoop:
    """As one writes it without any library."""

    def __init__(self, model: nn.Module, batches: DataLoader[Any]) -> None:
        import torch

        self.model, self.batches = model, batches
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10**6)
        self.epochs = 0

    def epoch(self) -> None:
        from torch import nn
        from torch.utils.data import DistributedSampler

        sampler = self.batches.sampler
        assert isinstance(sampler, DistributedSampler)
        sampler.set_epoch(self.epochs)
        self.epochs += 1
        for images, targets in self.batches:
            loss = nn.functional.cross_entropy(self.model(images), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()


class _PreparedLoop:
    """The same with `Accelerator`, logging, and all telemetry."""

    def __init__(self, accelerator: Accelerator, batches: DataLoader[Any]) -> None:
        import torch

        model = _network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10**6)
        self.accelerator = accelerator
        self.model, self.optimizer, self.batches, self.schedule = accelerator.prepare(model, optimizer, batches, schedule)
        self.step = 0

    def epoch(self) -> None:
        from torch import nn

        accelerator = self.accelerator
        for images, targets in self.batches:
            with accelerator.accumulate(self.model):
                loss = nn.functional.cross_entropy(self.model(images), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            self.step += 1
            accelerator.log({"train/loss": loss, "train/lr": self.schedule.get_last_lr()[0]}, step=self.step)


def _network() -> nn.Module:
    """Return a small convolutional network: some 10 ms per step."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 64, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


BENCH = Bench(
    question=f"{RANKS} ranks: a training step with Accelerator and all telemetry beside plain torch DDP",
    subjects={"interleaved": job},
    report=report,
    ratio_of=(),
    repeats=3,
    quick_repeats=1,
    subject_seconds=JOB_SECONDS + 60,
)


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]))
