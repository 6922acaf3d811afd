"""Data of a run: a tokenizer, and texts for training and evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archwright.data.pair_text import PairText
from archwright.data.prepare import Prepared, prepare
from archwright.data.store import StoreError, TokenStore
from archwright.data.task_text import NUM_HELD_OUT, SIDES, TaskText
from archwright.runs import RunFolder
from archwright.spec.data import TokenizerSpec
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.tasks import Task
from archwright.text.cache import sweep
from archwright.text.corpus import open_corpus
from archwright.text.open_tokenizer import open_tokenizer
from archwright.text.pairs import open_pairs
from archwright.text.tokenizer import Tokenizer
from archwright.text.words import word_tokenizer


@dataclass(frozen=True)
class Material:
    """A tokenizer, and tokens for training and evaluation."""

    tokenizer: Tokenizer
    train: TokenStore | TaskText | PairText
    held_out: TokenStore | TaskText | PairText
    num_skipped: int = 0
    """Number of files skipped because they are not text."""

    def record(self) -> dict[str, Any]:
        """Return the environment's record, for finding the same tokens when the run is resumed."""
        return {
            "train": _record(self.train),
            "held_out": _record(self.held_out),
            "files_skipped": self.num_skipped,
            "tokenizer": self.tokenizer.fingerprint,
            "text_change": self.text_change,
            **self._task_facts(),
        }

    @property
    def text_change(self) -> str | None:
        """`TokenStore.text_change` of the held-out text."""
        text = self.held_out
        return text.text_change(self.tokenizer) if isinstance(text, TokenStore) else None

    def _task_facts(self) -> dict[str, Any]:
        """Return a task's least loss, and the accuracy of guessing."""
        if not isinstance(self.held_out, TaskText):
            return {}
        task, sampler = self.held_out.task, self.held_out.sampler
        facts = {"name": task.kind, "floor": sampler.floor, "chance": sampler.chance}
        return {"task": facts | {"num_held_out": NUM_HELD_OUT}}

    def __str__(self) -> str:
        if isinstance(self.train, TaskText):
            return f'examples of the task "{self.train.task.kind}", drawn for each step, {NUM_HELD_OUT:,} held out'
        if isinstance(self.train, PairText):
            number = (
                "drawn for each step"
                if self.train.pairs.endless
                else f"{self.train.num_documents:,}"
            )
            return f"pairs to train on: {number}; {self.held_out.num_documents:,} held out"
        skipped = f", {self.num_skipped} files skipped as no text" if self.num_skipped else ""
        return f"{len(self.train):,} tokens to train on, {len(self.held_out):,} held out{skipped}"


def prepare_data(run: RunSpec, folder: RunFolder) -> Material:
    """Return the material of a new run, and write its tokenizer to the folder.

    Raises:
        UserError: mistakes in the text or the tokenizer.
    """
    if not run.data.task.is_none:
        material, inherited = task_material(run), _inherited(run)
        if inherited and inherited.fingerprint != material.tokenizer.fingerprint:
            raise UserError(
                f'data.text: found the task "{run.data.task.kind}", whose tokens are others than those of init.from; '
                "start from a run on the same task, or leave init.from out"
            )
    else:
        sweep()
        if run.data.pairs:
            tokenizer = _inherited(run) or open_tokenizer(run.tokenizer, open_pairs(run.data).train)
            material = pair_material(run, tokenizer)
        else:
            material = text_material(run)
    folder.write_tokenizer(material.tokenizer)
    return material


def text_material(run: RunSpec, threads: int | None = None) -> Material:
    """Return the material of a run on text, and write its tokens to the cache.

    Args:
        threads: as in `prepare_documents`.

    Raises:
        UserError: mistakes in the text or the tokenizer.
    """
    corpus = open_corpus(run.data)
    tokenizer = _inherited(run) or open_tokenizer(run.tokenizer, corpus.train)
    stores = prepare(corpus, tokenizer, threads=threads)
    return Material(tokenizer, stores.train, stores.held_out, len(corpus.skipped))


