"""From prompt to text: whole characters, the end-of-text token, and what one call gives at once."""

from collections.abc import Iterator

import pytest
import torch

from archwright.generation import writing
from archwright.generation.beams import beam_search
from archwright.generation.writing import generate, stream
from archwright.model import build
from archwright.model.model import Decoder
from archwright.runs import RunFolder
from archwright.runs.load import OpenRun
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe import raw_bytes
from archwright.text.tokenizer import Tokenizer

END = "<|endoftext|>"


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(raw_bytes([END]), END)


@pytest.fixture
def run(model: Decoder, tokenizer: Tokenizer) -> OpenRun:
    return OpenRun(RunFolder("none"), RunSpec(model=model.spec), model, tokenizer)


@pytest.fixture
def model(tokenizer: Tokenizer) -> Decoder:
    spec = ModelSpec(dim=16, num_layers=1, context_length=8).override("attention.num_heads=2")
    return build(spec, vocab_size=tokenizer.vocab_size)


def dictate(monkeypatch: pytest.MonkeyPatch, text: bytes) -> list[list[int]]:
    """Let the model say these bytes; return what it was shown."""
    shown: list[list[int]] = []

    def said(model: object, prompt: torch.Tensor, **settings: object) -> Iterator[int]:
        shown.append(prompt.tolist())
        return iter(text)

    monkeypatch.setattr(writing, "sample", said)
    return shown


def test_characters_come_whole(
    run: OpenRun, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dictate(monkeypatch, "né€😀!".encode())
    assert [part for part in stream(run) if part] == ["n", "é", "€", "😀", "!"]


def test_broken_characters_come_at_the_end_or_when_they_are_passed(
    run: OpenRun, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dictate(monkeypatch, b"a\xffb\xe2\x82")
    assert "".join(stream(run)) == "a\ufffdb\ufffd"


def test_the_model_reads_end_of_text_first(
    run: OpenRun, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = dictate(monkeypatch, b"")
    list(stream(run))
    list(stream(run, "hé"))
    assert shown == [[tokenizer.end_of_text], [tokenizer.end_of_text, *"hé".encode()]]


def test_end_of_text_ends_and_is_not_shown(
    run: OpenRun, model: Decoder, tokenizer: Tokenizer
) -> None:
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.weight[tokenizer.end_of_text] = 1e3 * torch.sign(
            model(torch.tensor([[tokenizer.end_of_text]])).logits.new_ones(16)
        )
        model.norm.weight.fill_(0.0)
    # With all logits equal, the first token, 0, is the likeliest, and never the end.
    assert "".join(stream(run, temperature=0.0, max_new_tokens=3)) == "\0\0\0"


def test_generate_begins_with_its_prompt(run: OpenRun) -> None:
    text = str(generate(run, "ab", max_new_tokens=6, seed=4))
    assert text.startswith("ab")
    assert text == "ab" + "".join(stream(run, "ab", max_new_tokens=6, seed=4))
    assert str(generate(run, "ab", max_new_tokens=0)) == "ab"


def test_mistakes_are_said_at_once(run: OpenRun) -> None:
    with pytest.raises(UserError, match="top_k: found -3"):
        stream(run, top_k=-3)
    with pytest.raises(
        UserError,
        match=r'^max_tokens: not a setting of text generation\. Did you mean "max_new_tokens"',
    ):
        stream(run, max_tokens=3)  # type: ignore[call-arg]


def test_beams_write_the_likeliest_text_at_once(
    run: OpenRun, model: Decoder, tokenizer: Tokenizer
) -> None:
    alone, beams = (
        "".join(stream(run, "ab", max_new_tokens=5, num_beams=number, **settings))
        for number, settings in ((1, {"temperature": 0.0}), (3, {"length_penalty": 1.0}))
    )
    prompt = torch.tensor([tokenizer.begin_of_text, *b"ab"])
    given = {"max_new_tokens": 5, "stop": tokenizer.stop_ids, "num_tokens": tokenizer.vocab_size}
    found = beam_search(model, prompt, num_beams=3, **given)
    assert beams == tokenizer.decode(found)
    assert alone == tokenizer.decode(beam_search(model, prompt, num_beams=1, **given))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"num_beams": 4, "temperature": 0.5},
            "temperature: found 0.5 with num_beams = 4, which draws nothing; expected one of them",
        ),
        (
            {"length_penalty": 2.0},
            "length_penalty: found 2.0 with num_beams = 1, which ignores it; expected num_beams of 2 or more",
        ),
    ],
)
def test_beams_and_draws_are_not_asked_for_at_once(
    run: OpenRun, settings: dict[str, float], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        stream(run, **settings)
    assert caught.value.lines == (said,)
