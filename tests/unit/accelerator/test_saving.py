"""Checkpoints of a single process: complete or not there, and everything goes on as if nothing had happened."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelbus.accelerator import ProjectConfiguration, checkpoint, randomness
from accelbus.accelerator.checkpoint import Marker
from accelbus.errors import ConfigurationError

DATA = TensorDataset(torch.randn(23, 4, generator=torch.Generator().manual_seed(0)))


class Counter:
    """A custom object."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Keeper:
    """A custom object with any state."""

    def __init__(self, state) -> None:
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state) -> None:
        self.state = state


class Training:
    """Everything that a checkpoint keeps, and what goes on with it."""

    def __init__(self, make, seed: int = 0, **arguments) -> None:
        torch.manual_seed(seed)
        self.accelerator = make(gradient_accumulation_steps=2, **arguments)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
        loader = DataLoader(DATA, 3, shuffle=True)
        self.model, self.optimizer, self.schedule, self.loader = self.accelerator.prepare(model, optimizer, schedule, loader)
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)
        self.losses: list[float] = []

    def train(self, epochs: int, save_at: int | None = None, where: str | None = None) -> None:
        for _ in range(epochs):
            for (batch,) in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = self.model(batch).pow(2).mean()
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.schedule.step()
                    self.optimizer.zero_grad()
                self.counter.count += 1
                self.losses.append(loss.item())
                if self.counter.count == save_at:
                    self.accelerator.save_state(where)

    def state(self):
        return [self.losses[-6:], self.schedule.get_last_lr(), self.counter.count, *map(torch.clone, self.model.state_dict().values())]


def same(one, other) -> bool:
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("batch", [1, 4, 8, 11, 16], ids=lambda batch: f"after batch {batch} of 8 per epoch")
def test_training_goes_on_to_the_last_bit(make, tmp_path, batch):
    """In the middle of an accumulation, of an epoch, at its end: losses, weights, averages, rates and random numbers are the same."""
    whole = Training(make)
    whole.train(4, save_at=batch, where=str(tmp_path / "checkpoint"))

    resumed = Training(make, seed=5)
    resumed.accelerator.load_state(tmp_path / "checkpoint")
    assert resumed.counter.count == batch
    resumed.train(4 - resumed.loader.iteration)
    assert same(resumed.state(), whole.state())


