"""A model's card: diagrams of its layers, then its choices, sources, parameters and costs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from archwright.catalogue import summaries
from archwright.catalogue.diagram import diagram
from archwright.catalogue.parameter_counts import Counts
from archwright.catalogue.part_titles import part_title
from archwright.cli.parser import terminal_width
from archwright.format import columns, count
from archwright.spec.model_spec import GROUPS, LayerSpec, ModelSpec
from archwright.spec.read import Origin


def card(
    spec: ModelSpec,
    blame: Mapping[str, Origin],
    file: str,
    counts: Counts,
    costs: Mapping[str, str],
) -> Iterator[str]:
    """Yield the lines of a model's card. Sources from files other than `file` are shown with their file names."""
    encoder = spec.encoder_model
    generator = spec.generator_model
    if generator is not None:
        yield _stream(generator, "masked", ["head", "drawn tokens"])
        yield _stream(spec, "drawn tokens", ["head", "replaced or not"])
        yield from _layers(generator, "generator")
        yield from _layers(spec, "detector")
    elif encoder is None:
        yield _stream(spec)
        yield from _layers(spec)
    else:
        yield _stream(encoder, "source", ["memory"])
        yield _stream(spec, "target")
        yield from _layers(encoder, "encoder")
        yield from _layers(spec, "decoder")
    around = _around(spec)
    if blame.get("init.kind", Origin("default")).file == "default" and "init" in around:
        around["init"] += " (default)"  # the published model may have another
    yield from _section("model", around)
    yield from _section("sources", _sources(blame, file))
    yield from _section("parameters", _parameters(counts))
    yield from _section("costs", costs)


def _stream(
    spec: ModelSpec, first: str = "tokens", last: Sequence[str] = ("head", "logits")
) -> str:
    """Draw the computation from `first` to `last` as a chain of steps."""
    norm, scale = spec.embedding.norm, spec.embedding.scale
    factor = f"{scale:g}" if isinstance(scale, float) else "√width"
    steps = [
        first,
        "embedding",
        "" if scale == "none" else f"× {factor}",
        f"+ {summaries.called(spec.position)} positions" if spec.position.absolute else "",
        "" if norm.is_none else summaries.called(norm),
        f"× {spec.embedding.sum_width(spec.dim)} to {spec.dim}"
        if spec.embedding.sum_width(spec.dim) != spec.dim
        else "",
        f"{spec.num_layers} layer{'s' * (spec.num_layers != 1)}"
        + (" with shared parameters" if spec.layers.shared else ""),
        _norm(spec) if spec.residual.final_norm else "",
        *last,
    ]
    return " ─ ".join(filter(None, steps))


def _norm(layer: LayerSpec) -> str:
    return "" if layer.norm.is_none else summaries.called(layer.norm)


def _layers(spec: ModelSpec, stack: str = "") -> Iterator[str]:
    """Yield the diagram and the choices of each layer kind; later kinds omit choices equal to the first kind's."""
    at = f"{stack}, " if stack else ""
    numbers = Counter(spec.layers.names(spec.num_layers))
    words, resolved = summaries.layer_words(spec), spec.resolved()
    first: dict[str, str] = {}
    drawn: list[str] = []
    # Branches that no layer has get no row.
    left_out = {*chain(*GROUPS)} - {b for name in numbers for b in words[name].branches}
    axes = [axis for axis in LayerSpec.model_fields if axis not in left_out]
    for name, number in numbers.items():
        several = len(numbers) > 1
        yield from (
            "",
            f"{at}{name}: {number} of {spec.num_layers} layers" if several else f"{at}every layer",
        )
        lines = diagram(resolved.layers_by_kind[name], _norm(words[name]))
        if lines != drawn:
            yield from (f"  {line}" for line in lines)
        drawn = lines
        rows = {
            summaries.name_of(a): summaries.brief(getattr(words[name], a))
            for a in LayerSpec.model_fields
            if a in axes
        }
        yield from _rows({at: text for at, text in rows.items() if first.get(at) != text})
        first = first or rows


def _around(spec: ModelSpec) -> dict[str, str]:
    """Return the choices outside the layers, except unused ones."""
    several = len({*spec.layers.names(spec.num_layers)}) > 1 or spec.layers.shared
    rows = {"arrangement": summaries.arrangement(spec.layers)} if several else {}
    for field, value in summaries.model_words(spec).items():
        text = f"{value:,}" if isinstance(value, int) else value
        text = text if isinstance(text, str) else summaries.brief(text)
        if text not in ("", "none"):
            rows[summaries.name_of(field)] = text
    return rows


def _sources(blame: Mapping[str, Origin], file: str) -> dict[str, str]:
    """Return the cited sources of single values, by path."""
    sources = {}
    for origin in blame.values():
        kind = blame.get(f"{origin.stated_for}.kind")
        # A source of a kind does not apply to another kind chosen instead.
        if origin.stated_for and (kind is None or kind.stated_for):
            place = "" if origin.file == file else f" ({origin.file})"
            sources[origin.stated_for] = origin.source + place
    return sources


def _parameters(counts: Counts) -> dict[str, str]:
    rows = {
        part_title(part): f"{count(number):>6}  {100 * number / counts.total:3.0f} %"
        for part, number in counts.parts.items()
    }
    rows["all"] = f"{count(counts.total):>6}"
    if counts.active != counts.total:
        rows["active"] = f"{count(counts.active):>6}  per token"
    return rows


def _section(title: str, rows: Mapping[str, str]) -> Iterator[str]:
    if rows:
        yield from ("", title)
        yield from _rows(rows)


def _rows(rows: Mapping[str, str]) -> Iterator[str]:
    """Yield names and wrapped texts in two columns."""
    if rows:
        lines = columns([*rows.items()], wrapped=(1,), width=terminal_width() - 2, first_width=12)
        yield from (f"  {line}".rstrip() for line in lines)
