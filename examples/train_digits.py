"""Train on scikit-learn's digits (1,797 real images) with DistributedDataParallel; every rank logs.

::

    torchrun --standalone --nproc-per-node=2 examples/train_digits.py
    accelbus status
    tensorboard --logdir runs
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import accelbus

TEST_IMAGES = 360


def main() -> None:
    """Train, and test after each epoch."""
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits; every rank logs.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, test_set = load()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train_set)
    batches = DataLoader(train_set, options.batch_size, sampler=sampler)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.epochs * len(batches))

    # In every rank. All of them find the same run without talking to each other.
    with accelbus.init("digits", config=vars(options)) as run:
        step = 0
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)
            for images, targets in batches:
                started = time.perf_counter()
                optimizer.zero_grad()
                logits = model(images)
                loss = nn.functional.cross_entropy(logits, targets)
                loss.backward()
                grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                step += 1
                run.log(
                    {
                        "train/loss": loss,
                        "train/accuracy": (logits.argmax(1) == targets).float().mean(),
                        "train/lr": schedule.get_last_lr()[0],
                        "train/grad_norm": grad_norm,
                        "train/step_time": time.perf_counter() - started,
                    },
                    step=step,
                )
                schedule.step()
            run.log({"test/accuracy": accuracy(model, test_set), "epoch": epoch + 1}, step=step)
    dist.destroy_process_group()


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return the images to train on and those to test on, the same in every rank."""
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
        nn.Linear(32 * 4 * 4, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, images: TensorDataset) -> float:
    """Return the share of *images* that *model* names correctly."""
    model.eval()
    inputs, targets = images.tensors
    share = float((model(inputs).argmax(1) == targets).float().mean())
    model.train()
    return share


if __name__ == "__main__":
    main()
