"""The end of a run: weights, a full evaluation, a sample, and its page."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Any

from archwright.data.eval_windows import HeldOut
from archwright.format import printable
from archwright.generation.writing import stream
from archwright.machine.compiling import uncompiled
from archwright.model.language_model import LanguageModel
from archwright.runs import RunFolder
from archwright.runs.ending import early_end
from archwright.spec.run_spec import RunSpec
from archwright.text.tokenizer import Tokenizer
from archwright.training.data import Material
from archwright.training.evaluation import Reading, compressors, evaluate_halves, reading_of
from archwright.training.loop import Loop
from archwright.training.session import Session

FINAL = "final"
"""Name of the evaluation that counts, of a run of which only numbers stay."""
SAMPLE_TOKENS = 160
"""Length of the sample."""
REHEARSED_TOKENS = 4096
"""Held-out tokens that the rehearsal evaluates and compresses."""
READ = frozenset({"evaluation", "baselines"})
"""Parts of the end that read the held-out text."""
REHEARSED_SAMPLE = 10
"""Tokens that the rehearsal samples."""


def finish(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Evaluate on the held-out text, write samples and weights, mark the run finished.

    What a process that was killed in here has recorded already is not recorded twice.
    """
    session, tokenizer = loop.session, material.tokenizer
    windows = session.windows(material, _final(session.run, folder))
    loop.restore_best()
    final_evaluation(loop, folder, material)
    known = _known(folder, session.num_steps)
    if isinstance(windows, HeldOut) and windows.defines_bits_per_byte:
        for baseline in compressors(windows, tokenizer):
            if ("baseline", baseline.name) not in known:
                loop.record("baseline", **baseline._asdict())
    metadata = {"archwright": "model", "spec": session.model.spec.hash()}
    folder.check_kept()
    session.write_model(folder.model_file, metadata)
    if windows.generates_text:
        with session.whole_model(folder.model_file) as model:
            text = printable(_sample(session, model, tokenizer, SAMPLE_TOKENS))
        folder.check_kept()
        folder.write_samples(text)
    loop.record("event", name="finished", text=f"{session.num_steps} steps")
    folder.best_file.unlink(
        missing_ok=True
    )  # after that: a process that is killed here needs it no more
    report(folder)


def rehearse(
    loop: Loop, folder: RunFolder, material: Material, final_tokens: float
) -> dict[str, float]:
    """Return about how many seconds each thing takes that `finish` does, from a little of each; nothing is kept.

    Args:
        final_tokens: tokens that all evaluations of the end read.
    """
    from archwright.reporting.history import read_history
    from archwright.reporting.page import run_page

    session, seconds = loop.session, dict[str, float]()
    reading = reading_of(session.run, REHEARSED_TOKENS, session.run.evaluate.final_bytes)
    windows = session.windows(material, reading)
    with _timed(seconds, "evaluation", final_tokens / windows.num_tokens):
        session.evaluate(material, reading)
    if isinstance(windows, HeldOut) and windows.defines_bits_per_byte:
        whole = min(len(material.held_out), final_max_tokens(session.run, folder))
        with _timed(seconds, "baselines", whole / windows.num_tokens):
            compressors(windows, material.tokenizer)
    if windows.generates_text:
        with session.whole_model(folder.rehearsed_file) as model:
            _sample(session, model, material.tokenizer, 2)  # the first tokens take longer
            with _timed(seconds, "sample", SAMPLE_TOKENS / REHEARSED_SAMPLE):
                _sample(session, model, material.tokenizer, REHEARSED_SAMPLE)
    run_page(read_history(folder))  # what draws it is loaded once
    with _timed(seconds, "page", 1.0):
        run_page(read_history(folder)).html()
    return seconds


@contextlib.contextmanager
def _timed(seconds: dict[str, float], work: str, times: float) -> Iterator[None]:
    """Enter into `seconds` how long the block takes, so many times."""
    start = time.perf_counter()
    yield
    seconds[work] = times * (time.perf_counter() - start)


def _sample(session: Session, model: LanguageModel, tokenizer: Tokenizer, max_tokens: int) -> str:
    with uncompiled(model), session.precision.autocast():
        return "".join(
            stream(
                model,
                tokenizer,
                top_p=0.95,
                max_tokens=max_tokens,
                seed=session.run.seed,
            )
        )


def report(folder: RunFolder) -> None:
    """Write the run's page. What draws it is loaded here, not before the first step."""
    from archwright.reporting.page import write_report

    write_report(folder)


def finalize_metrics_only(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Evaluate on the held-out text and mark the run finished; only numbers stay of it.

    The curve ends on the sample that it was measured on; the evaluation that counts is a record of its own, with the
    halves that tune and judge.
    """
    session = loop.session
    known = _known(folder, session.num_steps)
    if ("eval", None) not in known:
        loop.record("eval", **loop.evaluate().record())
    windows = session.windows(material, _final(session.run, folder))
    if ("eval", FINAL) not in known:
        found, halves = evaluate_halves(session.model, windows, session.precision)
        loop.record("eval", name=FINAL, **found.record(), **halves.record())
    _evaluate_lengths(loop, folder, material, known)
    with contextlib.suppress(OSError):
        folder.report_file.unlink()  # the page of an earlier stop
    loop.record("event", name="finished", text=f"{loop.session.num_steps} steps")
    shutil.rmtree(folder.checkpoints_folder, ignore_errors=True)


def final_evaluation(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Record the final evaluation, and those at other lengths, as far as they are not recorded yet."""
    session = loop.session
    known = _known(folder, session.num_steps)
    if ("eval", None) not in known:
        found = session.evaluate(material, _final(session.run, folder))
        loop.call("on_evaluation", loop.record("eval", **found.record()))
    _evaluate_lengths(loop, folder, material, known)


def _evaluate_lengths(
    loop: Loop, folder: RunFolder, material: Material, known: set[tuple[str, str | None]]
) -> None:
    for length in loop.session.run.evaluate.lengths:
        if ("length", str(length)) not in known:
            found = _at_length(loop, folder, material, length)
            loop.record("length", name=str(length), **found)


def final_max_tokens(run: RunSpec, folder: RunFolder) -> int:
    """Return how many tokens the evaluation at the end reads at most: what the run says, or less where its budget in
    time pays for less."""
    recorded = folder.environment().get("time_budget", {}).get("final_max_tokens")
    return min(run.evaluate.final_max_tokens, recorded or run.evaluate.final_max_tokens)


def _at_length(loop: Loop, folder: RunFolder, material: Material, length: int) -> dict[str, Any]:
    """Return the evaluation on texts of `length` tokens; nothing for a model whose positions end before."""
    session = loop.session
    if session.model.spec.position.ends and length > session.run.model.context_length:
        return {}
    max_tokens, max_bytes = final_max_tokens(session.run, folder), session.run.evaluate.final_bytes
    return session.evaluate(material, Reading(length, length, max_tokens, max_bytes)).record()


def _final(run: RunSpec, folder: RunFolder) -> Reading:
    """Return what the evaluation at the end reads."""
    return reading_of(run, final_max_tokens(run, folder), run.evaluate.final_bytes)


def _known(folder: RunFolder, step: int) -> set[tuple[str, str | None]]:
    """Return kind and name of what is recorded of the last step, after it was known to be the last."""
    records = [record for record in folder.metrics() if record["step"] == step]
    if (ended := early_end(records)) is not None:
        records = records[records.index(dict(ended)) :]
    return {(record["kind"], record.get("name")) for record in records}
