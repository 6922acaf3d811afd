"""A language model of bytes in plain PyTorch: two configurations differ in their activation."""

import argparse
import json
import os
from pathlib import Path

import torch
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path)
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--steps", type=int)
parser.add_argument("--out", type=Path)
args = parser.parse_args()
config = json.loads(args.config.read_text())

torch.manual_seed(args.seed)  # initial weights
order = torch.Generator().manual_seed(args.seed)  # and batches: both variants see the same ones
data = torch.tensor(list(Path(os.__file__).read_bytes()))  # Python's module os
train, held_out = data[:36_000], data[36_000:]
activation = {"relu": torch.nn.ReLU, "gelu": torch.nn.GELU}[config["activation"]]
model = torch.nn.Sequential(
    torch.nn.Embedding(256, 16),
    torch.nn.Flatten(),
    torch.nn.Linear(16 * 8, config["hidden"]),
    activation(),
    torch.nn.Linear(config["hidden"], 256),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
# --steps sets the end of the schedule, too.
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)


def loss_at(tokens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    contexts = tokens[starts[:, None] + torch.arange(8)]
    return F.cross_entropy(model(contexts), tokens[starts + 8])


for step in range(1, args.steps + 1):
    loss = loss_at(train, torch.randint(len(train) - 8, (64,), generator=order))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % max(1, args.steps // 5) == 0:
        with torch.no_grad():
            found = loss_at(held_out, torch.arange(0, len(held_out) - 8, 2)).item()
        with (args.out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "tokens": 64 * step, "val_loss": found}) + "\n")
