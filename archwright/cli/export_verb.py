"""The command `archwright export`: write the model of a run as a folder for transformers."""

from collections.abc import Sequence
from pathlib import Path

from archwright.cli.parser import Parser, check_parts

ABOUT = """\
Write a run's model as a folder that transformers loads: config.json, generation_config.json, safetensors and
the tokenizer. If no published family has all of the model's choices, the error lists the choices that block
the export (archwright show NAME --exportable lists them before training)."""

EXAMPLES = """\
  archwright export runs/modern hf/modern
  archwright verify hf/modern"""


def run(words: Sequence[str]) -> int:
    """Export a run."""
    parser = Parser("export", ABOUT, EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("folder", metavar="FOLDER", help="a new or empty folder")
    parser.add_argument("--family", default="", metavar="NAME", help="the family, if several fit")
    options, parts = parser.parse_with_parts(words)
    from archwright.hf import export_run
    from archwright.hf.configs import read_config
    from archwright.runs import RunFolder

    check_parts(RunFolder.open(options.run), parts)
    before = Path(options.folder).is_dir() and any(Path(options.folder).iterdir())
    family = export_run(options.run, options.folder, options.family)
    (architecture,) = read_config(Path(options.folder))["architectures"]
    print(f"family  {family} ({architecture})")
    print(f"folder  {options.folder}{' (there already, value by value)' if before else ''}")
    return 0
