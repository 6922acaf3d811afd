"""The commands that are struck: what lies there before, the words, and what must come of it."""

import csv
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archwright.cli import main
from archwright.data.store import VERIFIED
from archwright.runs import RunFolder
from tests.fuzz.seeds import STUDY_WORDS, verb
from tests.tiny import tiny_words, write_text

TIMES = {"seconds", "cpu_seconds", "tokens_per_second", "utilisation", "memory_bytes"}
"""What differs between any two runs."""
USERS = (
    *("notes.txt", ".notes.tmp", "tokenizer/tokenizer.json", "out.txt", ".out.tmp/kept.txt"),
    *("lock", "cache/readme.txt", "cache/tokens/mine.bin", "cache/tokenizers/.mine.tmp"),
)
"""Files of the user's, beside what the commands write and read."""
RUN = (
    *("budget=12steps", "checkpoint.every=4", "evaluate.every=5", "seed=3", "probes.every=6"),
    *("evaluate.max_tokens=200", "evaluate.final_max_tokens=500", "model.embedding.dropout=0.1"),
    *("data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300"),
)


@dataclass(frozen=True)
class Scene:
    """A command."""

    name: str
    share: float
    """Of the kills and errors."""
    make: Callable[[], object]
    """Makes what lies in the folder before."""
    do: Callable[[], int]
    """Runs the command; returns its exit code."""
    results: Callable[[], dict[str, Any]]
    """Returns what must not depend on kills and errors."""
    users: Sequence[str] = ()
    """More files of the user's."""


def hashes(*patterns: str) -> dict[str, Any]:
    """Return the hash of every file of some patterns, locks and the places of files on the disk apart."""
    paths = sorted(path for pattern in patterns for path in Path().glob(pattern))
    found = [path for path in paths if path.is_file() and not is_lock(path)]
    found = [path for path in found if not path.match(VERIFIED)]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def is_lock(path: Path) -> bool:
    """Tell whether a file is one that locks are held on, which stay where they are."""
    return path.suffix == ".lock" or path.name == "lock"


def _text() -> None:
    write_text(Path("text.txt"), 200)


def _run() -> None:
    _text()
    verb(*tiny_words("text.txt", *RUN), "--quiet", "--out", "run")


def _foreign() -> None:
    _run()
    verb("export", "run", "foreign")


def _other_text() -> None:
    _run()
    write_text(Path("other.txt"), 300)


def _records() -> list[Any]:
    folder = RunFolder("run")
    kept = [record for record in folder.metrics() if record["kind"] != "event"]
    return [{k: v for k, v in r.items() if k not in TIMES} for r in (*kept, *folder.probes())]


def _trained() -> dict[str, Any]:
    finished = RunFolder("run").finished
    files = hashes("run/model.safetensors", "run/samples.txt", "run/tokenizer/*", "cache/tok*/**/*")
    return {"finished": finished, "records": _records(), **files}


def _prepare() -> int:
    """Make a tokenizer and the stores of both parts of a text, in several shards, as a verb answers."""
    from tests.fuzz.cases import as_verb

    return as_verb(_prepared)


def _prepared() -> None:
    from archwright.data.prepare import prepare_documents
    from archwright.spec.data import DataSpec, TokenizerSpec
    from archwright.text.cache import sweep
    from archwright.text.corpus import open_corpus
    from archwright.text.open_tokenizer import open_tokenizer

    sweep()  # as every run does before it prepares its text
    corpus = open_corpus(DataSpec(text=("text.txt",)))
    tokenizer = open_tokenizer(TokenizerSpec(kind="bpe", vocab_size=300), corpus.train)
    for side in (corpus.train, corpus.held_out):
        prepare_documents(side, tokenizer, shard=1000)


def _texts() -> None:
    Path("texts").mkdir()
    for number in range(6):
        write_text(Path(f"texts/{number}.txt"), 20 + number)


def _prepare_parts() -> int:
    """Make the stores of both sides of a text of several files, in several parts."""
    from tests.fuzz.cases import as_verb

    return as_verb(_prepared_parts)


def _prepared_parts() -> None:
    from archwright.data import prepare
    from archwright.spec.data import DataSpec
    from archwright.text.bpe import raw_bytes
    from archwright.text.cache import sweep
    from archwright.text.corpus import open_corpus
    from archwright.text.tokenizer import Tokenizer

    prepare.PART = 2000
    sweep()
    tokenizer = Tokenizer(raw_bytes(["<e>"]), "<e>")
    prepare.prepare(open_corpus(DataSpec(text=("texts",))), tokenizer)


def _imported() -> dict[str, Any]:
    folder = RunFolder("imported")
    names = [record.get("name") for record in folder.metrics()]
    files = hashes("imported/model.safetensors", "imported/*.toml", "imported/tokenizer/*")
    return {"events": names, "finished": folder.finished, **files}


def _evaluate() -> int:
    """Evaluate, and keep what was printed outside of the folder."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = main(["eval", "run", "--text", "other.txt", "--json"])
    printed = Path("../printed.json")
    if code == 0:
        printed.write_text(shown.getvalue())
    return code


def _evaluated() -> dict[str, Any]:
    printed = Path("../printed.json")
    told = json.loads(printed.read_text())
    printed.unlink()
    return {
        "printed": {k: v for k, v in told.items() if k not in TIMES},
        **hashes("cache/tokens/**/*"),
    }


COMPARE = [
    "compare",
    *STUDY_WORDS,
    *("--budget", "20steps", "--seeds", "2", "--no-tune-lr", "--evaluation-tokens", "1024"),
    *("--no-early-stopping", "--parallelism", "processes", "--quiet"),
    *("--out", "study", "--runs", "pool"),
]


def _compared() -> dict[str, Any]:
    with Path("study/runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    losses = sorted((r["variant"], r["seed"], r["lr"], r["loss"]) for r in rows)
    return {"losses": losses, "page": Path("study/report.html").exists()}


SCENES = (
    Scene(
        "train",
        0.36,
        _text,
        lambda: main([*tiny_words("text.txt", *RUN), "--quiet", "--out", "run"]),
        _trained,
        (".run.tmp/kept.txt",),
    ),
    Scene("prepare", 0.08, _text, _prepare, lambda: hashes("cache/tok*/**/*")),
    Scene("prepare parts", 0.08, _texts, _prepare_parts, lambda: hashes("cache/tok*/**/*")),
    Scene(
        "export",
        0.16,
        _run,
        lambda: main(["export", "run", "exported"]),
        lambda: hashes("exported/**/*"),
        (".exported.tmp/kept.txt", "run/notes.md", "run/.notes.tmp"),
    ),
    Scene(
        "import",
        0.16,
        _foreign,
        lambda: main(["import", "foreign", "--out", "imported"]),
        _imported,
        ("foreign/notes.md",),
    ),
    Scene(
        "report",
        0.05,
        _run,
        lambda: main(["report", "run"]),
        lambda: hashes("run/report.html", "run/*.toml", "run/*.jsonl"),
        ("run/notes.md", "run/.notes.tmp"),
    ),
    Scene("eval", 0.06, _other_text, _evaluate, _evaluated, ("run/notes.md", "run/.notes.tmp")),
    Scene(
        "compare",
        0.05,
        lambda: write_text(Path("text.txt"), 400),
        lambda: main(COMPARE),
        _compared,
        ("study-notes.txt", "pool/notes.txt"),
    ),
)
