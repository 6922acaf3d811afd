"""Every file that the package reads, and how it is read there."""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.fuzz.seeds import (
    PRESETS,
    RUN_WORDS,
    STUDY_OPTIONS,
    STUDY_WORDS,
    Seed,
    Workshop,
    families,
    make_family,
    of_folder,
)
from tests.tiny import tiny_run, write_text


@dataclass(frozen=True)
class Target:
    """A kind of file: valid ones, and what reads them in the folder they lie in."""

    name: str
    seeds: Callable[[Workshop], Sequence[Seed]]
    read: Callable[[Seed], object]
    """Returns what was read, by which it is known whether that is the same as of the valid file."""
    last: tuple[str, ...]
    """The function that checks last, as `module:name`, of which the first that is there counts."""
    hashed: bool = False
    """Whether other content must never be taken: something knows what it should be."""
    heals: bool = False
    """Whether it can be made again, so that nothing may be refused."""
    amend: Callable[[str], None] = lambda path: None
    """What a forger does to hide the change of a file."""
    also: tuple[Callable[[], None], ...] = ()
    """Changes of a valid folder after which it may be read as something else: an older copy."""
    takes_away: bool = False
    """Whether files are also missing, or lie in the place of others."""
    needs: tuple[str, ...] = ()
    """Libraries without which such files are not read here; extras of the package."""
    dear: int = 1
    """How many times fewer cases there are where time is short."""
    words: Callable[[], Sequence[str]] = field(default=lambda: ())
    """Strings that are valid somewhere in such files."""


def missing(target: Target) -> list[str]:
    """Return the libraries that a target needs and that are not installed."""
    return [name for name in target.needs if importlib.util.find_spec(name) is None]


def digest(*parts: object) -> str:
    """Return a hash of arrays, tensors, bytes, and anything else by its words."""
    found = hashlib.sha256()
    for part in parts:
        if hasattr(part, "detach"):
            part = part.detach().cpu().contiguous().flatten().view(_bytes()).numpy()
        array = isinstance(part, np.ndarray)
        found.update(part.tobytes() if array else str(part).encode("utf-8", "replace"))
    return found.hexdigest()[:16]


def _bytes() -> Any:
    import torch

    return torch.uint8


# TOML


def _presets(room: str, name: str) -> Callable[[Workshop], Sequence[Seed]]:
    def seeds(_: Workshop) -> Sequence[Seed]:
        files = sorted((PRESETS / room).glob("*.toml"))
        found = [Seed(f.stem, {name: f.read_bytes()}, {name: "toml"}) for f in files]
        return found + [Seed(key, {name: text}, {name: "toml"}) for key, text in _written(room)]

    return seeds


def _written(room: str) -> list[tuple[str, bytes]]:
    """Return specs with every value written out."""
    from archwright.spec.read import load, to_toml

    if room == "models":
        names = ("gemma-3-1b", "deepseek-v3", "mixtral-8x7b", "textbook")
        return [(f"all of {name}", to_toml(load(name)).encode()) for name in names]
    if room == "runs":
        run = tiny_run("text.txt", "optimizer.kind=muon", "init.from=runs/a")
        asked = b'budget = "60s"\nbatch_size = 8\n[model]\nbase = "modern"\ndim = 64\n'
        return [("all of a run", to_toml(run).encode()), ("a short run", asked)]
    return []


def _all_words() -> Sequence[str]:
    """Return the kinds and names in the package's own files."""
    import re

    text = "".join(f.read_text("utf-8") for f in sorted(PRESETS.rglob("*.toml")))
    return sorted(set(re.findall(r'"([^"\n]{1,30})"', text)))


def _check(seed: Seed) -> object:
    from archwright.cli import check_verb
    from archwright.spec.read import load_run

    file = next(iter(seed.files))
    check_verb.run([file])
    return load_run(file).hash()


def _show(seed: Seed) -> object:
    from archwright.cli import show_verb

    with contextlib.redirect_stdout(io.StringIO()) as shown:
        show_verb.run(["m.toml"])
    return shown.getvalue()