def test_checkpoints_are_numbered_and_old_ones_go(make, tmp_path):
    """automatic_checkpoint_naming: the newest complete one is loaded, and total_limit are kept."""
    config = ProjectConfiguration(project_dir=tmp_path, automatic_checkpoint_naming=True, total_limit=2)
    training = Training(make, project_config=config)
    made = [training.accelerator.save_state() for _ in range(4)]
    assert [path.rpartition("/")[2] for path in made] == [f"checkpoint_{number}" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_2", "checkpoint_3"]

    (tmp_path / "checkpoints" / "checkpoint_4").mkdir()  # somebody was killed while writing it
    (tmp_path / "checkpoints" / "notes").mkdir()
    again = Training(make, project_config=ProjectConfiguration(project_dir=tmp_path, automatic_checkpoint_naming=True))
    with pytest.raises(ConfigurationError, match="is there already"):
        again.accelerator.project_configuration.iteration = 3
        again.accelerator.save_state()
    again.accelerator.load_state()
    assert again.accelerator.save_iteration == 4
    assert again.accelerator.save_state().endswith("checkpoint_4")


def test_a_run_that_begins_anew_goes_on_behind_the_checkpoints_that_are_there(make, tmp_path):
    """total_limit drops those of the former run, not the one just written, and load_state finds what was saved last."""

    def again():
        return Training(
            make, project_config=ProjectConfiguration(project_dir=tmp_path, automatic_checkpoint_naming=True, total_limit=2)
        ).accelerator

    first = again()
    for _ in range(3):
        first.save_state()
    second = again()
    path = second.save_state()
    assert path.endswith("checkpoint_3")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_2", "checkpoint_3"]
    third = again()
    third.load_state(tmp_path / "checkpoints" / "checkpoint_2")  # an older one, by name
    assert third.save_state().endswith("checkpoint_4")


def test_the_checkpoint_just_written_is_kept_whatever_its_number(make, tmp_path):
    """Age decides, not the number that a script has set, nor a clock that was put back; interrupted ones go first."""
    config = ProjectConfiguration(project_dir=tmp_path, automatic_checkpoint_naming=True, total_limit=2, iteration=8)
    accelerator = Training(make, project_config=config).accelerator
    for _ in range(2):
        accelerator.save_state()
    (tmp_path / "checkpoints" / "checkpoint_20").mkdir()
    config.iteration = 0
    assert accelerator.save_state().endswith("checkpoint_0")
    directory = tmp_path / "checkpoints"
    assert sorted(path.name for path in directory.iterdir()) == ["checkpoint_0", "checkpoint_9"]
    assert checkpoint.named_automatically(tmp_path)[-1] == directory / "checkpoint_0"

    future = checkpoint.marker_of(directory / "checkpoint_9")
    future.created_ns *= 2
    checkpoint.mark(directory / "checkpoint_9", future)
    config.total_limit, config.iteration = 1, 5
    accelerator.save_state()
    assert [path.name for path in directory.iterdir()] == ["checkpoint_5"]


def test_nothing_is_replaced_while_the_former_checkpoint_counts_as_complete(make, tmp_path, monkeypatch):
    """Every process waits until the marker is gone before it writes into a directory that has one."""
    accelerator, done = Training(make).accelerator, []
    accelerator.save_state(tmp_path)

    def noted(name, function):
        return lambda *given: (done.append(name), function(*given))

    for name in ("unmark", "write", "mark"):
        monkeypatch.setattr(checkpoint, name, noted(name, getattr(checkpoint, name)))
    monkeypatch.setattr(accelerator, "wait_for_everyone", lambda: done.append("wait"))
    accelerator.save_state(tmp_path)
    assert done.count("unmark") == 1
    assert done[done.index("unmark") + 1] == "wait"
    assert done.index("unmark") < done.index("write") < done.index("mark")


def test_an_incomplete_checkpoint_is_not_loaded(make, tmp_path):
    """Whatever is missing, the error says what was expected."""
    training = Training(make)
    path = tmp_path / "checkpoint"
    training.accelerator.save_state(path)
    (path / checkpoint.MARKER).unlink()
    with pytest.raises(ConfigurationError, match="no complete checkpoint"):
        training.accelerator.load_state(path)
    with pytest.raises(ValueError, match="does not exist"):
        training.accelerator.load_state(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="needs input_dir"):
        training.accelerator.load_state()
    with pytest.raises(ConfigurationError, match="needs output_dir"):
        training.accelerator.save_state()


def test_a_checkpoint_that_fails_leaves_none(make, tmp_path):
    """An object that cannot be saved: the directory's former checkpoint counts as gone, not as the new one; nothing hidden is left."""
    training = Training(make)
    training.accelerator.save_state(tmp_path)
    training.accelerator.register_for_checkpointing(type("Bad", (Counter,), {"state_dict": lambda self: lambda: None})())
    with pytest.raises(Exception, match="pickle"):
        training.accelerator.save_state(tmp_path)
    assert checkpoint.marker_of(tmp_path) is None
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_hooks_see_models_and_weights(make, tmp_path):
    """They may save and load in their own way, and can be removed."""
    training, calls = Training(make), []
    training.accelerator.register_save_state_pre_hook(lambda models, weights, path: (calls.append(len(models)), weights.clear()))
    handle = training.accelerator.register_load_state_pre_hook(lambda models, path: (calls.append(path), models.clear()))
    training.accelerator.save_state(tmp_path)
    assert not (tmp_path / "pytorch_model.bin").exists()
    training.accelerator.load_state(tmp_path)
    assert calls == [1, str(tmp_path)]
    handle.remove()
    with pytest.raises(ConfigurationError, match="has 0 models, expected 1"):
        training.accelerator.load_state(tmp_path)


def test_numpys_values_are_read_like_tensors(make, tmp_path):
    """Custom objects often keep a mean or an array; scalars and random states of numpy too."""
    training = Training(make)
    state = {
        "best": np.float64(0.5), "seen": np.arange(3), "flag": np.bool_(True), "text": np.array(["a"]), "random": np.random.RandomState(0).get_state(),
    }  # fmt: skip
    keeper = Keeper(state)
    training.accelerator.register_for_checkpointing(keeper)
    training.accelerator.save_state(tmp_path)
    keeper.state = None
    training.accelerator.load_state(tmp_path)
    assert keeper.state["best"] == 0.5
    assert keeper.state["seen"].tolist() == [0, 1, 2]
    assert keeper.state["text"].tolist() == ["a"]


def test_a_state_that_cannot_be_read_safely_is_named_when_it_is_saved(make, tmp_path, caplog):
    """Not only when the run is to go on: object, type and what to do are in the warning, and again in the error."""
    training = Training(make)
    keeper = Keeper({"when": pathlib.PurePosixPath("a")})
    training.accelerator.register_for_checkpointing(keeper)
    training.accelerator.save_state(tmp_path)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("custom_checkpoint_0_1.pkl, the state of a Keeper, holds pathlib.PurePosixPath")
    assert "load_kwargs={'weights_only': False}" in message
    with pytest.raises(ConfigurationError, match=r"custom_checkpoint_0_1.pkl' holds more than plain data .*PurePosixPath.*weights_only"):
        training.accelerator.load_state(tmp_path)
    training.accelerator.load_state(tmp_path, load_kwargs={"weights_only": False})
    assert keeper.state == {"when": pathlib.PurePosixPath("a")}


def test_a_checkpoint_of_other_objects_says_how_many_it_has(make, tmp_path, caplog):
    """More were prepared: an error that names both numbers. Fewer: a warning, also for data loaders."""
    training = Training(make)
    training.accelerator.save_state(tmp_path)
    more = Training(make)
    more.accelerator.prepare(torch.optim.SGD(more.model.parameters(), lr=0.1))
    with pytest.raises(ConfigurationError, match=r"has 1 optimizers, expected 2"):
        more.accelerator.load_state(tmp_path)
    more.accelerator.save_state(tmp_path)
    assert caplog.records == []
    training.accelerator.prepare(DataLoader(DATA, 3))
    training.accelerator.load_state(tmp_path)
    assert [record.getMessage().replace(str(tmp_path), "it") for record in caplog.records] == [
        "it has 2 optimizers, here are 1: the others' states are not loaded",
        "it has positions of 1 data loaders, here are 2: the first ones go on, in order of preparation",
    ]
    training.accelerator.save_state(tmp_path)  # with fewer: nothing of the former one is left
    assert not (tmp_path / "optimizer_1.bin").exists()


def test_weights_saved_into_a_checkpoint_leave_its_other_models_there(make, tmp_path):
    """save_model writes one file, and removes none."""
    training = Training(make)
    other = training.accelerator.prepare(nn.Linear(1, 1))
    saved = other.weight.item()
    training.accelerator.save_state(tmp_path)
    training.accelerator.save_model(training.model, tmp_path)
    nn.init.constant_(other.weight, saved + 1.0)
    training.accelerator.load_state(tmp_path)
    assert other.weight.item() == saved


def test_a_checkpoint_of_accelerate_is_named_as_one(make, tmp_path):
    """Its files have similar names."""
    (tmp_path / "random_states_0.pkl").touch()
    (tmp_path / "optimizer.bin").touch()
    with pytest.raises(ConfigurationError, match="is a checkpoint of Accelerate: load it with"):
        Training(make).accelerator.load_state(tmp_path)


def test_arguments_of_accelerate_are_taken(make, tmp_path):
    """What only other engines use changes nothing."""
    training = Training(make)
    training.accelerator.save_state(tmp_path, safe_serialization=False, exclude_frozen_parameters=True)
    training.accelerator.load_state(tmp_path)
    training.accelerator.save_model(training.model, tmp_path / "model", max_shard_size="1GB", safe_serialization=True)
    assert (tmp_path / "model" / "pytorch_model.bin").exists()


@pytest.mark.parametrize("device", ["mps", "xpu:1"])
def test_random_numbers_of_the_own_device_go_on(monkeypatch, caplog, device):
    """Of any kind of device; where they cannot, because it was another kind, it is said."""
    states, asked = {"state": torch.tensor([1, 2], dtype=torch.uint8)}, []

    class Module:
        @staticmethod
        def get_rng_state(*where):
            asked.append(where)
            return states["state"]

        @staticmethod
        def set_rng_state(state, *where):
            asked.append(where)
            states["state"] = state

    monkeypatch.setattr(torch, "get_device_module", lambda _: Module)
    own = torch.device(device)
    saved = randomness.capture(device=own)
    states["state"] = torch.zeros(2)
    randomness.restore(saved, device=own)
    assert states["state"].tolist() == [1, 2]
    assert asked == [() if device == "mps" else (own,)] * 2
    assert caplog.records == []
    randomness.restore(saved, device=torch.device("cpu"))
    randomness.restore(randomness.capture(device=torch.device("cpu")), device=own)
    assert [record.getMessage() for record in caplog.records] == [
        f"random numbers on cpu go on differently: the state is that of a process that computed on {own.type}",
        f"random numbers on {own} go on differently: the state is that of a process that computed on cpu",
    ]


def test_only_what_has_a_state_is_registered(make):
    """The error names the object."""
    with pytest.raises(ValueError, match="got 3"):
        make().register_for_checkpointing(Counter(), 3)


def test_the_newest_checkpoint_of_a_project(tmp_path):
    """Wherever in the project's directory it lies; incomplete ones and foreign files do not count."""
    assert checkpoint.newest(tmp_path / "nowhere") is None
    for name, created in (("first", 1), ("checkpoints/checkpoint_0", 3), ("checkpoints/checkpoint_1", 2)):
        (tmp_path / name).mkdir(parents=True)
        checkpoint.mark(tmp_path / name, Marker(created_ns=created))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / checkpoint.MARKER).write_text("{")
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoints/checkpoint_0"


def test_files_of_several_objects_have_numbers():
    """As Accelerate names them."""
    assert [checkpoint.numbered("pytorch_model.bin", number) for number in (0, 1)] == ["pytorch_model.bin", "pytorch_model_1.bin"]


def test_weights_alone(make, tmp_path):
    """save_model and save write what torch reads."""
    training = Training(make)
    training.accelerator.save_model(training.model, tmp_path / "model")
    training.accelerator.save({"a": 1}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt") == {"a": 1}
    weights = torch.load(tmp_path / "model" / "pytorch_model.bin")
    assert same(weights.values(), training.accelerator.get_state_dict(training.model).values())
