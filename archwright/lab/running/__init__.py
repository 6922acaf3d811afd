"""The runs of a study: here, on Ray or on SLURM, cached and resumed."""
