"""A script of Hugging Face's Trainer: a GPT-2 of a few thousand weights, made on the spot."""

import argparse
import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--activation")
parser.add_argument("--learning_rate", type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--max_steps", type=int)
parser.add_argument("--output_dir")
args = parser.parse_args()

set_seed(args.seed)
data = torch.tensor(list(Path(os.__file__).read_bytes())[:36_864]).view(-1, 32)
rows = [{"input_ids": row, "labels": row} for row in data]
sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 256}
model = GPT2LMHeadModel(
    GPT2Config(**sizes, activation_function=args.activation, bos_token_id=0, eos_token_id=0)
)
arguments = TrainingArguments(
    output_dir=args.output_dir,
    max_steps=args.max_steps,  # the linear schedule ends there, too
    learning_rate=args.learning_rate,
    seed=args.seed,
    per_device_train_batch_size=16,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, arguments, train_dataset=rows[128:], eval_dataset=rows[:128])
trainer.train()
print("eval_loss", trainer.evaluate()["eval_loss"])
