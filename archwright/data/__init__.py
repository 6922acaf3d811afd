"""Tokenized data and batches."""
