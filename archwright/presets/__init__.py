"""Data: published architectures, recipes, studies, hardware, and templates of choices."""

from pathlib import Path

FOLDER = Path(__file__).parent
THIS = "this"
"""Name of the local machine as hardware; the others have a file each."""
