"""Data only: published architectures, recipes for runs."""

from pathlib import Path

FOLDER = Path(__file__).parent
THIS = "this"
"""Hardware that no file describes: the machine that asks."""
