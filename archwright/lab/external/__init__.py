"""Studies over the training runs of other programs."""
