"""Greedy and beam output beside transformers' generate, in models of the same weights."""

from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archwright import hf
from archwright.generation.beams import Search, beam_search_many
from archwright.generation.reader import Reader
from archwright.model.model import Decoder
from tests.hf.library import ENTRIES, batch, build, inputs, logits, randomise, save, transformers
from tests.hf.test_parity import REFUSED

TWO_STACKS = sorted(
    name
    for name, entry in ENTRIES.items()
    if "task" not in entry
    and name not in REFUSED
    and entry["model_type"]
    in transformers.models.auto.modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
)
"""Every entry of an encoder and a decoder."""
DECODERS = sorted(
    name
    for name, entry in ENTRIES.items()
    if "task" not in entry and name not in {*TWO_STACKS, *REFUSED, "xlnet"}
)
"""Every entry of a decoder alone; XLNet sees what follows, as it was trained on permutations."""
READ_WHOLE = {
    "reformer": "the library's cache sorts new tokens into buckets of other sizes than a whole text has",
    "mamba2_clamped": "the library bounds the steps of whole texts, and not those behind its cache",
    "roberta_lm": "the library's generate counts positions from 0, and its model from behind the padding token",
}
"""Entries whose text the library's model reads whole for each token, each with its reason."""
WITHOUT_CACHE = {
    "umt5": "the library's cache has a layer for each of the encoder",
    "fsmt": "the library has no causal mask beside a cache",
    "fsmt_tied": "the library has no causal mask beside a cache",
}
"""Entries of which the library reads the whole text for each token, each with its reason."""

START = 3
"""What a decoder reads first."""
MAX_TOKENS = 12
LENGTHS = (5, 11, 8)
"""Tokens of the sources of a batch."""
CLOSE = 1e-4
"""Two scores that are nearer may change places by rounding."""
MOST_CLOSE = 1 / 200
"""Share of steps that may be so."""


class Models:
    """A published model, and the same model here."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.theirs = causal(levelled(randomise(build(name))))
        self.ours: Decoder = hf.load(save(self.theirs, folder)).model
        # What a config forces would say nothing of the models.
        self.theirs.generation_config = transformers.GenerationConfig()
        sizes = [spec.vocab_size for spec in (self.ours.spec, self.ours.spec.encoder_model) if spec]
        self.num_tokens = min(int(size) for size in sizes)

    def sources(self, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        read = self.ours.spec.encoder_model or self.ours.spec
        both = min(int(read.vocab_size), self.num_tokens)  # a source begins what is written, too
        return [torch.randint(4, both, (n,), generator=generator) for n in LENGTHS]

    def stops(self, prompt: Tensor, sources: list[Tensor] | None, seed: int) -> list[int]:
        """Draw tokens that end a text among those that are likely after a prompt, so that some texts end."""
        with torch.no_grad():
            logits = Reader(self.ours, sources).read_rows(prompt.expand(len(sources or [0]), -1))
        likely = logits[0].topk(12).indices[1:]
        generator = torch.Generator().manual_seed(seed)
        return likely[torch.randperm(len(likely), generator=generator)[:4]].tolist()

    def written(
        self, prompt: Tensor, sources: list[Tensor], stops: list[int], **settings: Any
    ) -> list[list[int]]:
        """Return what the library writes to sources of different lengths, side by side."""
        rows = nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=1)
        lengths = torch.tensor([len(source) for source in sources])
        real = torch.arange(rows.shape[1]) < lengths[:, None]
        given = inputs(self.theirs, rows, real)  # also what is global, where a model is told
        del given["decoder_input_ids"], given["use_cache"]
        found = self.theirs.generate(  # type: ignore[operator]
            **given,
            decoder_start_token_id=START,
            decoder_input_ids=prompt.expand(len(sources), -1),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=stops,
            pad_token_id=1,
            use_cache=self.name not in WITHOUT_CACHE,
            **settings,
        )
        return [_until(row, stops) for row in found[:, len(prompt) :].tolist()]


@torch.no_grad()
def levelled(model: nn.Module) -> nn.Module:
    """Take from a bias of logits, where there is one, what all texts have in common, or one token would be the
    likeliest everywhere; and undo a division of logits by sqrt(width), by which scores are near one another."""
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias -= logits(model, *batch(model)).flatten(0, 1).mean(0)
    if model.config.model_type == "switch_transformers":
        model.decoder.final_layer_norm.weight *= model.config.d_model**0.5  # type: ignore[union-attr,operator]
    return model


def causal(model: nn.Module) -> nn.Module:
    """Let FSMT's decoder see no later tokens in `generate`, either: its class makes a causal mask where it gets the
    tokens of a source alone, which `generate` has read before. Their values do not matter then."""
    forward = model.forward
    if model.config.model_type != "fsmt":
        return model

    @wraps(forward)
    def masked(*, input_ids: Tensor | None = None, **given: Any) -> Any:
        return forward(
            input_ids=given["decoder_input_ids"] if input_ids is None else input_ids, **given
        )

    model.forward = masked
    return model


def _until(tokens: list[int], stops: list[int]) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0]] if ends else tokens


@pytest.fixture(scope="module", params=TWO_STACKS)
def two_stacks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(request.param, tmp_path_factory.mktemp(request.param))


class Watch:
    """Counts the steps of a search in which scores that decide are nearly equal."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps, self.close = 0, 0
        longer = Search._longer

        def watched(search: Search, log_p: Tensor) -> Any:
            found = longer(search, log_p)
            scores = [beam.score for _, beam in found]
            kept = search.limits.num_beams
            self.steps += 1
            self.close += scores[0] - scores[1] < CLOSE or scores[kept - 1] - scores[kept] < CLOSE
            return found

        patch.setattr(Search, "_longer", watched)