def reload_data(run: RunSpec, folder: RunFolder) -> Material:
    """Return the material of a started run; missing tokens are created again.

    Raises:
        UserError: the text or the tokenizer has changed.
    """
    recorded = _recorded(folder)
    material = None if run.data.task.is_none else task_material(run)
    tokenizer = material.tokenizer if material else Tokenizer.load(folder.tokenizer_folder)
    if tokenizer.fingerprint != recorded["tokenizer"]:
        raise UserError(_changed(folder, "tokenizer"))
    if run.data.pairs:
        material = pair_material(run, tokenizer)
    if material:
        if any(_record(getattr(material, s))["text"] != recorded[s]["text"] for s in SIDES):
            raise UserError(_changed(folder, "text"))
        return material
    stores = _recorded_stores(recorded) or prepare(open_corpus(run.data), tokenizer)
    for side, store in stores._asdict().items():
        if store.index.text != recorded[side]["text"]:
            raise UserError(_changed(folder, "text or its split"))
        same = _record(store) | {"store": ""} == recorded[side] | {"store": ""}
        if store.index.tokenizer != tokenizer.fingerprint or not same:
            raise UserError(_changed(folder, "row of tokens"))
    return Material(tokenizer, stores.train, stores.held_out, recorded["files_skipped"])


def task_material(run: RunSpec) -> Material:
    """Return the material of a run on a task; no file is read."""
    task = settled_task(run.data.task, run.model)
    tokenizer = word_tokenizer(task.words)
    train, held_out = (
        TaskText(task, side, tokenizer.begin_of_text, run.model.context_length) for side in SIDES
    )
    return Material(tokenizer, train, held_out)


def pair_material(run: RunSpec, tokenizer: Tokenizer) -> Material:
    """Return the material of a run on pairs.

    Raises:
        UserError: missing or malformed files, or only pairs that exceed the context.
    """
    corpus, length = open_pairs(run.data), run.model.context_length
    train, held_out = (PairText(side, tokenizer, length) for side in corpus)
    return Material(tokenizer, train, held_out)


def settled_task(task: Task, model: ModelSpec) -> Task:
    """Return a task with a number for each "auto"."""
    return task.model_copy(update=task.numbers(model.sizes))


def _recorded(folder: RunFolder) -> dict[str, Any]:
    """Return the `Material.record` of the run's start.

    Raises:
        UserError: the record is missing.
    """
    if record := folder.environment().get("data"):
        return dict(record)
    raise UserError(
        f'{folder.environment_file}: found no record of the text under "data"; nothing can tell '
        "whether it is the same. Train again with another --out"
    )


def _recorded_stores(recorded: dict[str, Any]) -> Prepared | None:
    """Return the stores of the run's start; None if one is missing or damaged."""
    try:
        return Prepared(*(TokenStore(Path(recorded[side]["store"])) for side in Prepared._fields))
    except (StoreError, ValueError):  # an invalid path
        return None


def _changed(folder: RunFolder, what: str) -> str:
    return (
        f"{folder.path}: the {what} has changed since this run began; "
        f"bring the old {what} back, or train again with another --out"
    )


def _inherited(run: RunSpec) -> Tokenizer | None:
    """Return the tokenizer of `init.from`; None without one, or if the run has a tokenizer file.

    Raises:
        UserError: the run requires another tokenizer.
    """
    source = Path(run.init.from_)
    folder = source / "tokenizer"
    if not run.init.from_ or not folder.is_dir() or run.data.tokenizer.kind == "file":
        return None
    usual = [TokenizerSpec()]
    if RunFolder(source).exists:
        usual.append(RunFolder(source).spec.data.tokenizer)
    if run.data.tokenizer not in usual:
        raise UserError(
            f"data.tokenizer: found another one than that of init.from; weights go with their "
            f"tokenizer: leave it out, or set data.tokenizer.kind=file data.tokenizer.path={folder}"
        )
    return Tokenizer.load(folder)


def _record(store: TokenStore | TaskText | PairText) -> dict[str, Any]:
    record = {
        "num_tokens": len(store),
        "num_documents": store.num_documents,
        "num_bytes": store.num_bytes,
    }
    if isinstance(store, TokenStore):
        place = str(store.folder.resolve())
        return {"store": place, "text": store.index.text, **record, "digest": store.digest}
    return {"store": "", "text": store.fingerprint, **record}