def _study(seed: Seed) -> object:
    from archwright.lab.design.command_line import study_of
    from archwright.lab.design.variants import arms
    from archwright.spec.read import to_toml

    study = study_of("s.toml")
    return digest(to_toml(study), [run.hash() for run in arms(study, 2e5).values()])


# Checkpoints of the ecosystem


def _configs(workshop: Workshop) -> Sequence[Seed]:
    """Return a folder of each family that is read here; empty ones where no case will change it."""
    from tests.hf.test_parity import REFUSED

    names = [name for name in families() if name not in REFUSED]
    wanted = {names[n // 10 % len(names)] for n in workshop.numbers}

    def make() -> None:
        for name in wanted:
            Path(name).mkdir()
            with contextlib.chdir(name):
                make_family(name)

    place, kinds = workshop.made("families", make), {"config.json": "json"}
    return [of_folder(n, place / n, kinds) if n in wanted else Seed(n, {}, {}) for n in names]


def _load(seed: Seed) -> object:
    from archwright import hf

    loaded = hf.load(".", dtype="stored")
    state = loaded.model.state_dict()
    return digest(loaded.spec.hash(), *(part for pair in state.items() for part in pair))


def _tensor_files(workshop: Workshop) -> Sequence[Seed]:
    place, kinds = workshop.foreign(), {"*.safetensors": "safetensors"}
    return [of_folder(n, place / n, kinds) for n in ("whole", "narrow", "tied", "shards")]


def _indices(workshop: Workshop) -> Sequence[Seed]:
    kinds = {"*.index.json": "json"}
    return [of_folder("shards", workshop.foreign() / "shards", kinds)]


def _tokenizers(workshop: Workshop) -> Sequence[Seed]:
    kinds = {"*.json": "json"}
    places = {kind: workshop.made(f"tokenizer-{kind}", lambda k=kind: _save(k)) for kind in KINDS}
    return [of_folder(kind, place / "saved", kinds) for kind, place in places.items()]


KINDS = ("bpe", "bytes", "normalised", "pieces")


def _save(kind: str) -> None:
    """Write a tokenizer as this package makes them, or as strangers do."""
    import tokenizers as library
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    write_text(Path("text.txt"), 60)
    if kind in ("bpe", "bytes"):
        _own_tokenizer(kind).save(Path("saved"))
        return
    special = ["<unk>", "<s>", "</s>"]
    if kind == "normalised":
        inner = library.Tokenizer(models.BPE())
        inner.normalizer = normalizers.NFKC()
        inner.pre_tokenizer = pre_tokenizers.ByteLevel()
        inner.decoder = decoders.ByteLevel()
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
        trainer: Any = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=special,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
    else:
        inner = library.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        inner.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
            initial_alphabet=[chr(i) for i in range(33, 127)],
            show_progress=False,
        )
    inner.train(["text.txt"], trainer)
    inner.add_tokens(["<b>", "   "])
    folder = Path("saved")
    folder.mkdir()
    inner.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "bos_token": {"content": "<s>"}, "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [2, 1], "vocab_size": 512}))


def _own_tokenizer(kind: str) -> Any:
    from archwright.spec.data import DataSpec, TokenizerSpec
    from archwright.text.corpus import open_corpus
    from archwright.text.open_tokenizer import open_tokenizer

    corpus = open_corpus(DataSpec(text=("text.txt",)))
    return open_tokenizer(TokenizerSpec(kind=kind, vocab_size=300), corpus.train)


def _tokenizer(seed: Seed) -> object:
    """Read a tokenizer as an import does, and as a run's if it is one of ours."""
    from archwright.hf.tokenizers import read_tokenizer
    from archwright.text.tokenizer import Tokenizer

    found = read_tokenizer(Path(), 512)
    if found is None:
        return None
    found.save(Path("copy"))
    whole = [found, Tokenizer.load(Path("copy"))]
    if seed.name in ("bpe", "bytes"):
        whole.append(Tokenizer.load(Path()))
    text = "the model of a query <b> é\n  12 </s>"
    told = [(t.encode(text).tolist(), t.decode(t.encode(text)), t.end_of_text) for t in whole]
    return digest(told, [t.token_lengths for t in whole], [t.begin_of_text for t in whole])


# Text in tables


def _tables(*names: str) -> Callable[[Workshop], Sequence[Seed]]:
    """Return files of rows, each written in another way."""

    def seeds(workshop: Workshop) -> Sequence[Seed]:
        place = workshop.made("tables", _make_tables)
        kinds = {name: (place / name).read_bytes() for name in names}
        return [
            Seed(name, {name: content}, {name: Path(name).suffix[1:]})
            for name, content in kinds.items()
        ]

    return seeds


def _make_tables() -> None:
    import pyarrow
    from pyarrow import parquet

    texts = [f"{i} the model of a query é\n" * (i % 7) for i in range(40)]
    table = pyarrow.table({"number": [*range(len(texts))], "text": texts})
    large = table.set_column(1, "text", table.column("text").cast(pyarrow.large_string()))
    parquet.write_table(table, "plain.parquet", compression="none", row_group_size=15)
    parquet.write_table(table, "packed.parquet", compression="zstd", write_page_checksum=True)
    parquet.write_table(large, "large.parquet", use_dictionary=False, data_page_version="2.0")
    packed = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with pyarrow.ipc.new_stream("stream.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=15)
    with pyarrow.ipc.new_file("file.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=15)
    with pyarrow.ipc.new_file("packed.arrow", large.schema, options=packed) as writer:
        writer.write_table(large)


def _saved_datasets(workshop: Workshop) -> Sequence[Seed]:
    """Return a folder that `save_to_disk` has written, in two files, and one of several splits."""
    kinds = {"*.arrow": "arrow", "*.json": "json"}
    place = workshop.made("datasets", _make_datasets)
    return [
        of_folder("one", place / "one", kinds, text="saved"),
        of_folder("splits", place / "splits", kinds, text="saved/train"),
    ]


def _make_datasets() -> None:
    import datasets

    datasets.disable_progress_bars()
    texts = [f"{i} the model of a query é\n" * (1 + i % 7) for i in range(40)]
    found = datasets.Dataset.from_dict({"number": [*range(len(texts))], "text": texts})
    found.save_to_disk("one/saved", num_shards=2)
    datasets.DatasetDict({"train": found, "test": found}).save_to_disk("splits/saved")


def _rows(seed: Seed) -> object:
    """Read the documents of a table as `train` does."""
    from archwright.spec.data import DataSpec
    from archwright.text.corpus import open_corpus

    corpus = open_corpus(DataSpec(text=(seed.more.get("text", seed.name),)))
    return digest(
        *(
            (document.name, *document.pieces)
            for side in (corpus.train, corpus.held_out)
            for document in side
        )
    )


# The cache


def _stores(workshop: Workshop) -> Sequence[Seed]:
    """Return caches with both stores of a text, in one shard and in several."""
    kinds = {"*/*/*/index.json": "json", "*/*/*/*.npy": "npy", "*/*/*/*.bin": "tokens"}
    found = []
    for shard in (1 << 27, 300):

        def make(shard: int = shard) -> None:
            documents = [json.dumps({"text": f"{i} the model " * (i % 7 + 1)}) for i in range(60)]
            Path("text.jsonl").write_text("\n".join(documents) + "\n")
            _open_stores(shard)

        place = workshop.made(f"stores-{shard}", make)
        found.append(of_folder(f"shards of {shard}", place, kinds, shard=shard))
    return found


def _open_stores(shard: int) -> list[Any]:
    from archwright.data.prepare import prepare_documents
    from archwright.spec.data import DataSpec, TokenizerSpec
    from archwright.text.corpus import open_corpus
    from archwright.text.open_tokenizer import open_tokenizer

    corpus = open_corpus(DataSpec(text=("text.jsonl",)))
    if not _BYTES:
        _BYTES.append(open_tokenizer(TokenizerSpec(kind="bytes"), corpus.train))
    sides = (corpus.train, corpus.held_out)
    return [prepare_documents(side, _BYTES[0], shard=shard) for side in sides]


_BYTES: list[Any] = []


def _tokens(seed: Seed) -> object:
    parts: list[object] = []
    for store in _open_stores(seed.more["shard"]):
        parts += [store[:], np.asarray(store.offsets), np.asarray(store.document_bytes)]
        parts += [store.num_bytes, store.num_documents, store.end_of_text, len(store)]
        parts += [store.document(store.num_documents - 1)]
    return digest(*parts)


def _cached_tokenizers(workshop: Workshop) -> Sequence[Seed]:
    def make() -> None:
        write_text(Path("text.txt"), 60)
        _own_tokenizer("bpe")

    place = workshop.made("cached-tokenizer", make)
    return [of_folder("bpe", place, {"cache/tokenizers/*.json": "json"})]


def _cached_tokenizer(seed: Seed) -> object:
    found = _own_tokenizer("bpe")
    return digest(found.fingerprint, found.encode("the model of a query é 12").tolist())


def _measurements(workshop: Workshop) -> Sequence[Seed]:
    place = workshop.made("measurements", _measured)
    return [of_folder("a measurement", place, {"cache/measured/*.json": "json"})]


def _measured(seed: Seed | None = None) -> object:
    import torch

    from archwright.machine.peaks import Peak, peak_of

    with mock.patch("archwright.machine.peaks.measure_peak", return_value=Peak(1.5, True)):
        return digest(peak_of(torch.device("cpu"), torch.float32))


# Run folders


def _run_files(*patterns: str) -> Callable[[Workshop], Sequence[Seed]]:
    def seeds(workshop: Workshop) -> Sequence[Seed]:
        kinds = {pattern: Path(pattern).suffix[1:] for pattern in patterns}
        return [of_folder("a run", workshop.run(), kinds)]

    return seeds


def _checkpoints(workshop: Workshop) -> Sequence[Seed]:
    """Return a run that one process has trained, and one whose newest checkpoint two have written in parts."""
    kinds = {pattern: Path(pattern).suffix[1:] for pattern in CHECKPOINTS}
    places = {"a run": workshop.run(), "a run of two processes": workshop.run_of_two()}
    return [of_folder(name, place, kinds) for name, place in places.items()]


def _parts(workshop: Workshop) -> Sequence[Seed]:
    """Return a run whose newest checkpoint two processes have written in parts, of which alone something changes."""
    return [of_folder("a run", workshop.run_of_two(), {"*-of-*.safetensors": "parts"})]


def _cut_run_files(*patterns: str) -> Callable[[Workshop], Sequence[Seed]]:
    names = {"bin": "tokens"}

    def seeds(workshop: Workshop) -> Sequence[Seed]:
        suffixes = {pattern: Path(pattern).suffix[1:] for pattern in patterns}
        kinds = {pattern: names.get(suffix, suffix) for pattern, suffix in suffixes.items()}
        return [of_folder("a run at step 4", workshop.cut_run(), kinds)]

    return seeds


def _report(seed: Seed) -> object:
    """Make a run's page, and what the terminal says of it."""
    from archwright.cli import report_verb
    from archwright.reporting.terminal import print_result
    from archwright.runs import RunFolder

    report_verb.run(["run"])
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        print_result(RunFolder("run"))
    return digest(Path("run/report.html").read_text("utf-8"), shown.getvalue())


def _resume(seed: Seed) -> object:
    """Train what is left of a run, and judge it."""
    from archwright.runs import RunFolder
    from archwright.training.finalize import finalize_metrics_only
    from archwright.training.train import train_in

    folder = RunFolder.open("run")
    train_in(folder, finalize_metrics_only, quiet=True)
    kept = ("kind", "step", "loss", "nats_per_token", "num_tokens")
    numbers = [[record.get(key) for key in kept] for record in folder.metrics()]
    return digest([row for row in numbers if row[0] in ("train", "eval")][-4:])


def _lock(seed: Seed) -> object:
    from archwright.runs import RunFolder

    with RunFolder("run").lock():
        return "held"


def _locks(workshop: Workshop) -> Sequence[Seed]:
    """Return what a killed process of this machine left, and one of another."""
    import socket

    since = "2026-01-02 03:04:05+00:00"
    gone = {"pid": 4_000_000, "host": socket.gethostname(), "since": since, "started": 1.5e9}
    living = gone | {"pid": os.getppid()}  # but one that began at another time
    return [
        Seed(
            name,
            {"run/spec.toml": b"format = 1\n", "run/lock.json": json.dumps(told).encode()},
            {"run/lock.json": "json"},
        )
        for name, told in (("gone", gone), ("another", living))
    ]


def _open(seed: Seed) -> object:
    """Open a run, and ask for the same one again."""
    from archwright.runs import RunFolder
    from archwright.runs.load import open_run

    opened = open_run("run")
    RunFolder.create("run", tiny_run("text.txt", *RUN_WORDS))
    return digest(opened.spec.hash(), *opened.model.state_dict().values())


def _restore(seed: Seed) -> object:
    """Go back to the newest checkpoint of a run."""
    from archwright import checkpoint

    session = _session(seed)
    newest = checkpoint.use_latest("run/checkpoints", partial(checkpoint.verify, hashes=True))
    assert newest, "there are checkpoints"
    session.restore(newest)
    moments = [
        (name, key, value)
        for name, optimizer in session.optimizers.items()
        for state in optimizer.state.values()
        for key, value in state.items()
    ]
    weights = session.model.state_dict().values()
    standing = sorted(vars(session.standing).items())
    return digest(*weights, *(part for moment in moments for part in moment), standing)


_SESSIONS: dict[int, Any] = {}


def _session(seed: Seed) -> Any:
    """Return a session of the run, the same for all cases of a process."""
    from archwright.runs import RunFolder
    from archwright.training.data import reload_data
    from archwright.training.resolve import resolved_session

    if os.getpid() not in _SESSIONS:
        folder = RunFolder("run")
        _SESSIONS[os.getpid()] = resolved_session(folder, reload_data(folder.spec, folder))[0]
    return _SESSIONS[os.getpid()]


def _seal(path: str) -> None:
    """Make a checkpoint's seal again, as a forger does, unless the seal is what was changed."""
    folder = Path(path).parent
    seal = folder / "COMPLETE.json"
    if Path(path).name == seal.name:
        return
    sealed = json.loads(seal.read_text())
    sealed["files"] = {name: {} for name in sealed["files"] if (folder / name).exists()}
    for name in sealed["files"]:
        content = (folder / name).read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        sealed["files"][name] = {"bytes": len(content), "sha256": sha256}
    seal.write_text(json.dumps(sealed, indent=1))


def _drop_newest() -> None:
    shutil.rmtree("run/checkpoints/step-6")


# Studies


def _plans(workshop: Workshop) -> Sequence[Seed]:
    return [of_folder("a study", workshop.study(), {"study/plan.json": "json"}, moves=False)]


def _checksum(path: str) -> None:
    """Make a plan's checksum again, as a forger does, where it is JSON still."""
    from archwright.lab.design.plan_file import checksum

    text = Path(path).read_text("utf-8", "replace")
    with contextlib.suppress(ValueError, AttributeError, TypeError, RecursionError):
        values = json.loads(text)
        Path(path).write_text(json.dumps({**values, "checksum": checksum(values)}, indent=2))


def _plan(seed: Seed) -> object:
    from archwright.lab.compare import plan
    from archwright.lab.report.summary import announcement

    found = plan(*STUDY_WORDS, out="study", **STUDY_OPTIONS)
    runs = [arm.run.hash() for arm in found.arms.values()]
    decided = (found.workers, found.steps, found.evaluation_tokens, found.costs)
    return digest(runs, decided, announcement(found))


CHECKPOINTS = ("run/checkpoints/step-6/*.json", "run/checkpoints/step-6/*.safetensors")
STORES = ("cache/tokens/*/*.json", "cache/tokens/*/*.npy", "cache/tokens/*/*.bin")
CHECKED = "archwright.hf.loading:_checked"
JUDGED = "archwright.spec.run_rules:enforce_run"
WHOLE_PLAN = "archwright.lab.design.plan_file:_check_files"
ROWS = "archwright.text.tables:_check"
TOKENIZED = "archwright.text.tokenizer:Tokenizer.check"

TARGETS = (
    Target("models", _presets("models", "m.toml"), _check, (JUDGED,), words=_all_words),
    Target(
        "models shown",
        _presets("models", "m.toml"),
        _show,
        ("archwright.cli.card:card",),
        words=_all_words,
        dear=8,
    ),
    Target("runs", _presets("runs", "r.toml"), _check, (JUDGED,), words=_all_words),
    Target(
        "studies",
        _presets("studies", "s.toml"),
        _study,
        ("archwright.lab.design.variants:arms",),
        words=_all_words,
        dear=4,
    ),
    Target("config.json", _configs, _load, (CHECKED,), dear=2),
    Target("safetensors", _tensor_files, _load, (CHECKED,)),
    Target("indices", _indices, _load, (CHECKED,)),
    Target("tokenizers", _tokenizers, _tokenizer, (TOKENIZED,)),
    Target(
        "Parquet",
        _tables("plain.parquet", "packed.parquet", "large.parquet"),
        _rows,
        (ROWS,),
        needs=("pyarrow",),
    ),
    Target(
        "Arrow",
        _tables("stream.arrow", "file.arrow", "packed.arrow"),
        _rows,
        (ROWS,),
        needs=("pyarrow",),
    ),
    Target(
        "saved datasets",
        _saved_datasets,
        _rows,
        (ROWS,),
        takes_away=True,
        needs=("datasets", "pyarrow"),
    ),
    Target(
        "token store",
        _stores,
        _tokens,
        ("archwright.data.store:TokenStore.verify",),
        hashed=True,
        heals=True,
    ),
    Target(
        "cached tokenizer",
        _cached_tokenizers,
        _cached_tokenizer,
        (TOKENIZED,),
        hashed=True,
        heals=True,
    ),
    Target(
        "measurements", _measurements, _measured, ("archwright.machine.peaks:_read",), heals=True
    ),
    Target(
        "checkpoints",
        _checkpoints,
        _restore,
        ("archwright.checkpoint.steps:verify",),
        hashed=True,
        also=(_drop_newest,),
        dear=2,
    ),
    Target(
        "forged checkpoints",
        _checkpoints,
        _restore,
        ("archwright.checkpoint.optimizers:optimizer_misfits",),
        amend=_seal,
        also=(_drop_newest,),
        dear=2,
    ),
    Target(
        "checkpoints in parts",
        _parts,
        _restore,
        ("archwright.checkpoint.optimizers:optimizer_misfits",),
        amend=_seal,
        also=(_drop_newest,),
        takes_away=True,
        dear=2,
    ),
    Target("plans", _plans, _plan, (WHOLE_PLAN, "archwright.training.data:reload_data")),
    Target("forged plans", _plans, _plan, (WHOLE_PLAN,), amend=_checksum),
    Target(
        "records, reported",
        _run_files("run/metrics.jsonl", "run/probes.jsonl"),
        _report,
        ("archwright.reporting.page:run_page",),
        dear=8,
    ),
    Target(
        "records, resumed",
        _cut_run_files("run/metrics.jsonl", "run/probes.jsonl"),
        _resume,
        ("archwright.training.loop:Loop.__init__",),
        dear=8,
    ),
    Target(
        "environment, reported",
        _run_files("run/environment.json"),
        _report,
        ("archwright.reporting.page:run_page",),
        dear=8,
    ),
    Target(
        "environment, resumed",
        _cut_run_files("run/environment.json"),
        _resume,
        ("archwright.training.loop:Loop.__init__",),
        dear=8,
    ),
    Target(
        "text, resumed",
        _cut_run_files("run/tokenizer/*.json", *STORES),
        _resume,
        ("archwright.training.loop:Loop.__init__",),
        hashed=True,
        dear=8,
    ),
    Target(
        "specs",
        _run_files("run/spec.toml", "run/requested.toml"),
        _open,
        ("archwright.checkpoint.weights:take_weights",),
        words=_all_words,
        dear=2,
    ),
    Target("locks", _locks, _lock, ("archwright.runs.lock:_is_gone",)),
)
