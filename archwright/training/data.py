"""Data of a run: a tokenizer and two token stores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archwright.data.prepare import Prepared, prepare
from archwright.data.store import StoreError, TokenStore
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec, TokenizerSpec
from archwright.text.cache import sweep
from archwright.text.corpus import open_corpus
from archwright.text.open_tokenizer import open_tokenizer
from archwright.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Material:
    """A tokenizer, and the tokens to train and to evaluate on."""

    tokenizer: Tokenizer
    train: TokenStore
    held_out: TokenStore
    num_skipped: int = 0
    """Files that were left out because they are no text."""

    def record(self) -> dict[str, Any]:
        """Return what the environment keeps, by which a resume finds the same tokens again."""
        return {
            "train": _record(self.train),
            "held_out": _record(self.held_out),
            "files_skipped": self.num_skipped,
            "tokenizer": self.tokenizer.fingerprint,
        }


def prepare_data(run: RunSpec, folder: RunFolder) -> Material:
    """Return the material of a new run, and keep its tokenizer in the folder.

    Raises:
        UserError: what is wrong with the text or the tokenizer.
    """
    sweep()
    corpus = open_corpus(run.data)
    tokenizer = _inherited(run) or open_tokenizer(run.data.tokenizer, corpus.train)
    stores = prepare(corpus, tokenizer)
    folder.write_tokenizer(tokenizer)
    return Material(tokenizer, stores.train, stores.held_out, len(corpus.skipped))


def reload_data(run: RunSpec, folder: RunFolder) -> Material:
    """Return the material of a run that was started; its tokens are made again if they are gone.

    Raises:
        UserError: the text or the tokenizer is not the same any more.
    """
    recorded = _recorded(folder)
    tokenizer = Tokenizer.load(folder.tokenizer_folder)
    if tokenizer.fingerprint != recorded["tokenizer"]:
        raise UserError(_changed(folder, "tokenizer"))
    stores = _recorded_stores(recorded) or prepare(open_corpus(run.data), tokenizer)
    for side, store in stores._asdict().items():
        if store.index.text != recorded[side]["text"]:
            raise UserError(_changed(folder, "text"))
        # An older version may have recorded less.
        now, then = _record(store), recorded[side]
        same = all(now[key] == then.get(key, now[key]) for key in now.keys() - {"store"})
        if store.index.tokenizer != tokenizer.fingerprint or not same:
            raise UserError(_changed(folder, "row of tokens"))
    return Material(tokenizer, stores.train, stores.held_out, recorded["files_skipped"])


def _recorded(folder: RunFolder) -> dict[str, Any]:
    """Return the `Material.record` of when the run began.

    Raises:
        UserError: somebody changed it.
    """
    environment = folder.environment()
    found = environment.get("data") if isinstance(environment, dict) else None
    if (
        isinstance(found, dict)
        and isinstance(found.get("tokenizer"), str)
        and isinstance(found.get("files_skipped"), int)
        and all(isinstance(found.get(side), dict) for side in Prepared._fields)
        and all(
            isinstance(found[s].get(k), str) for s in Prepared._fields for k in ("store", "text")
        )
    ):
        return found
    raise UserError(
        f'{folder.environment_file}: found no record of the text under "data"; nothing can tell '
        "whether it is the same. Train again with another --out"
    )


def _recorded_stores(recorded: dict[str, Any]) -> Prepared | None:
    """Return the stores that a run began with; None where one is gone or damaged."""
    try:
        return Prepared(*(TokenStore(Path(recorded[side]["store"])) for side in Prepared._fields))
    except (StoreError, ValueError):  # a path may be none
        return None


def _changed(folder: RunFolder, what: str) -> str:
    return (
        f"{folder.path}: the {what} has changed since this run began; "
        f"bring the old {what} back, or train again with another --out"
    )


def _inherited(run: RunSpec) -> Tokenizer | None:
    """Return the tokenizer that belongs to the weights a run starts from, unless it asks for a file's.

    Raises:
        UserError: it asks for another one to be made.
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


def _record(store: TokenStore) -> dict[str, Any]:
    return {
        "store": str(store.folder.resolve()),
        "text": store.index.text,
        "num_tokens": len(store),
        "num_documents": store.num_documents,
        "num_bytes": store.num_bytes,
        "digest": store.digest,
    }