BEAMS: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 2, "length_penalty": 1.0},
    {"num_beams": 4, "length_penalty": 0.0},
    {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 5, "length_penalty": 0.6, "early_stopping": "never"},
    {"num_beams": 3, "length_penalty": -1.0, "early_stopping": "never"},
]


def test_beams_find_what_those_of_the_published_implementation_find(
    two_stacks: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one beam, which is greedy: of sources of different lengths, texts that end and that do not."""
    watch, written, wrong = Watch(monkeypatch), [], []
    for seed, settings in enumerate(BEAMS):
        sources = two_stacks.sources(seed)
        prompt = torch.cat((torch.tensor([START]), sources[-1][:seed]))
        stops, before = two_stacks.stops(prompt, sources, seed), watch.close
        found = beam_search_many(
            two_stacks.ours, prompt, sources, max_new_tokens=MAX_TOKENS, stop=stops, **settings
        )
        expected = two_stacks.written(prompt, sources, stops, **settings)
        written += found
        if found != expected and watch.close == before:
            wrong.append((settings, found, expected))
    assert not wrong
    ends = {len(tokens) == MAX_TOKENS for tokens in written}
    assert ends == {True, False}, "the comparison would say nothing of texts that end"
    assert len(set(map(tuple, written))) > 2
    COUNTED.append((watch.close, watch.steps))


COUNTED: list[tuple[int, int]] = []
"""Of each family that was compared: steps whose scores are close, and all."""


def test_steps_whose_scores_are_close_are_few() -> None:
    close, steps = (sum(numbers) for numbers in zip((0, 0), *COUNTED, strict=True))
    assert close <= max(2, MOST_CLOSE * steps)


def read_whole(theirs: nn.Module, prompt: Tensor) -> list[int]:
    """Return the likeliest tokens behind a prompt, of which the whole text is read each time."""
    text = prompt
    for _ in range(MAX_TOKENS):
        with torch.no_grad():
            text = torch.cat((text, theirs(text[None]).logits[0, -1:].argmax(-1)))
    return text[len(prompt) :].tolist()


@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_take_the_tokens_that_the_published_implementation_takes(
    name: str, tmp_path: Path
) -> None:
    models = Models(name, tmp_path)
    reader, close = Reader(models.ours), 0
    prompt = models.sources(0)[1]
    if name in READ_WHOLE:
        expected = read_whole(models.theirs, prompt)
    else:
        expected = models.theirs.generate(  # type: ignore[operator]
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=models.num_tokens - 1,
            pad_token_id=1,
        )[0, len(prompt) :].tolist()
    read = prompt
    for token in expected:
        with torch.no_grad():
            best = reader.read(read).log_softmax(-1).topk(2)
        if best.values[0] - best.values[1] < CLOSE:
            close += 1
        else:
            assert int(best.indices[0]) == token
        read = torch.tensor([token])
    assert close <= 1


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_beams_go_on_with_a_prompt_as_the_published_implementation_does(
    name: str, tmp_path: Path
) -> None:
    models = Models(name, tmp_path)
    for seed, settings in enumerate(BEAMS[1:]):
        prompt = models.sources(seed)[0]
        stops = models.stops(prompt, None, seed)
        expected = models.theirs.generate(  # type: ignore[operator]
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=stops,
            pad_token_id=1,
            **settings,
        )[0, len(prompt) :].tolist()
        found = beam_search_many(
            models.ours, prompt, None, max_new_tokens=MAX_TOKENS, stop=stops, **settings
        )
        assert found == [_until(expected, stops)]
