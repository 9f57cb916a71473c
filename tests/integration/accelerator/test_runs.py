"""Runs and checkpoints belong together: a resumed script continues its run, another one says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.accelerator.torchrun import torchrun

SCRIPT = """
import logging
logging.basicConfig(level=logging.INFO)
project = out / "project"

def accelerator():
    return Accelerator(cpu=True, log_with="jsonl", project_dir=str(project), project_config=ProjectConfiguration(automatic_checkpoint_naming=True))

def save_after(one, step):
    one.log({"loss": float(step)}, step=step)
    one.save_state()
    one.end_training()
    return one.run.id

first = accelerator()
first.init_trackers("digits", config={"lr": 0.1})
first.init_trackers("digits", config={"more": 1})       # again: the same run
first.get_tracker("jsonl").log_table("table", columns=["a"], data=[[1]], step=1)
report["first"] = save_after(first, 1)

resumed = accelerator()
resumed.init_trackers("digits")
resumed.load_state()
report["resumed"] = save_after(resumed, 2)

other_project = accelerator()
other_project.init_trackers("letters")
report["other project"] = other_project.run.id
other_project.end_training()

anew = accelerator()
anew.init_trackers("digits", resume="never")
anew.load_state()
report["anew"] = save_after(anew, 3)

late = accelerator()
late.load_state(project / "checkpoints" / "checkpoint_0")
late.init_trackers("digits")
report["late"] = late.run.id
report["step"] = late._last_step
late.end_training()
end()
"""


@pytest.mark.slow
def test_a_resumed_script_continues_its_run(tmp_path: Path):
    """The newest checkpoint's run, or that of the one that was loaded; a run of its own is said to be forked from it."""
    done = torchrun(1, SCRIPT, tmp_path)
    assert done.code == 0, done.stderr
    (report,) = done.reports
    first = report["first"]
    assert report["resumed"] == report["late"] == first
    assert len({first, report["other project"], report["anew"]}) == 3
    assert report["step"] == 1

    runs = tmp_path / "project"
    rows = [json.loads(line) for line in (runs / first / "jsonl" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["values"]["loss"]) for row in rows if "loss" in row["values"]] == [(1, 1.0), (2, 2.0)]
    config = json.loads((runs / first / "jsonl" / "config.json").read_text())
    assert (config["lr"], config["more"], config["accelerator"]["mixed_precision"]) == (0.1, 1, "no")
    assert "forked_from" not in config
    other = json.loads((runs / report["other project"] / "jsonl" / "config.json").read_text())
    assert "forked_from" not in other
    forked = json.loads((runs / report["anew"] / "jsonl" / "config.json").read_text())["forked_from"]
    assert forked == {"run_id": first, "step": 2}
    assert f"this run, {report['anew']}, goes on from a checkpoint of run {first}" in done.stderr
    assert f"init_trackers(..., run_id='{first}')" in done.stderr


ELASTIC = """
accelerator = Accelerator(
    cpu=True, log_with="jsonl", project_config=ProjectConfiguration(project_dir=out / "project", automatic_checkpoint_naming=True),
    dataloader_config=DataLoaderConfiguration(dispatch_batches=True),
)
loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(24)), 2, shuffle=True))
accelerator.init_trackers("elastic")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt:
    accelerator.load_state()
step = loader.state_dict()["batches"]
seen = []
for (batch,) in loader:
    step += 1
    seen += batch.tolist()
    accelerator.log({"sum": batch.float().sum()}, step=step)
    if step == 2 and not attempt:
        (out / f"seen{rank}.json").write_text(json.dumps(seen))
        accelerator.save_state()
    if step == 4 and not attempt and rank == 1:
        raise RuntimeError("the first attempt fails")
report["run"], report["seen"] = accelerator.run.id, seen
end()
accelerator.end_training()
"""


