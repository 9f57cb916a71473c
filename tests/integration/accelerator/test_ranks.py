"""Under torchrun on two and on four ranks: one script that does everything a training script does, and what each rank saw of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.accelerator.torchrun import Done, torchrun
from tests.support.job import wait_until

pytestmark = pytest.mark.slow

COLLECTIVES = """
accelerator = Accelerator(cpu=True)
state = accelerator.state
report["state"] = [state.process_index, state.num_processes, state.local_process_index, str(state.distributed_type), state.backend]

mine = torch.arange(3) + 10 * rank
report["gather"] = accelerator.gather({"a": mine, "b": (torch.tensor(rank),)})["a"].tolist()
report["gather scalars"] = accelerator.gather(torch.tensor(float(rank))).tolist()
report["gather bools"] = accelerator.gather(torch.tensor([rank % 2 == 0])).tolist()
report["gather odd"] = accelerator.gather((torch.arange(4) + 10 * rank).reshape(2, 2).t()).tolist()
report["objects"] = gather_object([f"rank {rank}"])
report["broadcast"] = broadcast([torch.tensor(rank + 5), "text"], from_process=1)[0].item()
report["broadcast objects"] = broadcast_object_list([rank, {"rank": rank}], from_process=1)
uneven = torch.ones(rank + 1, 2)
report["pad"] = [list(accelerator.pad_across_processes(uneven, pad_first=first).sum(1).int().tolist()) for first in (False, True)]
report["pad columns"] = list(accelerator.pad_across_processes(torch.ones(2, rank + 1), dim=1, pad_index=-1)[0].tolist())
report["reduce"] = [accelerator.reduce(mine.clone(), how).tolist() for how in ("sum", "mean", "max", "none")]
if rank == 1:
    accelerator.set_trigger()
report["trigger"] = [accelerator.check_trigger(), accelerator.check_trigger()]
with accelerator.split_between_processes(list(range(5))) as share:
    report["share"] = share
with accelerator.split_between_processes({"x": torch.arange(5)}, apply_padding=True) as share:
    report["padded share"] = share["x"].tolist()
order = out / "order"
with accelerator.main_process_first():
    with order.open("a") as file:
        file.write(f"{rank}\\n")
try:
    with accelerator.main_process_first():
        if rank == 0:
            1 / 0
except ZeroDivisionError:
    pass
accelerator.wait_for_everyone()
report["order"] = [int(line) for line in order.read_text().split()]
report["on process"] = [accelerator.on_process(process_index=1)(lambda: "me")(), accelerator.on_last_process(lambda: "last")()]
"""

TRAINING = """
SAMPLES = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64.0)[:, None] / 64)

def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def loss_of(model, batch):
    return (model(batch[0]) - batch[1]).pow(2).mean()

def optimizer_for(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)

def large_batches(size):
    "What one process computes with batches as large as all ranks' accumulated ones."
    model = network()
    optimizer = optimizer_for(model)
    for batch in DataLoader(SAMPLES, size):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]

def accumulated(steps, split=False, each=False):
    plugin = GradientAccumulationPlugin(num_steps=steps, sync_each_batch=each)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin, split_batches=split)
    model = network(seed=rank)  # DDP makes them equal
    model.load_state_dict(network().state_dict())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer := optimizer_for(model), 1000)
    schedule, optimizer, loader, model = accelerator.prepare(schedule, optimizer, DataLoader(SAMPLES, 4 * ranks if split else 4), model)
    differ = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            gradients = accelerator.gather(model.module[0].weight.grad[None])
            differ.append(not all(torch.equal(gradients[0], other) for other in gradients[1:]))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    weights = [parameter.detach() for parameter in model.parameters()]
    close = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(weights, large_batches(4 * ranks * steps)))
    return {"close": close, "differ": differ, "moved": schedule.last_epoch}

report["accumulated"] = accumulated(2)
report["accumulated split"] = accumulated(2, split=True)
report["averaged each time"] = accumulated(2, each=True)
report["not accumulated"] = accumulated(1)
"""

METRICS = """
class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        return iter(range(self.count))
    def __len__(self):
        return self.count

