"""Specs in words: what can be chosen, and what models chose."""
