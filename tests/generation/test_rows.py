"""Texts side by side are the texts that each prompt has alone."""

from typing import Any

import pytest

from archwright.generation.writing import Generated, Request, generate, generate_each, stream
from archwright.model import build
from archwright.runs import RunFolder
from archwright.runs.load import OpenRun
from archwright.spec.errors import UserError
from archwright.spec.read import load
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe import raw_bytes
from archwright.text.tokenizer import Tokenizer

END = "<|endoftext|>"
PROMPTS = ["ab", "hello world this is", "", "the end of a long text"]
SETTINGS: dict[str, Any] = {"max_new_tokens": 30, "seed": 3, "top_p": 0.9}
PRESETS = {
    "modern": (),
    "window": ("attention.mask.kind=window", "attention.mask.size=5"),
    "gemma-3-27b": (),
    "hybrid-3-1": (),
    "gated-deltanet": (),
    "textbook": (),
}


def opened(preset: str, *words: str) -> OpenRun:
    """Return a model with a context of 24 tokens, in float64, whose texts differ."""
    tokenizer = Tokenizer(raw_bytes([END]), END)
    spec = load(preset).tiny().override("context_length=24", *words)
    model = build(spec, vocab_size=tokenizer.vocab_size, seed=1).double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(2)
    return OpenRun(RunFolder("none"), RunSpec(model=model.spec), model, tokenizer)


@pytest.fixture(scope="module")
def run() -> OpenRun:
    return opened("modern")


@pytest.mark.parametrize("name", PRESETS)
def test_prompts_of_unequal_length(name: str) -> None:
    """Beyond the context, too, at which each text restarts by itself."""
    run = opened("modern" if name == "window" else name, *PRESETS[name])
    alone = [generate(run, prompt, **SETTINGS) for prompt in PROMPTS]
    assert generate(run, PROMPTS, **SETTINGS) == alone
    assert generate(run, PROMPTS[::-1], batch_size=3, **SETTINGS) == alone[::-1]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_repetition_counts_in_each_text_alone(run: OpenRun, temperature: float) -> None:
    settings = SETTINGS | {"repetition_penalty": 1.5, "temperature": temperature, "top_p": None}
    assert generate(run, PROMPTS, **settings) == [generate(run, p, **settings) for p in PROMPTS]


def test_sample_i_has_the_seed_plus_i(run: OpenRun) -> None:
    found = generate(run, PROMPTS[1:3], num_samples=3, **SETTINGS)
    seeds = [SETTINGS | {"seed": SETTINGS["seed"] + i} for i in range(3)]
    assert found == [generate(run, p, **settings) for p in PROMPTS[1:3] for settings in seeds]
    assert len({text.text for text in found}) == 6
    assert generate(run, PROMPTS[1], num_samples=1, **SETTINGS) == found[:1]


