"""How does it write? Sampling from a model."""