wrong, named = [], []
for count in (1, ranks, 17, 24, 25) if ranks == 2 else (17, 25):
    for options in ({}, {"split_batches": True}, {"dispatch_batches": True}, {"dispatch_batches": True, "split_batches": True}):
        for data in (TensorDataset(torch.arange(count)), Stream(count)):
            accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
            loader = accelerator.prepare(DataLoader(data, 4))
            streamed = isinstance(data, Stream)
            found, lengths, objects = [], [], []
            for batch in loader:
                samples = batch if streamed else batch[0]
                gathered = accelerator.gather_for_metrics({"x": samples, "more": [samples * 2]})
                found += gathered["x"].tolist()
                assert torch.equal(gathered["more"][0], gathered["x"] * 2)
                lengths.append(len(accelerator.gather_for_metrics(torch.tensor(1.0))))
                objects += accelerator.gather_for_metrics([str(int(sample)) for sample in samples])
            case = [count, options, streamed]
            if found != list(range(count)):
                wrong.append([case, found])
            if objects != [str(sample) for sample in range(count)]:
                wrong.append([case, "objects", objects])
            steps = -(-count // (4 if options.get("split_batches") else 4 * ranks))
            if len(lengths) != steps or len(loader) != steps:
                wrong.append([case, "steps", len(lengths), len(loader)])
            del loader
report["metrics"] = wrong

accelerator = Accelerator(cpu=True)
accelerator.dataloader_config.dispatch_batches = False
loader = accelerator.prepare(DataLoader(Stream(24), 4, drop_last=True))
report["stream of each"] = [batch.tolist() for batch in loader]
class Failing(Stream):
    def __iter__(self):
        yield from range(4 * ranks)
        raise OSError("no such shard")
loader = Accelerator(cpu=True).prepare(DataLoader(Failing(100), 4))
try:
    report["failing"] = [len(batch) for batch in loader]
except Exception as error:
    report["failing"] = f"{type(error).__name__}: {error}"

torch.manual_seed(rank)  # nobody has to seed
loader = Accelerator(cpu=True).prepare(DataLoader(TensorDataset(torch.arange(16 * ranks)), 4, shuffle=True))
report["shuffled"] = [sum((batch[0].tolist() for batch in loader), []) for _ in range(2)]
"""

UNEVEN = """
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
model = network()
model, loader = accelerator.prepare(model, DataLoader(TensorDataset(*SAMPLES[: 4 * ranks + 4]), 4))
with accelerator.join_uneven_inputs([model]):
    sizes = []
    for batch in loader:
        loss_of(model, batch).backward()
        sizes.append(len(batch[0]))
report["uneven"] = sizes
accelerator.wait_for_everyone()
"""

SAVING = """
def training(seed):
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer := optimizer_for(model), 0.05, total_steps=30)
    return accelerator, *accelerator.prepare(model, optimizer, schedule, DataLoader(SAMPLES, 3, shuffle=True))

def train(accelerator, model, optimizer, schedule, loader, epochs, save_at=None, where=None):
    losses = []
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == save_at:
                accelerator.save_state(where)
    return losses, [parameter.detach().clone() for parameter in model.parameters()], schedule.get_last_lr()

