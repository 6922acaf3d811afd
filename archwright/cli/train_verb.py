"""archwright train"""

import sys
from collections.abc import Sequence
from pathlib import Path

from archwright.cli.words import Parser, add_parts_option, load_parts
from archwright.spec.errors import UserError
from archwright.spec.read import diff, load_run
from archwright.spec.rules import enforce, suspicions
from archwright.spec.run_spec import PartsFile, RunSpec

ABOUT = """\
Train a model or a recipe, and leave a run folder with weights, curves and a page of results.

WHAT is a recipe (demo), a model (modern), or a TOML file of either. KEY=VALUE changes any value:

  model.dim=256 model.num_layers=4          the architecture (archwright show modern lists its keys)
  data.text=FILE                            a file, folder, glob, .jsonl, - or stdlib
  data.tokenizer.kind=bytes                 bpe (trained on the text), bytes, or file
  budget=60s                                or 3m, 400steps, 10Mtokens, 1e15flops
  optimizer.kind=muon optimizer.lr=0.01     batch_size=8 seed=1 schedule.warmup=100

The same command again goes on where the run stopped. Ctrl-C saves and leaves."""

EXAMPLES = """\
  archwright train demo
  archwright train modern data.text=notes.txt model.dim=256 model.num_layers=4 budget=60s
  archwright train textbook data.text='corpus/*.jsonl' data.field=body --out runs/old-style
  archwright train --resume runs/modern
  archwright train demo seed=1 --dry-run"""


def run(words: Sequence[str]) -> int:
    """Train, resume, or show what would be trained."""
    parser = Parser("train", ABOUT, EXAMPLES)
    parser.add_argument("what", nargs="?", metavar="WHAT", help="recipe, model, or TOML file")
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change")
    parser.add_argument("--out", metavar="DIR", help="the run folder (default: runs/NAME)")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in a folder")
    parser.add_argument("--dry-run", action="store_true", help="print the run and do nothing")
    parser.add_argument("--quiet", action="store_true", help="print nothing but mistakes")
    add_parts_option(parser)
    options = parser.parse(words)
    parts = load_parts(options.parts)
    if options.resume:
        if options.what or options.out:
            raise UserError(
                "--resume takes the run as it was begun: leave out other words, and --out"
            )
        return _resume(Path(options.resume), parts, options.quiet)
    if not options.what:
        raise UserError(
            "train what? Name a recipe, a model or a TOML file, such as: archwright train demo"
        )
    if "=" in options.what:
        raise UserError(
            f'train what? "{options.what}" sets a value; name a recipe or model before it'
        )
    spec = load_run(options.what).override(*options.assignments)
    spec = spec.model_copy(update={"parts": tuple(PartsFile(**part) for part in parts)})
    enforce(spec.model)
    for line in suspicions(spec.model):
        print(f"archwright: warning: {line}", file=sys.stderr)
    if options.dry_run:
        return _dry_run(spec)
    return _train(spec, options.out, options.quiet)


def _train(spec: RunSpec, out: str | None, quiet: bool) -> int:
    from archwright.runs import RUNS, RunFolder

    folder = RunFolder.create(out or RUNS / (spec.name or "run"), spec)
    return _run(folder, quiet)


def _resume(path: Path, parts: list[dict[str, str]], quiet: bool) -> int:
    from archwright.runs import RunFolder

    folder = RunFolder.open(path)
    given = {part["sha256"] for part in parts}
    for part in folder.spec.parts:
        if part.sha256 not in given:
            raise UserError(
                f"{path} was begun with {part.name}, sha256 {part.sha256[:12]}; "
                f"give the same file again with --parts"
            )
    return _run(folder, quiet)


def _run(folder: "RunFolder", quiet: bool) -> int:  # type: ignore[name-defined]
    from archwright.reporting.terminal import print_result
    from archwright.training.allocator import tune_allocator
    from archwright.training.loop import DivergedError
    from archwright.training.train import Stopped, resume

    if folder.finished:
        print(f"{folder.path} is finished already; this is what it reached.", file=sys.stderr)
    tune_allocator()
    try:
        resume(folder, quiet=quiet)
    except Stopped as stop:
        print(f"archwright: {stop}", file=sys.stderr)
        return 128 + stop.signal
    except DivergedError as error:
        print(f"archwright: {error}", file=sys.stderr)
        return 1
    if not quiet:
        print_result(folder)
    return 0


def _dry_run(spec: RunSpec) -> int:
    """Print the run; what the machine or the text will decide stays "auto"."""
    from archwright.model.build import build
    from archwright.planning.cost import flops_per_token
    from archwright.spec.read import to_toml

    print(to_toml(spec), end="")
    model = build(spec.model, device="meta", vocab_size=_vocab_size(spec))
    flops = flops_per_token(model, spec.model.context_length)
    print(f"# {model}")
    print(f"# {spec.tokens_per_step:,} tokens a step, {flops:.3g} FLOPs a token")
    changed = diff(RunSpec(), spec)
    print(f"# {len(changed)} values differ from the defaults; nothing was trained")
    return 0


def _vocab_size(spec: RunSpec) -> int | None:
    return None if spec.data.tokenizer.kind == "file" else spec.data.tokenizer.vocab_size
