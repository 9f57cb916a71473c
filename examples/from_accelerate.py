"""A training script as it is written for Hugging Face Accelerate, on scikit-learn's digits. One line is different: the import.

::

    python examples/from_accelerate.py --with_tracking
    torchrun --standalone --nproc-per-node=2 examples/from_accelerate.py --with_tracking --checkpointing_steps epoch
    python examples/from_accelerate.py --resume_from_checkpoint output/epoch_0
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset

from accelbus import Accelerator  # from accelerate import Accelerator


def get_dataloaders(batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    train = DataLoader(TensorDataset(inputs[:1437], labels[:1437]), shuffle=True, batch_size=batch_size)
    evaluation = DataLoader(TensorDataset(inputs[1437:], labels[1437:]), shuffle=False, batch_size=batch_size)
    return train, evaluation


def training_function(args: argparse.Namespace) -> None:
    if args.with_tracking:
        accelerator = Accelerator(
            cpu=args.cpu, mixed_precision=args.mixed_precision, log_with="tensorboard", project_dir=args.project_dir,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
        )  # fmt: skip
    else:
        accelerator = Accelerator(
            cpu=args.cpu, mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.gradient_accumulation_steps
        )
    torch.manual_seed(args.seed)
    if args.with_tracking:
        accelerator.init_trackers("from_accelerate", vars(args))

    train_dataloader, eval_dataloader = get_dataloaders(args.batch_size)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 10))
    model = model.to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=args.lr)
    lr_scheduler = LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=len(train_dataloader) * args.num_epochs)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    overall_step, starting_epoch = 0, 0
    resume_step = None
    if args.resume_from_checkpoint:
        accelerator.print(f"Resumed from checkpoint: {args.resume_from_checkpoint}")
        accelerator.load_state(args.resume_from_checkpoint)
        name = os.path.basename(args.resume_from_checkpoint)
        if name.startswith("epoch_"):
            starting_epoch = int(name.removeprefix("epoch_")) + 1
        else:
            overall_step = int(name.removeprefix("step_"))
            starting_epoch = overall_step // len(train_dataloader)
            resume_step = overall_step - starting_epoch * len(train_dataloader)

    for epoch in range(starting_epoch, args.num_epochs):
        model.train()
        total_loss = torch.zeros((), device=accelerator.device)
        if args.resume_from_checkpoint and epoch == starting_epoch and resume_step is not None:
            active_dataloader = accelerator.skip_first_batches(train_dataloader, resume_step)
        else:
            active_dataloader = train_dataloader
        for inputs, labels in active_dataloader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            overall_step += 1
            if isinstance(args.checkpointing_steps, int) and overall_step % args.checkpointing_steps == 0:
                accelerator.save_state(os.path.join(args.project_dir, f"step_{overall_step}"))

        model.eval()
        correct = count = 0
        for inputs, labels in eval_dataloader:
            with torch.no_grad():
                predictions = model(inputs).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, labels))
            correct += (predictions == references).sum().item()
            count += references.shape[0]
        accelerator.print(f"epoch {epoch}: accuracy {correct / count:.6f}, loss {total_loss.item() / len(train_dataloader):.6f}")
        if args.with_tracking:
            accelerator.log(
                {"accuracy": correct / count, "train_loss": total_loss.item() / len(train_dataloader), "epoch": epoch}, step=epoch
            )
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.project_dir, f"epoch_{epoch}"))

    accelerator.wait_for_everyone()
    unwrapped_model = accelerator.unwrap_model(model)
    accelerator.save(unwrapped_model.state_dict(), os.path.join(args.project_dir, "model.pt"))
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser(description="A script for Accelerate.")
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--checkpointing_steps", default=None, help="a number of steps, or 'epoch'")
    parser.add_argument("--resume_from_checkpoint", default=None)
    parser.add_argument("--with_tracking", action="store_true")
    parser.add_argument("--project_dir", default="output")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    if args.checkpointing_steps is not None and args.checkpointing_steps.isdigit():
        args.checkpointing_steps = int(args.checkpointing_steps)
    os.makedirs(args.project_dir, exist_ok=True)
    training_function(args)


if __name__ == "__main__":
    main()
