"""The sections of a run's report. To add one, write its maker and put it into `SECTIONS`."""

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from archwright import format as fmt
from archwright.format import printable
from archwright.reporting import choices, curves, heat_maps
from archwright.reporting.document import Fact, Facts, Row, Section, Table, Text, Verbatim
from archwright.reporting.history import History, Line
from archwright.reporting.result import Result, closing_words, no_peak, second_task
from archwright.spec.read import to_toml


def numbers(history: History, result: Result) -> Section:
    """State every number of the verdict and what it was measured on."""
    groups = {
        "Held-out examples" if history.task else "Held-out text": _held_out_facts(history, result),
        "Training": _training_facts(history, result),
        "Model": _model_facts(history, result),
    }
    return Section("Numbers", [Facts({name: facts for name, facts in groups.items() if facts})])


def training_curves(history: History, result: Result) -> Section | None:
    """Draw what was measured at every step, and list what happened on the way."""
    if result.steps == 0:
        return None
    return Section(
        "Curves",
        [
            curves.loss_chart(history),
            *curves.bits_charts(history),
            *curves.accuracy_charts(history),
            *curves.step_charts(history),
        ],
    )


def probes(history: History, result: Result) -> Section | None:
    """Draw what went on inside the model, if the run looked."""
    drawn = heat_maps.heat_maps(history)
    every = history.spec.probes.every
    caption = (
        f"Inside the model at the first step and every {fmt.exact(every)} steps: training from left "
        "to right, layer 0 at the bottom. probes.jsonl has all numbers."
    )
    return Section("Probes", [Text(caption), *drawn]) if drawn else None


def events(history: History, result: Result) -> Section | None:
    """List what happened to the run."""
    if not history.events:
        return None
    rows = [
        Row(
            (
                fmt.exact(event["step"]),
                fmt.duration(event.get("seconds", 0.0)),
                event["name"].replace("_", " "),
                event.get("text", ""),
            )
        )
        for event in history.events
    ]
    return Section("Events", [Table("", ("Step", "Time", "Event", "What happened"), rows)])


def architecture(history: History, result: Result) -> Section:
    """State the model's choices, and which of them are not the defaults."""
    caption = "The choices of the model. Marked: what differs from archwright's defaults."
    return Section(
        "Architecture", [Table(caption, choices.HEAD, choices.model_rows(history.spec.model))]
    )


def training_recipe(history: History, result: Result) -> Section:
    """State how the model was trained, on what."""
    caption = "Text, optimizer and schedule. Marked: what differs from archwright's defaults."
    rows = choices.spec_rows(
        history.spec, leave_out=("model", "name", "machine", "scale", "loggers", "probes")
    )
    return Section("Training", [*_texts(history, result), Table(caption, choices.HEAD, rows)])


def sample(history: History, result: Result) -> Section | None:
    """Show what the model writes."""
    if not history.sample.strip():
        return None
    text = printable(history.sample)
    return Section("Sample", [Verbatim("Written by the model", text)])


def machine(history: History, result: Result) -> Section | None:
    """Say on what the run was computed, and what the machine decided with which reason."""
    known = {k: v for k, v in history.environment.items() if k not in _SHOWN_ELSEWHERE and v}
    if not known:
        return None
    made = dict(history.environment.get("decisions", {}))
    if "num_steps" in made:  # an estimate while a budget in time lasts
        made["num_steps"] = made["num_steps"] | {"value": history.planned_steps}
    rows = [Row((key, _shown(d["value"]), d["reason"])) for key, d in made.items()]
    caption = "Decided once for this run, and kept when it is resumed or repeated."
    decisions = [Table(caption, ("Decision", "Choice", "Reason"), rows)] if rows else []
    return Section("Machine", [Facts({"": _environment_facts(known)}), *decisions])


def reproduce(history: History, result: Result) -> Section:
    """Give the command and the file that repeat the run."""
    return Section(
        "Reproduce",
        [
            Text(
                "spec.toml holds every choice of this run and what the machine decided, "
                "so a repetition decides nothing again."
            ),
            Verbatim("Command", command(history)),
            Verbatim("spec.toml", to_toml(history.spec), file="spec.toml", folded=True),
        ],
    )


def command(history: History) -> str:
    """Return the command that repeats a run."""
    spec = f"{history.folder}/spec.toml"
    words = ["archwright", "train", spec, "--out", f"{history.folder}-again"]
    for part in history.spec.parts:
        words += ["--parts", part.name]
    return shlex.join(words)


SECTIONS: tuple[Callable[[History, Result], Section | None], ...] = (
    numbers,
    training_curves,
    probes,
    sample,
    architecture,
    training_recipe,
    events,
    machine,
    reproduce,
)
"""Every section, first to last; one that has nothing to say returns None."""


