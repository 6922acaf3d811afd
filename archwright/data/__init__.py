"""How tokens become batches."""
