"""The command `archwright import`: turn a Hugging Face checkpoint into a run."""

from collections.abc import Sequence
from pathlib import Path

from archwright.cli.parser import Parser
from archwright.spec.errors import UserError

ABOUT = """\
Convert a checkpoint in Hugging Face's layout to a run folder: config.json, safetensors (or .bin files of
tensors only), and the tokenizer. No code in it is executed, and nothing is downloaded."""

EXAMPLES = """\
  archwright import Llama-3.2-1B --out runs/llama
  archwright generate runs/llama --prompt "The "
  archwright eval runs/llama --text mine.txt
  archwright train runs/llama data.text=mine.txt model.context_length=512 budget=10m
  archwright list families        the supported model types"""


def run(words: Sequence[str]) -> int:
    """Import a checkpoint."""
    parser = Parser("import", ABOUT, EXAMPLES)
    parser.add_argument("folder", metavar="FOLDER", help="the checkpoint's folder")
    parser.add_argument("--out", metavar="RUN", help="the run folder (default: runs/NAME)")
    options = parser.parse(words)
    from archwright.hf import import_run
    from archwright.runs import RUNS, RunFolder

    name = Path(options.folder).resolve().name
    if not name:
        raise UserError(f"import what? {options.folder} has no name")
    out = Path(options.out or RUNS / name)
    before = RunFolder(out).started
    made, model = import_run(options.folder, out)
    print(repr(model))
    if not made.tokenizer_folder.is_dir():
        print("tokenizer  none in the folder: eval, generate and train need one")
    print(f"run        {made.path}{' (there already, bit for bit)' if before else ''}")
    return 0
