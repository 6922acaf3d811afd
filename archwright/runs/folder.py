"""The layout of a run folder, and how one is made, opened, read and written."""

import contextlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from pydantic_core import from_json

from archwright import checkpoint
from archwright.checkpoint.started import StartRecord, missing, remove_empty
from archwright.files import atomic_write, check_folders, clear_errors, stamp, sweep
from archwright.runs.lock import BusyError, Holder, locked, read_holder
from archwright.runs.metrics import append_record, cut_records, plain, read_records
from archwright.runs.records import Record, well_formed
from archwright.spec.errors import UserError, hub_hint, nearest
from archwright.spec.toml import parse_toml
from archwright.spec.version import FORMAT, check_format

if TYPE_CHECKING:
    from archwright.spec.run_spec import RunSpec
    from archwright.text.tokenizer import Tokenizer

RUNS = Path("runs")
"""Where runs are kept when the user names no folder."""


class RunFolder:
    """One run on disk, made with `create` or `open`.

    spec.toml           the run, everything decided          metrics.jsonl     one line per record
    requested.toml      the run as it was asked for          samples.txt       what the model writes
    checkpoints/        to resume from                       environment.json  where it ran
    model.safetensors   the final weights                    report.html       its curves
    tokenizer/          what makes its tokens                lock, lock.json   who is training it
    probes.jsonl        what was seen inside the model, one line per probed step
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.spec_file = self.path / "spec.toml"
        self.requested_file = self.path / "requested.toml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.probes_file = self.path / "probes.jsonl"
        self.checkpoints_folder = self.path / "checkpoints"
        self.model_file = self.path / "model.safetensors"
        self.best_file = self.checkpoints_folder / "best.safetensors"
        """Weights of the lowest held-out loss, of a run under way that may end early."""
        self.timed_file = self.checkpoints_folder / "timed.safetensors"
        """Weights for timing the end of a run, removed at once."""
        self.tokenizer_folder = self.path / "tokenizer"
        self.samples_file = self.path / "samples.txt"
        self.environment_file = self.path / "environment.json"
        self.report_file = self.path / "report.html"
        self.lock_file = self.path / "lock"
        self.holder_file = self.path / "lock.json"
        self._record = StartRecord(self.path)
        self._held: tuple[int, ...] | None = None
        """The stamp of the holder's file, while it is ours."""
        self._made: list[Path] | None = None
        """The folders that `create` made, the run's first; None where it began nothing."""

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, path: str | Path, spec: "RunSpec") -> "RunFolder":
        """Begin a run of `spec` at `path`, or return the run of an equal spec that is there.

        What a start that was killed has written down as its own makes place, if the run was never begun.

        Raises:
            UserError: the folder holds a run of another spec (the differences are named) or
                anything else, or may not be written to; it is then left as it was.
        """
        run = cls(path)
        check_folders(run.path, *_FOLDERS)
        if run.exists:
            run._check_format()
        if not run.started and not run._asks_for(spec):
            run._begin(spec)
        run._check_asked(spec)
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Return the run at `path`.

        Raises:
            UserError: there is none, one that only a later version can read, or one with links for folders.
        """
        run = cls(path)
        check_folders(run.path, *_FOLDERS)
        if not run.exists:
            raise UserError(_no_run(run.path))
        run._check_format()
        return run

    @property
    def exists(self) -> bool:
        """Whether there is a run at this path."""
        return self.spec_file.is_file()

    @property
    def started(self) -> bool:
        """Whether there is anything here beside what was asked for."""
        kept = (self.environment_file, self.metrics_file, self.checkpoints_folder)
        return self.exists and any(path.exists() for path in kept)

    @property
    def resolved(self) -> bool:
        """Whether the machine's decisions are recorded, so that nothing may be decided again.

        The environment is written after the spec that it belongs to.
        """
        return self.exists and self.environment_file.is_file()

    @property
    def parts(self) -> dict[str, str]:
        """The files of choices from outside the package, and their SHA-256.

        Known also where those choices are not, without which the spec cannot be read.
        """
        return _parts(self.spec_file)

    @property
    def spec(self) -> "RunSpec":
        """The run, with what the machine decided once `write_spec` has written it."""
        return _read_spec(self.spec_file)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, and was not taken up again."""
        names = [record.get("name") for record in self.metrics() if record["kind"] == "event"]
        states = [name for name in names if name in ("started", "resumed", "stopped", "finished")]
        return states[-1:] == ["finished"]

    def metrics(self) -> list[Record]:
        """Return the records of the run so far, oldest first; damaged lines are left out."""
        return read_records(self.metrics_file)

    def probes(self) -> list[Record]:
        """Return what probes saw, a record per probed step; none where the run had no probes."""
        return [record for record in read_records(self.probes_file) if record["kind"] == "probes"]

    def environment(self) -> Record:
        """Return what is known of the machine and the software; empty before that is written.

        Entries that are not what they should be are left out, with a warning.
        """
        try:
            found = from_json(_read_text(self.environment_file) or "{}")
        except ValueError as error:
            raise UserError(f"{self.environment_file} is not JSON: {error}.") from error
        if not isinstance(found, dict):
            raise UserError(f"{self.environment_file} is damaged: it is no JSON object.")
        whole, damaged = well_formed(found)
        if damaged:
            message = f"{self.environment_file}: left out as damaged: {', '.join(damaged)}."
            warnings.warn(message, stacklevel=2)
        return whole

    def samples(self) -> str:
        """Return what the model wrote; empty before it did."""
        return _read_text(self.samples_file)

    def checkpoints(self) -> dict[int, Path]:
        """Return the complete checkpoints by step, oldest first."""
        return checkpoint.complete(self.checkpoints_folder)

    @contextlib.contextmanager
    def lock(self) -> Iterator[Holder | None]:
        """Keep other processes off the run while the block lasts.

        Yields the former holder where that died without letting go, otherwise None.

        Raises:
            UserError: another process trains here; the message says which, and since when.
        """
        with locked(self.lock_file, self.holder_file) as before:
            self._held = stamp(self.holder_file)
            try:
                yield before
            finally:
                self._held = None

    def holder(self) -> Holder | None:
        """Return who is training the run, or was when it died."""
        return read_holder(self.holder_file)

    def let_go(self, holder: Holder) -> None:
        """Let go what a process holds that is known to have died on another host, where nobody else can tell."""
        if self.holder() == holder:
            with contextlib.suppress(OSError):
                self.holder_file.unlink()

    @contextlib.contextmanager
    def removed_unless_started(self) -> Iterator[None]:
        """Remove what `create` made if the block fails before the run has begun; for the holder of the lock.

        So a mistake in the text, say, leaves no folder behind that is in the way of the next try.
        """
        try:
            yield
        except BaseException:
            if self._made is not None and not self.started:
                self._discard(self._made)
            raise
        if self.started:
            self.sweep()
            self._record.finish()

    @property
    def starting(self) -> bool:
        """Whether a start of ours is written down that has not come to its end: what it made may be made again."""
        return self._record.names is not None

    def start_over(self, *files: Path) -> None:
        """Remove what an unfinished start made beside the spec, and write down that `files` will be made; for the
        holder of the lock."""
        kept = (self.spec_file, self.requested_file, self.lock_file, self.holder_file)
        self._record.undo(keep=[path.name for path in kept])
        self._record.add(*(path.name for path in files))

    def write_spec(self, spec: "RunSpec") -> None:
        """Record the run with what the machine decided, never to be decided again."""
        atomic_write(self.spec_file, _spec_text(spec))

    def write_environment(self, environment: Mapping[str, object]) -> None:
        """Record the machine and the software."""
        atomic_write(self.environment_file, json.dumps(plain(environment), indent=2) + "\n")

    def write_samples(self, text: str) -> None:
        """Keep what the model wrote, in place of what it wrote before."""
        atomic_write(self.samples_file, text)

    def write_tokenizer(self, tokenizer: "Tokenizer") -> None:
        """Keep what makes the run's tokens.

        Raises:
            UserError: another tokenizer is there, which the run did not make.
        """
        folder = self.tokenizer_folder
        self._record.add(folder.name)
        if folder.exists() and folder.name not in (self._record.names or ()):
            self._check_tokenizer(tokenizer)
            return
        with clear_errors(folder):
            tokenizer.save(folder)

    def append(self, record: Mapping[str, object]) -> None:
        """Add a record, which has at least `kind` and `step`, to the metrics."""
        assert {"kind", "step"} <= record.keys()
        append_record(self.metrics_file, record)

    def append_probes(self, record: Mapping[str, object]) -> None:
        """Add a record, which has at least `kind` and `step`, to what probes saw."""
        assert {"kind", "step"} <= record.keys()
        append_record(self.probes_file, record)

    def check_kept(self) -> None:
        """Refuse to go on where the run was removed, or the file that says who trains it: what is written from now on
        would be no run, or might be written by another process, too.

        Raises:
            UserError: either is not there any more.
        """
        if not self.exists:
            raise UserError(
                f"{self.path} was removed while it was trained (it has no spec.toml any more): stopped."
            )
        with contextlib.suppress(FileNotFoundError):
            if self._held is None or self._held == stamp(self.holder_file):
                return
        raise UserError(
            f"{self.holder_file} was removed while the run was trained, so another process may train it: stopped."
        )

    def truncate_to(self, step: int) -> None:
        """Make the run what it was at `step`: later records and checkpoints go; with -1, all.

        For the holder of the lock, before it resumes from the checkpoint of `step`.
        """
        cut_records(self.metrics_file, step)
        cut_records(self.probes_file, step)
        checkpoint.remove_after(self.checkpoints_folder, step)
        checkpoint.remove_stale(self.checkpoints_folder)
        self.sweep()
        self._record.finish()

    def sweep(self, *files: Path) -> None:
        """Remove what a killed process had not finished of some files; of all, for the holder of the lock."""
        sweep(self.path, *(re.escape(path.name) for path in files))
        if not files and self.checkpoints_folder.is_dir():
            sweep(self.checkpoints_folder)
            self.timed_file.unlink(missing_ok=True)

    def _begin(self, spec: "RunSpec") -> None:
        self._check_free(spec)
        self._made = missing(self.path)
        locks = [self.lock_file.name, self.holder_file.name]
        try:
            with clear_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            self._record.begin("run")
            self._record.add(*locks)
            with self.lock(), self.removed_unless_started():
                if not self.started:
                    self._record.undo(keep=locks)
                    self._record.add(self.requested_file.name, self.spec_file.name)
                    if not self.requested_file.exists():
                        atomic_write(self.requested_file, _spec_text(spec))
                    # Last: it makes the folder a run.
                    atomic_write(self.spec_file, _spec_text(spec))
        except BusyError:
            raise
        except UserError:  # the disk refused even a lock
            self._discard(self._made)
            raise

    def _discard(self, folders: list[Path]) -> None:
        """Remove what was made of a run that was not begun, and the `folders` as far as nothing else is in them."""
        self._record.undo()
        remove_empty(folders)

    def _check_free(self, spec: "RunSpec") -> None:
        """Refuse a folder with anything in it but what a start of ours wrote down."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; --out must name a folder.")
        others = self._record.others()
        if not others:
            return
        if self.exists and self._record.names is None:
            self._check_asked(spec)
        raise UserError(
            f"{self.path} is not a run folder and not empty: it holds {others[0]}"
            f"{f' and {len(others) - 1} more' if others[1:] else ''}. "
            f"Give --out a new or empty folder."
        )

    def _check_tokenizer(self, tokenizer: "Tokenizer") -> None:
        from archwright.text.tokenizer import Tokenizer

        with contextlib.suppress(UserError):
            if Tokenizer.load(self.tokenizer_folder).fingerprint == tokenizer.fingerprint:
                return
        raise UserError(
            f"{self.tokenizer_folder} is not the tokenizer of this run and was not made by it. "
            f"Move it away, or give --out a new or empty folder."
        )

    def _check_format(self) -> None:
        found = _format(self.spec_file)
        if found is None:
            raise UserError(f"{self.spec_file} has no format number: this is not a run folder.")
        check_format(self.spec_file, found)

    @property
    def _requested_or_spec(self) -> Path:
        return self.requested_file if self.requested_file.exists() else self.spec_file

    def _asks_for(self, spec: "RunSpec") -> bool:
        """Tell whether a run of an equal spec is here."""
        with contextlib.suppress(UserError):
            return self.exists and _read_spec(self._requested_or_spec) == spec
        return False

    def _check_asked(self, spec: "RunSpec") -> None:
        """Refuse `spec` where another one was asked for; what the machine then decided is aside."""
        asked = _read_spec(self._requested_or_spec)
        if asked.hash() == spec.hash():
            return
        from archwright.spec.read import diff

        lines = [
            line
            for line in diff(asked, spec)
            if line.partition(":")[0].partition(".")[0] not in spec.not_identity
        ]
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise UserError(
            f"{self.path} holds another run ({'; '.join(lines[:_SHOWN])}{more}). "
            f"Train with another --out, or go on with the run there: --resume {self.path}"
        )


def _no_run(path: Path) -> str:
    """Say that there is no run at a path, with the nearest name, or the run that is called so."""
    if (path / "study.toml").is_file():
        return f"{path} is a study, not a run; its page is {path / 'report.html'}"
    if (path / "config.json").is_file():
        run = RUNS / path.resolve().name
        source, out = quote(str(path)), quote(f"{run}{'-imported' * RunFolder(run).exists}")
        return f"{path} is a checkpoint, not a run; this makes a run of it: archwright import {source} --out {out}"
    if around := next((folder for folder in path.parents if RunFolder(folder).exists), None):
        return f"{path} is inside a run; give its folder: {around}"
    if inside := find(path):
        return f"{path} is a folder of runs, not a run: name one of them, such as {inside[0].path}"
    found = (
        " is not a run folder: it has no spec.toml." if path.exists() else ": there is no such run."
    )
    if RunFolder(RUNS / path).exists:
        return f'{path}{found} Did you mean "{RUNS / path}"?'
    names = {other.path.name: str(other.path) for other in find(path.parent)}
    hint = nearest(path.name, names)
    for name, whole in names.items():
        hint = hint.replace(f'"{name}"', f'"{whole}"')
    if not hint and path.parent == Path():
        from archwright.spec.read import preset_names

        if path.name in (*preset_names("models"), *preset_names("runs")):
            hint = f" archwright train {path} makes {RUNS / path}."
    return f"{path}{found}{hint or hub_hint(str(path))}"


def find(parent: str | Path = RUNS) -> list[RunFolder]:
    """Return the runs directly inside the folder `parent`, by name."""
    folders = [RunFolder(path.parent) for path in Path(parent).glob("*/spec.toml")]
    return sorted(folders, key=lambda run: run.path.name)


_FOLDERS = ("checkpoints", "tokenizer", "csv", "tensorboard", "wandb")
_SHOWN = 8  # differences in one line of an error


def _spec_text(spec: "RunSpec") -> str:
    from archwright.spec.read import to_toml

    return f"format = {FORMAT}\n{to_toml(spec)}"


def _format(path: Path) -> int | None:
    """Return the number of the layout that a spec's file names, None where it names none."""
    try:
        found = parse_toml(_read_text(path)).get("format")
    except ValueError as error:
        raise UserError(f"{path} is damaged: it is not TOML: {error}.") from error
    return found if type(found) is int else None


def _read_spec(path: Path) -> "RunSpec":
    from archwright.spec.read import read_run

    try:
        return read_run(path)
    except UserError as error:
        if parts := _parts(path):
            given = " ".join(f"--parts {name}" for name in parts)
            raise UserError(
                f"{path.parent} was made with choices of {', '.join(parts)}, which are not known here "
                f"({error.lines[0]}). Give the file again: {given}"
            ) from error
        raise UserError(
            *((line if str(path) in line else f"{path}: {line}") for line in error.lines)
        ) from error


def _parts(path: Path) -> dict[str, str]:
    try:
        found = parse_toml(_read_text(path)).get("parts", [])
        return {str(part["name"]): str(part["sha256"]) for part in found}
    except (ValueError, TypeError, KeyError):
        return {}


def _read_text(path: Path) -> str:
    """Return the text of a file, empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