@pytest.mark.slow
def test_an_elastic_restart_goes_on_in_the_same_run(tmp_path: Path):
    """From its checkpoint, with the samples that were left; steps that come again are those of the newer attempt."""
    done = torchrun(2, ELASTIC, tmp_path, options=("--max-restarts", "1"))
    assert done.code == 0, done.stderr
    assert len({report["run"] for report in done.reports}) == 1
    before = [sample for rank in range(2) for sample in json.loads((tmp_path / f"seen{rank}.json").read_text())]
    after = [sample for report in done.reports for sample in report["seen"]]
    assert (len(before), len(after)) == (8, 16)
    assert sorted(before + after) == list(range(24))
    (path,) = (tmp_path / "project").glob("*/jsonl/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["step"]: row["attempt"] for row in rows} == {1: 0, 2: 0, 3: 1, 4: 1, 5: 1, 6: 1}


MOVING = """
accelerator = Accelerator(cpu=True)
model, loader = accelerator.prepare(nn.Linear(1, 1), DataLoader(TensorDataset(torch.arange(24)), 2, shuffle=True))
if ranks == 1:
    warnings.simplefilter("ignore")
    accelerator.load_state(out / "checkpoint")
report["seen"] = []
for number, (batch,) in enumerate(loader, 1):
    report["seen"] += batch.tolist()
    if ranks > 1 and number == 3:
        accelerator.save_state(out / "checkpoint")
        break
end()
"""


@pytest.mark.slow
def test_a_checkpoint_may_be_loaded_by_another_number_of_processes(tmp_path: Path):
    """Each sample of the epoch is seen once, by two processes and then by one."""
    two = torchrun(2, MOVING, tmp_path)
    assert two.code == 0, two.stderr
    seen = [sample for report in two.reports for sample in report["seen"]]
    for report in tmp_path.glob("rank*.json"):
        report.unlink()
    one = torchrun(1, MOVING, tmp_path)
    assert one.code == 0, one.stderr
    assert sorted(seen + one.reports[0]["seen"]) == list(range(24))


DISPATCHED = """
import random
from torch.utils.data import Dataset, Sampler

class ByEpoch(Sampler):
    epoch = 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __len__(self):
        return 24
    def __iter__(self):
        return iter(random.Random(self.epoch).sample(range(24), 24))

class Noisy(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return index, torch.rand(())

class NoisyStream(IterableDataset):
    def __iter__(self):
        return (Noisy()[index] for index in range(24))

LOADERS = {
    "own generator": lambda: DataLoader(Noisy(), 2, shuffle=True, generator=torch.Generator().manual_seed(7)),
    "by epoch": lambda: DataLoader(Noisy(), 2, sampler=ByEpoch()),
    "seeded": lambda: DataLoader(Noisy(), 2, shuffle=True),
    "stream": lambda: DataLoader(NoisyStream(), 2),
}

def read(accelerator, loader, epochs, save_in=None):
    seen = []
    for _ in range(epochs):
        for number, (indices, noise) in enumerate(loader):
            seen.append([indices.tolist(), noise.tolist(), float(torch.rand(()))])
            if loader.iteration == save_in and number == 2:
                accelerator.save_state(out / "checkpoint")
                seen.clear()
    return seen

report["orders"] = {}
for name, loader in LOADERS.items():
    def prepared(seed):
        torch.manual_seed(seed + rank)
        config = DataLoaderConfiguration(dispatch_batches=True, use_seedable_sampler=name == "seeded")
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        return accelerator, accelerator.prepare(loader())

    whole = read(*prepared(1), 3, save_in=1)
    accelerator, resumed = prepared(100)
    accelerator.load_state(out / "checkpoint")
    report[name] = read(accelerator, resumed, 2) == whole
    report["orders"][name] = [[line[0] for line in whole[3:]], [line[0] for line in read(*prepared(1), 1)]]
end()
"""


@pytest.mark.slow
def test_data_read_for_all_processes_go_on_where_they_were(tmp_path: Path):
    """In a later epoch: the order of a generator, of a sampler that knows the epoch and of a seed; augmentation, read ahead, as well."""
    done = torchrun(2, DISPATCHED, tmp_path)
    assert done.code == 0, done.stderr
    for report in done.reports:
        assert {name: report[name] for name in ("own generator", "by epoch", "seeded", "stream")} == dict.fromkeys(
            ("own generator", "by epoch", "seeded", "stream"), True
        )
        for name in ("own generator", "by epoch", "seeded"):
            third, first = report["orders"][name]
            assert third != first


DIFFERING = """
warnings.simplefilter("ignore", FutureWarning)  # of torch, about the argument's name

def training(seed):
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)])
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), lr=0.05))
    alone = accelerator.prepare_model(nn.Linear(4, 1), evaluation_mode=True)  # nobody makes its weights equal
    momentum = accelerator.prepare(torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9))
    return accelerator, model, alone, optimizer, momentum

def train(accelerator, model, alone, *optimizers, steps):
    numbers = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        batch = torch.randn(6, 4, generator=numbers)
        accelerator.backward(model(batch).pow(2).mean() + alone(batch).pow(2).mean())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

def values(accelerator, model, alone, *optimizers):
    momenta = [state["momentum_buffer"] for state in optimizers[1].state.values()]
    return [tensor.clone() for tensor in (*model.state_dict().values(), *alone.state_dict().values(), *momenta)]

first = training(10 + rank)
train(*first, steps=3)
first[0].save_state(out / "checkpoint")
saved = values(*first)
again = training(20 + rank)
again[0].load_state(out / "checkpoint")
report["same"] = all(map(torch.equal, values(*again), saved))
train(*first, steps=2)
train(*again, steps=2)
report["goes on"] = all(map(torch.equal, values(*again), values(*first)))
report["mean"] = first[1].module[1].running_mean.tolist()
own = torch.load(out / "checkpoint" / f"rank_{rank}.bin")
report["kept"] = ["/".join(map(str, path)) for path, _ in own["differing"]]
first[0].project_configuration.save_on_each_node = True
first[0].save_state(out / "on each node")
again = torch.load(out / "on each node" / f"rank_{rank}.bin")
report["kept on each node"] = ["/".join(map(str, path)) for path, _ in again["differing"]]
end()
"""


@pytest.mark.slow
def test_what_differs_between_processes_goes_on_in_each(tmp_path: Path):
    """Running means of BatchNorm that nobody broadcasts, weights and momenta of a model of its own; equal weights are kept once."""
    done = torchrun(2, DIFFERING, tmp_path)
    assert done.code == 0, done.stderr
    first, second = done.reports
    assert [[report["same"], report["goes on"]] for report in done.reports] == [[True, True]] * 2
    assert first["mean"] != second["mean"]
    assert first["kept"] == []
    assert [report["kept on each node"] == report["kept"] for report in done.reports] == [True, True]
    assert second["kept"] == [
        "pytorch_model.bin/0/1.running_mean",
        "pytorch_model.bin/0/1.running_var",
        "pytorch_model.bin/1/weight",
        "pytorch_model.bin/1/bias",
        "optimizer.bin/1/state/0/momentum_buffer",
        "optimizer.bin/1/state/1/momentum_buffer",
    ]
