"""The sections of a run's report. To add one, write its maker and put it into `SECTIONS`."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from archwright.reporting import choices, curves, words
from archwright.reporting.document import Fact, Facts, Row, Section, Table, Text, Verbatim
from archwright.reporting.record import Record
from archwright.reporting.result import Result
from archwright.spec.read import to_toml


def numbers(record: Record, result: Result) -> Section:
    """State every number of the verdict and what it was measured on."""
    groups = {
        "Held-out text": _held_out_facts(record, result),
        "Training": _training_facts(record, result),
        "Model": _model_facts(record, result),
    }
    return Section("Numbers", [Facts({name: facts for name, facts in groups.items() if facts})])


def training_curves(record: Record, result: Result) -> Section | None:
    """Draw what was measured at every step, and list what happened on the way."""
    if result.steps == 0:
        return None
    return Section("Curves", [curves.loss_chart(record), *curves.step_charts(record)])


def events(record: Record, result: Result) -> Section | None:
    """List what happened to the run."""
    if not record.events:
        return None
    rows = [
        Row(
            (
                words.exact(event["step"]),
                words.duration(event["seconds"]),
                event["name"].replace("_", " "),
                event.get("text", ""),
            ),
            mark="" if event["name"] not in ("loss_spike", "stopped") else "worth a look",
        )
        for event in record.events
    ]
    return Section("Events", [Table("", ("Step", "Time", "Event", "What happened"), rows)])


def architecture(record: Record, result: Result) -> Section:
    """State the model's choices, and which of them are not the defaults."""
    said = "The choices of the model. Marked: what differs from archwright's defaults."
    return Section(
        "Architecture", [Table(said, choices.HEAD, choices.model_rows(record.spec.model))]
    )


def training_recipe(record: Record, result: Result) -> Section:
    """State how the model was trained, on what."""
    said = "Text, optimizer and schedule. Marked: what differs from archwright's defaults."
    rows = choices.spec_rows(record.spec, leave_out=("model", "name", "machine", "tensorboard"))
    return Section("Training", [Table(said, choices.HEAD, rows)])


def sample(record: Record, result: Result) -> Section | None:
    """Show what the model writes."""
    if not record.sample.strip():
        return None
    text = words.printable(record.sample)
    return Section("Sample", [Verbatim("Written by the model", text, prose=True)])


def machine(record: Record, result: Result) -> Section | None:
    """Say on what the run was computed, and what the machine decided with which reason."""
    left_out = (*_MODEL_FACTS, "decisions")
    known = {key: value for key, value in record.environment.items() if key not in left_out}
    if not known:
        return None
    return Section("Machine", [Facts({"": _environment_facts(known)}), *_decisions(record)])


def reproduce(record: Record, result: Result) -> Section:
    """Give the command and the file that repeat the run."""
    spec = f"{record.folder}/spec.toml"
    again = f"archwright train {shlex.quote(spec)} --out {shlex.quote(record.folder + '-again')}"
    return Section(
        "Reproduce",
        [
            Text(
                "spec.toml holds every choice of this run and what the machine decided, "
                "so a repetition decides nothing again."
            ),
            Verbatim("Command", again),
            Verbatim("spec.toml", to_toml(record.spec), file="spec.toml", folded=True),
        ],
    )


SECTIONS: tuple[Callable[[Record, Result], Section | None], ...] = (
    numbers,
    training_curves,
    sample,
    architecture,
    training_recipe,
    events,
    machine,
    reproduce,
)
"""Every section, first to last; one that has nothing to say returns None."""


def _held_out_facts(record: Record, result: Result) -> list[Fact]:
    last = result.held_out
    if not last:
        return [Fact("Evaluation", "none yet")]
    return [
        Fact("Loss", words.decimal(last["nats_per_token"], 4), "nats per token"),
        Fact("Perplexity", words.significant(last["perplexity"], 4), "per token, base e"),
        Fact("Bits per byte", words.decimal(last["bits_per_byte"])),
        *(Fact(f"  {c['name']}", words.decimal(c["bits_per_byte"])) for c in record.compressors),
        Fact("Read", words.size(last["num_bytes"]), f"{words.exact(last['num_tokens'])} tokens"),
    ]


def _training_facts(record: Record, result: Result) -> list[Fact]:
    planned = f"of {words.exact(record.planned_steps)}" if record.planned_steps else ""
    facts = [
        Fact("Steps", words.exact(result.steps), planned),
        Fact("Tokens", words.exact(result.tokens)),
        Fact("Time", words.duration(result.seconds)),
    ]
    if result.flops:
        facts.append(Fact("FLOPs", words.flops(result.flops)))
    if result.train_loss is not None:
        facts.append(Fact("Last training loss", words.decimal(result.train_loss, 4), "nats per token"))
    if result.tokens_per_second:
        facts.append(Fact("Speed", words.count(result.tokens_per_second), "tokens/s, median"))
    if result.utilisation:
        facts.append(Fact("Utilisation", words.percent(result.utilisation), "of measured peak"))
    if result.memory_bytes:
        facts.append(Fact("Memory", words.size(result.memory_bytes), "highest"))
    return [*facts, Fact("Loss spikes", str(result.spikes))]


_MODEL_FACTS = ("num_parameters", "flops_per_token")


def _model_facts(record: Record, result: Result) -> list[Fact]:
    model = record.spec.model
    facts = [
        Fact("Layers", str(model.num_layers)),
        Fact("Width", str(model.dim)),
        Fact("Context", words.exact(model.context_length), "tokens"),
        Fact("Vocabulary", _shown(model.vocab_size), "tokens"),
    ]
    if record.flops_per_token:
        facts.insert(0, Fact("FLOPs per token", words.flops(record.flops_per_token), "in training"))
    if result.num_parameters:
        facts.insert(0, Fact("Parameters", words.exact(result.num_parameters)))
    return facts


def _decisions(record: Record) -> list[Table]:
    made = record.environment.get("decisions", [])
    rows = [Row((d["name"], _shown(d["choice"]), d.get("reason", ""))) for d in made]
    said = "What the machine decided once, by measurement. It is kept when the run is resumed."
    return [Table(said, ("Decision", "Choice", "Reason"), rows)] if rows else []


def _environment_facts(environment: Mapping[str, Any]) -> list[Fact]:
    facts = []
    for key, value in environment.items():
        label = key.replace("_", " ").capitalize()
        if isinstance(value, Mapping):
            facts += [Fact(f"{label}, {name}", _measure(key, v)) for name, v in value.items()]
        else:
            facts.append(Fact(label, _measure(key, value)))
    return facts


def _measure(key: str, value: Any) -> str:
    """Show a value of the environment in the unit that its key names."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "flop" in key:
            return f"{words.count(value)}FLOP/s"
        if key.endswith("bytes"):
            return words.size(value)
    return _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return words.exact(value) if isinstance(value, int) else str(value)
