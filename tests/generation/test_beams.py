"""Beam search against all texts there are, and its cache against reading each text anew."""

import itertools

import pytest
import torch

from archwright.generation.beams import Limits, Search, beam_search, beam_search_many
from archwright.generation.reader import Reader
from archwright.generation.sampling import sample
from archwright.model import build
from archwright.model.model import Decoder
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

PROMPT = torch.tensor([3, 1, 4])
SOURCE = torch.tensor([2, 4, 1, 0, 3, 3])
SHAPE = ("attention.num_heads=2", "attention.num_kv_heads=1")
MODELS = {
    "decoder": (),
    "window": ("attention.mask.kind=window", "attention.mask.size=3"),
    "two stacks": ("encoder.kind=stack", "encoder.num_layers=1", "cross_attention.kind=softmax"),
}


@pytest.fixture(params=[*MODELS])
def model(request: pytest.FixtureRequest) -> Decoder:
    spec = ModelSpec(dim=16, num_layers=2, vocab_size=5, context_length=16)
    found = build(spec.override(*SHAPE, *MODELS[request.param]), seed=2)
    with torch.no_grad():
        found.head.weight.mul_(20)
    return found.eval()


def source(model: Decoder) -> torch.Tensor | None:
    return None if model.spec.encoder.is_none else SOURCE


def sources(model: Decoder) -> list[torch.Tensor] | None:
    return None if model.spec.encoder.is_none else [SOURCE]


def log_p(model: Decoder, text: tuple[int, ...]) -> float:
    """Return the sum of log p of a text, read as a whole."""
    tokens = torch.cat((PROMPT, torch.tensor(text)))[None]
    inputs = (tokens,) if source(model) is None else (SOURCE[None], tokens)
    p = model(*inputs).logits[0].double().log_softmax(-1)
    return sum(float(p[len(PROMPT) - 1 + i, token]) for i, token in enumerate(text))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 3.0])
@torch.no_grad()
def test_with_beams_enough_the_best_text_of_all_is_found(
    model: Decoder, length_penalty: float
) -> None:
    """Of all texts of up to 3 tokens, where token 0 ends one."""
    texts = [
        (*begin, last)
        for n in range(3)
        for begin in itertools.product(range(1, 5), repeat=n)
        for last in (range(5) if n == 2 else (0,))
    ]
    best = max(texts, key=lambda text: log_p(model, text) / len(text) ** length_penalty)
    found = beam_search(
        model,
        PROMPT,
        source=source(model),
        max_new_tokens=3,
        num_beams=125,
        length_penalty=length_penalty,
        stop=0,
    )
    assert found == [token for token in best if token]


@pytest.mark.parametrize(
    "settings",
    [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 4, "early_stopping": True}],
    ids=["greedy", "beams", "stopping early"],
)
def test_sources_side_by_side_are_answered_as_each_is_alone(settings: dict[str, int]) -> None:
    """Of different lengths, with answers that end at different times."""
    shape = ("encoder.kind=stack", "encoder.num_layers=1", "cross_attention.kind=softmax")
    spec = ModelSpec(dim=16, num_layers=2, vocab_size=9, context_length=16)
    model = build(spec.override(*SHAPE, *shape), seed=2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3)
    sources = [torch.tensor(row) for row in ([2, 4, 1, 0, 3, 3], [5], [8, 7, 6], [1, 5])]
    given = {"max_new_tokens": 9, "stop": 6, **settings}
    alone = [beam_search(model, PROMPT, source=source, **given) for source in sources]
    assert beam_search_many(model, PROMPT, sources, **given) == alone
    assert len({len(answer) for answer in alone}) > 1


@pytest.mark.parametrize(
    ("p", "penalty", "expected"),
    [((0.3, 0.5, 0.2), 3.0, (2, 12, 12)), ((0.4, 0.4, 0.2), 1.0, (2, 2, 12))],
)
def test_when_a_search_is_over(
    p: tuple[float, ...], penalty: float, expected: tuple[int, ...]
) -> None:
    """With a penalty by which longer texts gain, as long as one hopes."""
    log_p, lengths = torch.tensor(p).log(), []
    for early_stopping in (True, False, "never"):
        search = Search(Limits(12, 2, penalty, early_stopping, frozenset({0})))
        while search.running:
            search.take(log_p.expand(len(search.running), -1))
        lengths.append(search.length)
    assert tuple(lengths) == expected


def test_one_beam_takes_the_likeliest_token(model: Decoder) -> None:
    given = {"source": source(model), "max_new_tokens": 30}  # beyond the context, too
    expected = [*sample(model, PROMPT, temperature=0.0, **given)]
    assert beam_search(model, PROMPT, num_beams=1, **given) == expected


@torch.no_grad()
def test_rows_that_change_places_go_on_as_their_texts_do(model: Decoder) -> None:
    reader = Reader(model, sources(model))
    reader.read_rows(PROMPT[None])
    reader.reorder(torch.zeros(3, dtype=torch.long))
    reader.read_rows(torch.tensor([[0], [1], [2]]))
    reader.reorder(torch.tensor([2, 2, 0, 1]))
    texts = [[2, 0], [2, 1], [0, 2], [1, 3]]
    found = reader.read_rows(torch.tensor([text[1:] for text in texts]))
    for row, text in zip(found, texts, strict=True):
        alone = Reader(model, sources(model)).read(torch.cat((PROMPT, torch.tensor(text))))
        torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-4)


def test_a_vocabulary_rounded_up_has_rows_without_a_token(model: Decoder) -> None:
    given = {"source": source(model), "max_new_tokens": 8, "num_beams": 3}
    assert max(beam_search(model, PROMPT, num_tokens=2, **given)) < 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_beams": 0}, "num_beams: found 0; expected 1 to 1,024"),
        ({"length_penalty": float("nan")}, "length_penalty: found nan; expected -10 to 10"),
        ({"max_new_tokens": -1}, "max_new_tokens: found -1; expected 0 or more"),
    ],
)
def test_settings_out_of_their_limits(settings: dict[str, float], said: str) -> None:
    model = build(ModelSpec(dim=16, num_layers=1, vocab_size=5).override(*SHAPE))
    with pytest.raises(UserError) as caught:
        beam_search(model, PROMPT, **({"num_beams": 2, "max_new_tokens": 3} | settings))
    assert caught.value.lines == (said,)
