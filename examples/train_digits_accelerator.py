"""Train on scikit-learn's digits with `Accelerator`: the same script on a CPU, on a GPU and on several.

::

    python examples/train_digits_accelerator.py
    torchrun --standalone --nproc-per-node=2 examples/train_digits_accelerator.py
    torchrun --standalone --nproc-per-node=2 examples/train_digits_accelerator.py --resume

    accelbus status --state-dir runs/digits-accelerator
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelbus import Accelerator
from accelbus.accelerator import ProjectConfiguration, set_seed
from accelbus.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
)
from accelbus.tracking import get_available_trackers

TEST_IMAGES = 360
TRACKERS = ("tensorboard", "jsonl", "mlflow")


def main() -> None:
    """Train, test after each epoch, and keep a checkpoint."""
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits with accelbus.Accelerator.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per process and batch")
    parser.add_argument("--accumulate", type=int, default=2, help="batches per step")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--precision", choices=["no", "bf16", "fp16"], default="fp16" if torch.cuda.is_available() else "no")
    parser.add_argument("--project-dir", default="runs/digits-accelerator")
    parser.add_argument("--trackers", nargs="*", default=[name for name in TRACKERS if name in get_available_trackers()])
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, in the same tracker runs")
    options = parser.parse_args()

    handlers: list[KwargsHandler] = [ProfileKwargs(schedule_option={"wait": 2, "warmup": 1, "active": 2, "repeat": 1}, ranks=[0])]
    # A handler that has no effect is warned about.
    if options.precision != "no":
        handlers += [AutocastKwargs(cache_enabled=True)]
    if torch.distributed.is_torchelastic_launched():
        handlers += [InitProcessGroupKwargs(timeout=timedelta(minutes=5)), DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    if options.precision == "fp16":
        handlers += [GradScalerKwargs(growth_interval=100)]
    accelerator = Accelerator(
        mixed_precision=options.precision,
        gradient_accumulation_steps=options.accumulate,
        log_with=options.trackers,
        project_config=ProjectConfiguration(project_dir=options.project_dir, automatic_checkpoint_naming=True, total_limit=2),
        kwargs_handlers=handlers,
    )
    set_seed(0)
    train_set, test_set = load()
    batches = DataLoader(train_set, options.batch_size, shuffle=True)
    tests = DataLoader(test_set, options.batch_size)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(batches) // options.accumulate)
    model, optimizer, batches, tests, schedule = accelerator.prepare(model, optimizer, batches, tests, schedule)

    # In every process. With --resume the checkpoint's run is continued.
    accelerator.init_trackers("digits-accelerator", config=vars(options), resume="allow" if options.resume else "never")
    if options.resume:
        accelerator.load_state()

    step = batches.iteration * len(batches)
    for epoch in range(batches.iteration, options.epochs):
        with accelerator.profile() as profiler:
            for images, targets in batches:
                with accelerator.accumulate(model):
                    logits = model(images)
                    loss = nn.functional.cross_entropy(logits, targets)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                step += 1
                # The mean over all processes arrives, and telemetry beside it: gradient norm, scaler, seconds of waiting and computing.
                accelerator.log({"train/loss": loss, "train/lr": schedule.get_last_lr()[0]}, step=step)
                profiler.step()
        accelerator.log({"test/accuracy": accuracy(accelerator, model, tests), "epoch": epoch + 1}, step=step)
        accelerator.save_state()
    accelerator.print(f"accuracy on {TEST_IMAGES} test images: {accuracy(accelerator, model, tests):.3f}")
    accelerator.end_training(destroy_process_group=True)


@torch.no_grad()
def accuracy(accelerator: Accelerator, model: nn.Module, tests: DataLoader[Any]) -> float:
    """Return the share of test images that *model* names correctly, each counted once however many processes there are."""
    model.eval()
    right = total = 0
    for images, targets in tests:
        guesses, wanted = accelerator.gather_for_metrics((model(images).argmax(1), targets))
        right += int((guesses == wanted).sum())
        total += len(wanted)
    model.train()
    return right / total


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return the images to train on and those to test on, the same in every process."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    targets = torch.tensor(digits.target)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], targets[train]), TensorDataset(images[test], targets[test])


def network() -> nn.Module:
    """Return a small convolutional network for 8x8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32 * 4 * 4, 10),
    )


if __name__ == "__main__":
    main()
