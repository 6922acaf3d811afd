"""What a run is made of before there is a model: a tokenizer and two token stores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archwright.data.prepare import Prepared, prepare
from archwright.data.store import TokenStore
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec, TokenizerSpec
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


def gather(run: RunSpec, folder: RunFolder) -> Material:
    """Return the material of a new run, and keep its tokenizer in the folder.

    Raises:
        UserError: what is wrong with the text or the tokenizer.
    """
    corpus = open_corpus(run.data)
    tokenizer = _inherited(run) or open_tokenizer(run.data.tokenizer, corpus.train)
    stores = prepare(corpus, tokenizer)
    folder.write_tokenizer(tokenizer)
    return Material(tokenizer, stores.train, stores.held_out, len(corpus.skipped))


def regain(run: RunSpec, folder: RunFolder) -> Material:
    """Return the material of a run that was begun; its tokens are made again if they are gone.

    Raises:
        UserError: the text is not the same any more.
    """
    recorded = _recorded(folder)
    tokenizer = Tokenizer.load(folder.tokenizer_folder)
    try:
        stores = Prepared(*(TokenStore(Path(recorded[side]["store"])) for side in Prepared._fields))
    except UserError:
        stores = prepare(open_corpus(run.data), tokenizer)
    for side, store in stores._asdict().items():
        if store.index.text != recorded[side]["text"]:
            raise UserError(
                f"{folder.path}: the text has changed since this run began; "
                "bring the old text back, or train anew with another --out"
            )
    return Material(tokenizer, stores.train, stores.held_out, recorded.get("files_skipped", 0))


def _recorded(folder: RunFolder) -> dict[str, Any]:
    """Return what `Material.record` gave when the run began."""
    data: dict[str, Any] = folder.environment().get("data", {})
    if not all(data.get(side, {}).keys() >= {"text", "store"} for side in Prepared._fields):
        raise UserError(
            f"{folder.environment_file} is damaged: it does not say which text the run began with; "
            "bring the file back, or train anew with another --out"
        )
    return data


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
    }