def test_a_prompt_is_read_once_for_all_samples(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    hidden = run.model.hidden

    def seen(tokens: Any, **settings: Any) -> Any:
        shapes.append(tuple(tokens.shape))
        return hidden(tokens, **settings)

    monkeypatch.setattr(run.model, "hidden", seen)
    generate(run, "hello", num_samples=4, max_new_tokens=3)
    assert shapes == [(1, 6), (4, 1), (4, 1)]


def test_texts_end_at_different_times_for_different_reasons(run: OpenRun) -> None:
    """A stop string, a limit, none at all; each with settings of its own."""
    plain = generate(run, "ab", **SETTINGS)
    stop = plain.text[4:7]
    asked = [
        Request("ab", None, {**SETTINGS, "stop": stop}),
        Request("ab", None, {**SETTINGS, "max_new_tokens": 2}),
        Request("hello", None, {**SETTINGS, "max_new_tokens": 0}),
        Request("ab", None, SETTINGS),  # type: ignore[arg-type]
    ]
    stopped, short, empty, whole = generate_each(run, asked)
    assert (stopped.text, stopped.finish_reason) == (plain.text[: plain.text.index(stop)], "stop")
    assert (short.tokens, short.finish_reason) == (plain.tokens[:2], "length")
    assert (empty.text, empty.tokens, empty.finish_reason) == ("", [], "length")
    assert whole == plain
    assert stopped == generate(run, "ab", stop=stop, **SETTINGS)


def test_a_model_without_a_cache_reads_texts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened("modern")
    short = SETTINGS | {"max_new_tokens": 4}
    expected = generate(run, PROMPTS[:3], **short)
    monkeypatch.setattr(type(run.model), "can_cache", False)
    assert generate(run, PROMPTS[:3], **short) == expected
    long = SETTINGS | {"max_new_tokens": 40}
    assert generate(run, PROMPTS, **long) == [generate(run, p, **long) for p in PROMPTS]


ENCODER = ("encoder.kind=stack", "encoder.num_layers=1", "cross_attention.kind=softmax")


def test_sources_are_answered_by_sampling_as_each_is_alone() -> None:
    run = opened("modern", *ENCODER)
    sources = ["one", "a longer source", "two"]
    alone = [generate(run, "x", source=source, **SETTINGS) for source in sources]
    assert generate(run, "x", source=sources, **SETTINGS) == alone
    beams = [generate(run, source=source, num_beams=3, max_new_tokens=5) for source in sources]
    assert generate(run, source=sources, num_beams=3, max_new_tokens=5) == beams
    pairs = generate(run, ["x", "y", "z"], source=sources, **SETTINGS)
    assert pairs[0] == alone[0]
    with pytest.raises(UserError, match="source: found 3 for 2 prompts; expected one for each"):
        generate(run, ["x", "y"], source=sources)


def test_a_result_names_its_parts_and_prints_as_text(run: OpenRun) -> None:
    found = generate(run, "ab", **SETTINGS)
    assert isinstance(found, Generated)
    assert str(found) == found.prompt + found.text == "ab" + "".join(stream(run, "ab", **SETTINGS))
    assert found.num_prompt_tokens == 3
    assert len(found.tokens) == 30
    assert found.text == run.tokenizer.decode(found.tokens)
    timings = found.timings
    assert (timings.prefill_tokens, timings.decode_tokens) == (3, 29)
    assert timings.prefill_seconds > 0 < timings.decode_seconds
    assert generate(run, []) == []


def test_a_stream_has_a_result_at_any_time(run: OpenRun) -> None:
    parts = stream(run, "ab", **SETTINGS)
    begun = next(parts) + next(parts)
    assert (parts.result.text, parts.result.finish_reason) == (begun, "interrupted")
    assert begun + "".join(parts) == generate(run, "ab", **SETTINGS).text
    assert parts.result == generate(run, "ab", **SETTINGS)


@pytest.mark.filterwarnings("ignore:prompt. found 41 tokens")
def test_a_prompt_beyond_the_context(run: OpenRun) -> None:
    with pytest.warns(
        UserWarning, match="41 tokens; the model's context is 24, so it reads the last 24"
    ):
        long = generate(run, "x" * 40, **SETTINGS)
    assert generate(run, ["a", "x" * 40], **SETTINGS)[1] == long


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_samples": 0}, "num_samples: found 0; expected 1 to 1,024"),
        ({"num_samples": 2, "temperature": 0.0}, "num_samples: found 2 with temperature = 0"),
        ({"num_samples": 2, "num_beams": 3}, "num_samples: found 2 with num_beams = 3"),
        ({"min_p": 1.5}, r"min_p: found 1\.5; expected 0 \(all\) to 1"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty: found 0\.0; expected 1e-3 to 1e3"),
        ({"stop": ["a", ""]}, "stop: found ''; expected a text of one character or more"),
        ({"stop": [3]}, "stop: found 3"),
        (
            {"temprature": 1},
            'temprature: not a setting of text generation. Did you mean "temperature"',
        ),
        ({"source": "abc"}, "source: found one; the model has no encoder"),
    ],
    ids=str,
)
def test_mistakes(run: OpenRun, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        generate(run, "ab", **settings)
