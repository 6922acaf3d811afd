"""Data only: published architectures, recipes for runs."""

from pathlib import Path

FOLDER = Path(__file__).parent
