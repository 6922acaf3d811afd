"""The end of a run: weights, a full evaluation, a sample, and its page."""

import contextlib
import shutil
import time
from typing import Any

from archwright.data.eval_windows import HeldOut
from archwright.format import printable
from archwright.generation.writing import stream
from archwright.machine.compiling import uncompiled
from archwright.model.model import Decoder
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
TIMED_TOKENS = 4096
"""Held-out tokens for timing the end of a run."""
TIMED_SAMPLE = 10
"""Sampled tokens for timing the end of a run."""
CHECKPOINT_SIZE = 4
"""A last checkpoint (weights and two moments) and the file of the weights, in sizes of the weights."""
PAGE = 0.5
"""Seconds of the page, with the imports of what draws it: no import waits for the first step."""


def finish(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Evaluate on the held-out text, write samples and weights, mark the run finished.

    What a process that was killed in here has recorded already is not recorded twice.
    """
    session, tokenizer = loop.session, material.tokenizer
    windows = session.windows(material, _final(session.run))
    loop.restore_best()
    final_evaluation(loop, folder, material)
    known = _known(folder, session.standing.step)
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
    loop.record("event", name="finished", text=f"{session.standing.step} steps")
    folder.best_file.unlink(missing_ok=True)  # last: a process killed before still needs it
    report(folder)


def time_end(session: Session, folder: RunFolder, material: Material) -> tuple[float, float]:
    """Time a little of everything that `finish` does, before the first step; nothing is kept.

    Returns:
        Estimated seconds for each held-out token, and seconds for everything else.
    """
    run, clock = session.run, time.perf_counter
    reading = reading_of(run, TIMED_TOKENS, run.evaluate.final_bytes)
    windows = session.windows(material, reading)
    assert isinstance(reading.stride, int)
    readings = 1 + len(run.evaluate.lengths) * reading.stride / run.model.context_length
    start = clock()
    session.evaluate(material, reading)
    per_token = readings * (clock() - start) / windows.num_tokens
    if isinstance(windows, HeldOut) and windows.defines_bits_per_byte:
        start = clock()
        compressors(windows, material.tokenizer)
        per_token += (clock() - start) / windows.num_tokens
    start = clock()
    session.write_model(folder.timed_file, {})
    others = PAGE + CHECKPOINT_SIZE * (clock() - start)
    if windows.generates_text:
        with session.whole_model(folder.timed_file) as model:
            _sample(session, model, material.tokenizer, 2)  # the first tokens take longer
            start = clock()
            _sample(session, model, material.tokenizer, TIMED_SAMPLE)
            others += SAMPLE_TOKENS / TIMED_SAMPLE * (clock() - start)
    folder.timed_file.unlink()
    return per_token, others


def _sample(session: Session, model: Decoder, tokenizer: Tokenizer, max_tokens: int) -> str:
    with uncompiled(model), session.precision.autocast():
        return "".join(
            stream(model, tokenizer, top_p=0.95, max_tokens=max_tokens, seed=session.run.seed)
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
    known = _known(folder, session.standing.step)
    if ("eval", None) not in known:
        loop.record("eval", **loop.evaluate().record())
    windows = session.windows(material, _final(session.run))
    if ("eval", FINAL) not in known:
        found, halves = evaluate_halves(session.model, windows, session.precision)
        loop.record("eval", name=FINAL, **found.record(), **halves.record())
    _evaluate_lengths(loop, material, known)
    with contextlib.suppress(OSError):
        folder.report_file.unlink()  # the page of an earlier stop
    loop.record("event", name="finished", text=f"{session.standing.step} steps")
    shutil.rmtree(folder.checkpoints_folder, ignore_errors=True)


def final_evaluation(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Record the final evaluation, and those at other lengths, as far as they are not recorded yet."""
    session = loop.session
    known = _known(folder, session.standing.step)
    if ("eval", None) not in known:
        found = session.evaluate(material, _final(session.run))
        loop.call("on_evaluation", loop.record("eval", **found.record()))
    _evaluate_lengths(loop, material, known)


def _evaluate_lengths(loop: Loop, material: Material, known: set[tuple[str, str | None]]) -> None:
    """Record evaluations on texts of other lengths; of one behind the last position of a model, without numbers."""
    session, run = loop.session, loop.session.run
    for length in run.evaluate.lengths:
        if ("length", str(length)) in known:
            continue
        found: dict[str, Any] = {}
        if not (session.model.spec.position.ends and length > run.model.context_length):
            bounds = run.evaluate.final_max_tokens, run.evaluate.final_bytes
            found = session.evaluate(material, Reading(length, length, *bounds)).record()
        loop.record("length", name=str(length), **found)


def _final(run: RunSpec) -> Reading:
    """Return what the evaluation at the end reads."""
    return reading_of(run, run.evaluate.final_max_tokens, run.evaluate.final_bytes)


def _known(folder: RunFolder, step: int) -> set[tuple[str, str | None]]:
    """Return kind and name of what is recorded of the last step, after it was known to be the last."""
    records = [record for record in folder.metrics() if record["step"] == step]
    if (ended := early_end(records)) is not None:
        records = records[records.index(dict(ended)) :]
    return {(record["kind"], record.get("name")) for record in records}