def _held_out_facts(history: History, result: Result) -> list[Fact]:
    last = result.held_out
    if not last:
        return [Fact("Evaluation", "none yet")]
    if task := history.task:
        return _answer_facts(last, task)
    return [
        *_fact("Bits per byte", result.bits_per_byte, fmt.decimal),
        *(
            Fact(line["name"], fmt.decimal(line["bits_per_byte"]), "bits per byte")
            for line in history.compressors
        ),
        Fact("Loss", fmt.loss(last["nats_per_token"]), history.loss_unit),
        Fact(
            "Perplexity",
            fmt.significant(last["perplexity"], 4),
            f"{history.loss_unit.removeprefix('nats ')}, base e",
        ),
        *(
            Fact(name[0].upper() + name[1:], value, unit)
            for name, value, unit in second_task(last, history)
        ),
        Fact("Tokens", fmt.exact(last["num_tokens"])),
        Fact("Size", fmt.size(last["num_bytes"])),
    ]


def _answer_facts(last: Line, task: Line) -> list[Fact]:
    return [
        Fact("Accuracy", fmt.accuracy(last.get("accuracy", math.nan)), "of answers"),
        Fact("By guessing", fmt.accuracy(task["chance"])),
        Fact("Loss", fmt.loss(last["nats_per_token"]), "nats per answer"),
        Fact("Least loss", fmt.loss(task["floor"]), "of any model"),
        Fact("Answers", fmt.exact(last.get("num_answers", 0))),
        Fact("Tokens", fmt.exact(last["num_tokens"])),
    ]


def _training_facts(history: History, result: Result) -> list[Fact]:
    planned = f"of {fmt.exact(history.planned_steps)}" if history.planned_steps else ""
    averaged = closing_words(result.steps)
    return [
        Fact("Steps", fmt.exact(result.steps), planned),
        Fact("Tokens", fmt.exact(result.tokens)),
        Fact("Time", fmt.duration(result.seconds)),
        *_fact("FLOPs", result.flops, fmt.flops),
        *_fact("Training loss", result.train_loss, fmt.loss, f"{history.loss_unit}, {averaged}"),
        *_fact("Speed", result.tokens_per_second, fmt.count, "tokens/s, median"),
        *_fact("Utilisation", result.utilisation, fmt.percent, "of measured peak"),
        *([Fact("Utilisation", "none", fmt.NO_UTILISATION)] if no_peak(history) else []),
        *_fact("Memory", result.memory_bytes, fmt.size, "highest"),
        Fact("Loss spikes", str(result.spikes)),
    ]


def _model_facts(history: History, result: Result) -> list[Fact]:
    model = history.spec.model
    return [
        *_fact("Parameters", result.num_parameters, fmt.exact),
        *_fact("FLOPs per token", history.flops_per_token, fmt.flops, "in training"),
        Fact("Layers", str(model.num_layers)),
        Fact("Width", str(model.dim)),
        Fact("Context", fmt.exact(model.context_length), "tokens"),
        Fact("Vocabulary", _shown(model.vocab_size), "tokens"),
    ]


def _fact(
    label: str, value: float | None, caption: Callable[[float], str], note: str = ""
) -> list[Fact]:
    """Return a fact, or none where there is no value."""
    return [] if value is None else [Fact(label, caption(value), note)]


def _texts(history: History, result: Result) -> list[Facts]:
    """State how much text there was, and how often the model read it."""
    data = history.environment.get("data")
    if not data:
        return []
    if task := history.task:
        trained = result.steps * history.spec.batch_size
        drawn = [Fact("Task", task["name"]), Fact("Trained on", fmt.exact(trained), "drawn for it")]
        held = Fact("Held out", fmt.exact(task["num_held_out"]), "never trained on")
        return [Facts({"Examples": [*drawn, held]})]
    passes = Fact("Passes over it", fmt.significant(result.tokens / data["train"]["num_tokens"]))
    return [
        Facts(
            {
                "Text to train on": [*_text_facts(data["train"]), passes],
                "Text held out": _text_facts(data["held_out"]),
            }
        )
    ]


def _text_facts(text: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact("Size", fmt.size(text["num_bytes"])),
        Fact("Tokens", fmt.exact(text["num_tokens"])),
        Fact("Documents", fmt.exact(text["num_documents"])),
    ]


_SHOWN_ELSEWHERE = ("num_parameters", "flops_per_token", "decisions", "data", "time_budget")

_LABELS = {
    "archwright": "archwright",
    "torch": "torch",
    "machine": "System",
    "cpu": "CPU",
    "gpu": "GPU",
    "memory_bytes": "Memory",
}


def _environment_facts(environment: Mapping[str, Any]) -> list[Fact]:
    peaks = environment.get("peak_flops", {})
    return [
        *(
            Fact(
                _LABELS.get(key, key.replace("_", " ").capitalize()),
                fmt.size(value) if key.endswith("bytes") else _shown(value),
            )
            for key, value in environment.items()
            if key != "peak_flops"
        ),
        *(
            Fact(f"Matrix products in {precision}", fmt.rate(peak), "measured")
            for precision, peak in peaks.items()
        ),
    ]


def _shown(value: object) -> str:
    return fmt.exact(value) if isinstance(value, int) else str(value)