resumed = []
steps = -(-64 // (3 * ranks))
for save_at in (1, 2, steps + 1):
    where = out / f"checkpoint{save_at}"
    losses, weights, rates = train(*training(seed=100 + rank), 3, save_at, where)
    again = training(seed=200 + rank)
    again[0].load_state(where)
    more, others, their_rates = train(*again, 3 - again[-1].iteration)
    resumed.append([losses[save_at:] == more, all(map(torch.equal, weights, others)), rates == their_rates, len(more)])
report["resumed"] = resumed
"""

TRACKING = """
hook = DistributedDataParallelKwargs(comm_hook="fp16", bucket_cap_mb=1)
accelerator = Accelerator(cpu=True, log_with="jsonl", mixed_precision="bf16", kwargs_handlers=[hook])
accelerator.init_trackers("ranks", config={"lr": 0.05}, init_kwargs={"wandb": {"entity": "nobody"}})
model = nn.Sequential(nn.Linear(4, 512), nn.Tanh(), nn.Linear(512, 512), nn.Linear(512, 1))  # a megabyte, and more
model, optimizer, loader = accelerator.prepare(model, optimizer_for(model), DataLoader(SAMPLES, 16 // ranks))
report["first buckets"] = ddp_in_force(model)["bucket_bytes"]
report["bucket"] = model.bucket_bytes_cap // 2**20
for step, batch in enumerate(loader, 1):
    loss = loss_of(model, batch)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": loss, "rank": rank}, step=step)
accelerator.log({f"only/{rank}": rank + 0.5}, step=step)
accelerator.get_tracker("jsonl").log({f"tracker/{rank}": 1.0}, step=step)
with accelerator.profile(ProfileKwargs(activities=["cpu"], ranks=[1], output_trace_dir=str(out / "traces"))):
    loss_of(model, batch)
report["buckets"] = ddp_in_force(model)["bucket_bytes"]
report["run"] = accelerator.run.id
accelerator.end_training()
report["after the end"] = accelerator.gather(torch.tensor([1])).tolist()  # the process group is there
end()
accelerator.end_training(destroy_process_group=True)
assert not torch.distributed.is_initialized()
"""


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"{ranks} ranks")
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A job that has done everything, one after the other."""
    directory: Path = tmp_path_factory.mktemp("job")
    found = torchrun(request.param, COLLECTIVES + TRAINING + METRICS + UNEVEN + SAVING + TRACKING, directory)
    assert found.code == 0, found.stderr
    assert len(found.reports) == request.param, found.stderr
    return found


def test_each_rank_knows_who_it_is(done: Done):
    """Rank, number, and the backend of the CPU."""
    ranks = len(done.reports)
    assert [report["state"] for report in done.reports] == [[rank, ranks, rank, "MULTI_CPU", "gloo"] for rank in range(ranks)]


def test_collectives_on_nested_data(done: Done):
    """Every rank gets the same, in order of ranks."""
    ranks = len(done.reports)
    everyone = range(ranks)
    for rank, report in enumerate(done.reports):
        assert report["gather"] == [value + 10 * one for one in everyone for value in range(3)]
        assert report["gather scalars"] == list(everyone)
        assert report["gather bools"] == [one % 2 == 0 for one in everyone]
        assert report["gather odd"] == [row for one in everyone for row in ([10 * one, 10 * one + 2], [10 * one + 1, 10 * one + 3])]
        assert report["objects"] == [f"rank {one}" for one in everyone]
        assert (report["broadcast"], report["broadcast objects"]) == (6, [1, {"rank": 1}])
        filled, empty = [2] * (rank + 1), [0] * (ranks - rank - 1)
        assert report["pad"] == [filled + empty, empty + filled]
        assert report["pad columns"] == [1] * (rank + 1) + [-1] * (ranks - rank - 1)
        total = [sum(value + 10 * one for one in everyone) for value in range(3)]
        own = [value + 10 * rank for value in range(3)]
        largest = [value + 10 * (ranks - 1) for value in range(3)]
        assert report["reduce"] == [total, [value / ranks for value in total], largest, own]
        assert report["trigger"] == [True, False]


def test_work_is_shared(done: Done):
    """Consecutive items, the first ranks one more; padded, all the same number."""
    ranks = len(done.reports)
    assert [item for report in done.reports for item in report["share"]] == list(range(5))
    assert {len(report["padded share"]) for report in done.reports} == {-(-5 // ranks)}
    assert done.reports[0]["order"][0] == 0
    assert sorted(done.reports[0]["order"]) == list(range(ranks))
    assert [report["on process"][0] for report in done.reports] == [None, "me", None, None][:ranks]
    assert [report["on process"][1] for report in done.reports] == [None] * (ranks - 1) + ["last"]


def test_accumulated_batches_of_all_ranks_are_one_large_batch(done: Done):
    """Weights equal those of one process with the large batch; gradients differ between ranks until the step; schedules keep their length."""
    ranks = len(done.reports)
    batches = 64 // (4 * ranks)
    for report in done.reports:
        for name in ("accumulated", "accumulated split", "averaged each time", "not accumulated"):
            assert report[name]["close"], name
        assert report["accumulated"]["differ"] == [True, False] * (batches // 2)
        assert not any(report["averaged each time"]["differ"])
        assert report["accumulated"]["moved"] == batches // 2 * ranks
        assert report["accumulated split"]["moved"] == batches // 2
        assert report["not accumulated"]["moved"] == 64 // 4


def test_metrics_are_computed_on_each_sample_once(done: Done):
    """Whatever the number of samples: dealt out, split, read by rank 0, streams; tensors and objects, and nothing of a scalar is dropped."""
    assert [report["metrics"] for report in done.reports] == [[]] * len(done.reports)


def test_streams(done: Done):
    """Each rank keeps its part of a stream that all read; what rank 0 cannot read is an error everywhere, and nobody waits."""
    ranks = len(done.reports)
    assert [report["stream of each"][0] for report in done.reports] == [list(range(4 * rank, 4 * rank + 4)) for rank in range(ranks)]
    assert done.reports[0]["failing"] == "OSError: no such shard"
    assert {report["failing"] for report in done.reports[1:]} == {
        "RuntimeError: rank 0 could not read the next batch: OSError: no such shard"
    }


def test_ranks_shuffle_alike(done: Done):
    """Whatever their own seeds: each sample once per epoch, in another order in the next."""
    ranks = len(done.reports)
    for epoch in range(2):
        assert sorted(sample for report in done.reports for sample in report["shuffled"][epoch]) == list(range(16 * ranks))
    assert done.reports[0]["shuffled"][0] != done.reports[0]["shuffled"][1]


def test_ranks_may_have_different_numbers_of_batches(done: Done):
    """join_uneven_inputs: nothing is repeated, and nobody waits."""
    assert [report["uneven"] for report in done.reports] == [[4, 4], *[[4]] * (len(done.reports) - 1)]


def test_training_goes_on_to_the_last_bit(done: Done):
    """Saved within an epoch that is shuffled, also in the middle of an accumulation: losses, weights and rates are the same."""
    for report in done.reports:
        assert [entry[:3] for entry in report["resumed"]] == [[True] * 3] * 3
        assert all(entry[3] > 0 for entry in report["resumed"])


def test_every_rank_is_heard(done: Done):
    """The mean of all ranks arrives, values of one rank do as well, and telemetry beside them; the process group outlives the run."""
    ranks = len(done.reports)
    assert len({report["run"] for report in done.reports}) == 1
    assert {tuple(report["after the end"]) for report in done.reports} == {(1,) * ranks}
    values: dict[int, dict[str, float]] = {}
    for row in done.rows():
        values.setdefault(row["step"], {}).update(row["values"])
    assert {step: row["rank"] for step, row in values.items()} == dict.fromkeys(range(1, 5), sum(range(ranks)) / ranks)
    assert {key: value for key, value in values[4].items() if key.startswith(("only", "tracker"))} == {
        **{f"only/{rank}": rank + 0.5 for rank in range(ranks)},
        **{f"tracker/{rank}": 1.0 for rank in range(ranks)},
    }
    for row in values.values():
        assert row["telemetry/comm_compression"] == 2.0
        assert row["telemetry/grad_norm"] > 0
    # The first batch is not over yet when it is logged.
    assert [row.get("telemetry/compute_s", 0) > 0 for row in values.values()] == [False, True, True, True]


def test_settings_in_force_are_recorded(done: Done):
    """What the handlers say, and what the runtime makes of it."""
    (path,) = done.directory.glob("runs/*/jsonl/config.json")
    config = json.loads(path.read_text())
    facts = config["accelerator"]
    assert config["lr"] == 0.05
    assert (facts["num_processes"], facts["backend"], facts["timeout_s"], facts["mixed_precision"]) == (
        len(done.reports), "gloo", 1800.0, "bf16",
    )  # fmt: skip
    assert facts["handlers"]["DistributedDataParallelKwargs"]["bucket_cap_mb"] == 1
    assert (facts["ddp"]["bucket_cap_mb"], facts["ddp"]["comm_hook"]) == (1.0, "fp16")
    buckets = facts["ddp"]["bucket_bytes"]
    assert sum(buckets) == 4 * (4 * 512 + 512 + 512 * 512 + 512 + 512 + 1)
    assert len(buckets) > 1
    assert buckets == done.reports[0]["buckets"] != done.reports[0]["first buckets"]  # DDP has sorted them anew since `prepare`
    assert {report["bucket"] for report in done.reports} == {1}


def test_a_rank_that_profiles_sends_its_trace(done: Done):
    """As a file and as a table for the trackers; the others do not profile, and wait for nobody."""
    (trace,) = (done.directory / "traces").iterdir()
    assert trace.name.startswith("profile_rank1_step")
    kinds = {key.rpartition("/")[2]: said["kind"] for row in done.rows() for key, said in row.get("media", {}).items()}
    assert kinds == {trace.name: "artifact", "rank1": "table"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_exception_in_one_rank_ends_the_job(tmp_path: Path, ranks: int):
    """It leaves a profile; the others wait for it in a barrier, and are ended; the run has failed, and what was logged before is there."""
    script = """
accelerator = Accelerator(cpu=True, log_with="jsonl")
accelerator.init_trackers("failing")
accelerator.log({"loss": 1.0}, step=1)
with accelerator.profile(ProfileKwargs(activities=["cpu"])):
    torch.ones(2) + 1
    if rank == 1:
        raise RuntimeError("out of luck")
accelerator.wait_for_everyone()
end()
"""
    done = torchrun(ranks, script, tmp_path)
    assert done.code != 0
    assert done.reports == []
    assert "out of luck" in done.stderr
    (status,) = wait_until(lambda: list(tmp_path.glob("runs/*/jsonl/status.json")), what="the end of the run")
    assert json.loads(status.read_text())["status"] == "failed"
    rows = done.rows()
    assert rows[0]["values"] == {"loss": 1.0}
    assert "profile/rank1" in {key for row in rows for key in row.get("media", {})}
