"""What readers call the parts of a model, where records have had other keys."""

TITLES = {
    "attention between tokens": "attention scores and mixing",
    "cross-attention between tokens": "cross-attention scores and mixing",
    "recurrence between tokens": "recurrence scan",
    "norms and sums": "norms and residual sums",
    "relatives": "relative position bias",
}
"""By keys of `parameters_by_part`, `forward_flops_per_token_by_part` and `operators`."""
MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "copies": "16-bit weights",
    "gathered": "communication buffers",
    "activations": "activations",
    "logits": "logits",
}
"""Parts of the memory of a training, by key of `training_memory_bytes_by_part`."""


def part_title(part: str) -> str:
    """Return what readers call a part, one of an encoder or a generator included."""
    stack, colon, name = part.rpartition(": ")
    return f"{stack}{colon}{TITLES.get(name, name.replace('_', ' '))}"
