"""Readable views of specs: available choices, published models, parameter counts."""
