"""A trainer in the manner of litgpt: a YAML file, options that replace its values, metrics of a CSV logger.

python from_config.py --config small.yaml --optimizer.lr 1e-3 --train.max_steps 200 --seed 1 --out_dir out
"""

import csv
import os
import sys
from pathlib import Path

import torch
import yaml
from torch.nn import functional as F

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
config = yaml.safe_load(Path(options.pop("--config")).read_text())
for option, text in options.items():
    *tables, name = option.removeprefix("--").split(".")
    table = config
    for key in tables:
        table = table[key]
    table[name] = yaml.safe_load(text) if name != "lr" else float(text)

torch.manual_seed(config["seed"])
steps, width = config["train"]["max_steps"], config["model"]["n_embd"]
data = torch.tensor(list(Path(os.__file__).read_bytes()))
train, held_out = data[:36_000], data[36_000:]
embedding, head = torch.nn.Embedding(256, width), torch.nn.Linear(width, 256)
layer = torch.nn.GRU(width, width, batch_first=True)
parts = torch.nn.ModuleList([embedding, layer, head])
optimizer = torch.optim.AdamW(parts.parameters(), lr=config["optimizer"]["lr"])
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)


def loss_at(tokens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    sequences = tokens[starts[:, None] + torch.arange(33)]
    logits = head(layer(embedding(sequences[:, :-1]))[0])
    return F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


folder = Path(config["out_dir"], "logs", "csv")
folder = folder / f"version_{len(list(folder.glob('version_*')))}"  # a new one after a crash
folder.mkdir(parents=True)
with (folder / "metrics.csv").open("w", newline="") as file:
    logger = csv.writer(file)
    logger.writerow(["step", "loss", "val_loss"])
    for step in range(1, steps + 1):
        loss = loss_at(train, torch.randint(len(train) - 33, (16,)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        logger.writerow([step, loss.item(), ""])
    with torch.no_grad():
        logger.writerow([steps, "", loss_at(held_out, torch.arange(0, 2000, 33)).item()])
