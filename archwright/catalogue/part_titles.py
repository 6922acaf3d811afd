"""Displayed titles of a model's parts, by their keys in records."""

TITLES = {
    "attention between tokens": "attention scores and mixing",
    "cross-attention between tokens": "cross-attention scores and mixing",
    "recurrence between tokens": "recurrence scan",
    "norms and sums": "norms and residual sums",
    "relatives": "relative position bias",
}
"""Titles by key of `parameters_by_part`, `forward_flops_per_token_by_part` and `operators`."""
MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "copies": "16-bit weights",
    "gathered": "communication buffers",
    "activations": "activations",
    "logits": "logits",
}
"""Titles of the parts of training memory, by key of `training_memory_bytes_by_part`."""


def part_title(part: str) -> str:
    """Return the title of a part; a prefix for its stack stays."""
    stack, colon, name = part.rpartition(": ")
    return f"{stack}{colon}{TITLES.get(name, name.replace('_', ' '))}"
