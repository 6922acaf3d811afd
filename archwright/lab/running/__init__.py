"""Runs of a study: local, on Ray or on SLURM; cached and resumed."""
