"""Models of two stacks: against torch's own, and by what each token may see."""

import pytest
import torch
from torch import Tensor, nn

from archwright.generation.sampling import sample
from archwright.model.build import build, build_layer
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.planning.cost import counts_of
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from tests.sentences import Sentences, lines_of

TWO_STACKS = (
    *("encoder.kind=stack", "encoder.num_layers=3", "cross_attention.kind=softmax"),
    *("dim=64", "num_layers=2", "vocab_size=128", "context_length=32", "attention.num_heads=4"),
    *("encoder.attention.num_heads=4", "cross_attention.num_heads=4", "feedforward.hidden_dim=96"),
    "encoder.feedforward.hidden_dim=96",
)
KERNELS = ("eager", "sdpa", "blockwise", "flex")


def spec(*keys: str, base: str = "modern") -> ModelSpec:
    return load(base).override(*TWO_STACKS).override(*keys)


def made(*keys: str, base: str = "modern") -> EncoderDecoder:
    """Return a model whose weights are large enough that each detail shows."""
    model = build(spec(*keys, base=base), seed=1)
    assert isinstance(model, EncoderDecoder)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(p + 0.3 * noise if p.ndim == 1 else 1.5 * noise / p.shape[-1] ** 0.5)
    return model.eval()


def texts(rows: int = 3, source: int = 11, target: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    draw = (torch.randint(128, (rows, n), generator=generator) for n in (source, target))
    return tuple(draw)  # type: ignore[return-value]


@pytest.mark.parametrize("norm_first", [False, True])
def test_it_is_torchs_transformer(norm_first: bool) -> None:
    """The model of 2017, section 3: layers with biases, a norm behind each branch, or before it."""
    wiring = "pre" if norm_first else "post"
    keys = [f"{at}attention.bias=true" for at in ("", "encoder.")]
    keys += [f"{at}residual.kind={wiring}" for at in ("", "encoder.")]
    keys += [f"{at}norm.kind=layer" for at in ("", "encoder.")]
    keys += [f"{at}feedforward.kind=relu" for at in ("", "encoder.")]
    keys += [f"{at}feedforward.bias=true" for at in ("", "encoder.")]
    keys += [f"{at}feedforward.hidden_dim=96" for at in ("", "encoder.")]
    keys += [f"{at}position.kind=none" for at in ("", "encoder.")]
    keys += ["cross_attention.bias=true", "embedding.scale=sqrt_dim", "attention.num_kv_heads=4"]
    keys += ["encoder.attention.num_kv_heads=4", "head.tied=true"]
    ours = made(*keys).double()
    options = {"batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
    layer = nn.TransformerEncoderLayer(64, 4, 96, 0.0, **options)  # type: ignore[arg-type]
    norm = nn.LayerNorm(64, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False)
    theirs = nn.Transformer(64, 4, 3, 2, 96, 0.0, custom_encoder=encoder, **options).eval()  # type: ignore[arg-type]
    if not norm_first:  # of 2017 there is no norm behind the last layer
        theirs.encoder.norm = theirs.decoder.norm = nn.Identity()
    state = dict(_as_torch(ours, norm_first))
    theirs.load_state_dict(state)
    source, target = texts()
    scale = 64**0.5
    causal = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    read = theirs(
        scale * ours.embedding.weight[source],
        scale * ours.embedding.weight[target],
        tgt_mask=causal,
    )
    logits = ours(source, target).logits
    assert logits.std() > 0.5
    torch.testing.assert_close(logits, read @ ours.embedding.weight.T, rtol=0, atol=1e-9)


def _as_torch(model: EncoderDecoder, norm_first: bool) -> "list[tuple[str, Tensor]]":
    """Return our weights by torch's names."""
    found: list[tuple[str, Tensor]] = []
    for side, layers in (("encoder", model.encoder.stack), ("decoder", model.stack)):
        for i, layer in enumerate(layers):
            at = f"{side}.layers.{i}."
            branches = [("self_attn", "attention")]
            branches += [("multihead_attn", "cross_attention")] * (side == "decoder")
            norms = [name for _, name in branches] + ["feedforward"]
            for n, name in enumerate(norms, start=1):
                norm = layer.get_submodule(f"residual.norms.{name}")
                found += [(f"{at}norm{n}.{k}", v) for k, v in norm.named_parameters()]
            for theirs, name in branches:
                part = layer.get_submodule(name)
                maps = [part.get_submodule(m) for m in ("query", "key", "value")]
                found.append((f"{at}{theirs}.in_proj_weight", torch.cat([m.weight for m in maps])))
                found.append((f"{at}{theirs}.in_proj_bias", torch.cat([m.bias for m in maps])))
                found += [
                    (f"{at}{theirs}.out_proj.{k}", v)
                    for k, v in part.get_submodule("out").named_parameters()
                ]
            for theirs, name in (("linear1", "up"), ("linear2", "down")):
                part = layer.get_submodule(f"feedforward.{name}")
                found += [(f"{at}{theirs}.{k}", v) for k, v in part.named_parameters()]
    if norm_first:
        for side, norm in (("encoder", model.encoder.norm), ("decoder", model.norm)):
            found += [(f"{side}.norm.{k}", v) for k, v in norm.named_parameters()]
    return found


SHAPES = [
    pytest.param((), id="modern"),
    pytest.param(("cross_attention.num_kv_heads=2", "cross_attention.qk_norm.kind=rms"), id="gqa"),
    pytest.param(
        ("encoder.dim=48", "encoder.embeddings=own", "encoder.vocab_size=128", "head.tied=true"),
        id="narrow",
    ),
    pytest.param(("position.kind=t5", "encoder.position.kind=t5"), id="t5"),
    pytest.param(("position.kind=learned", "encoder.position.kind=learned"), id="learned"),
    pytest.param(("residual.kind=parallel", "encoder.residual.kind=sandwich"), id="parallel"),
]


@pytest.mark.parametrize("keys", SHAPES)
class TestLaws:
    def test_kernels_agree(self, keys: tuple[str, ...]) -> None:
        model = made(*keys)
        source, target = texts()
        first = model.use_kernel("eager")(source, target).logits
        for kernel in KERNELS[1:]:
            found = model.use_kernel(kernel)(source, target).logits
            torch.testing.assert_close(found, first, rtol=1e-4, atol=1e-4)

    def test_cached_is_uncached(self, keys: tuple[str, ...]) -> None:
        model = made(*keys)
        source, target = texts()
        whole, cache = model(source, target).logits, model.new_cache()
        parts = [(source, target[:, :3]), (None, target[:, 3:4]), (None, target[:, 4:])]
        read = torch.cat([model(s, t, cache=cache).logits for s, t in parts], 1)
        torch.testing.assert_close(read, whole, rtol=1e-4, atol=1e-4)
        source_kv = model.layers[0].mixers()["cross_attention"].state_bytes(11, 4)  # type: ignore[operator]
        assert cache.num_bytes >= 2 * 3 * source_kv

    def test_padding_of_either_side_changes_nothing(self, keys: tuple[str, ...]) -> None:
        model = made(*keys)
        source, target = texts()
        whole = model(source, target).logits
        for left in (0, 2):
            padded, mask = _padded(source, left, 3)
            answers, answered = _padded(target, left, 3)
            found = model(padded, answers, padding_mask=mask, decoder_padding_mask=answered).logits
            torch.testing.assert_close(found[:, left : left + 7], whole, rtol=1e-4, atol=1e-4)
            assert found.isfinite().all()

    def test_packed_is_alone(self, keys: tuple[str, ...]) -> None:
        model = made(*keys)
        source, target = texts(2)
        segments = [torch.arange(2).repeat_interleave(n)[None] for n in (11, 7)]
        found = model(
            source.reshape(1, -1),
            target.reshape(1, -1),
            segment_ids=segments[0],
            decoder_segment_ids=segments[1],
        ).logits
        whole = model(source, target).logits
        torch.testing.assert_close(found.view(2, 7, -1), whole, rtol=1e-4, atol=1e-4)

    def test_a_token_sees_the_whole_source_and_what_was_before_it(
        self, keys: tuple[str, ...]
    ) -> None:
        model = made(*keys)
        source, target = texts(1)
        first = model(source, target).logits
        for i in range(11):
            changed = source.clone()
            changed[:, i] = (changed[:, i] + 1) % 128
            differs = (model(changed, target).logits != first).any(-1)[0]
            assert differs.all()
        for i in range(7):
            changed = target.clone()
            changed[:, i] = (changed[:, i] + 1) % 128
            differs = ((model(source, changed).logits - first).abs() > 1e-4).any(-1)[0]
            assert differs.tolist() == [t >= i for t in range(7)]

    def test_parameters_are_those_of_the_closed_form(self, keys: tuple[str, ...]) -> None:
        from archwright.catalogue.parameter_counts import parameter_counts

        counted, model = counts_of(spec(*keys)), made(*keys)
        assert counted == parameter_counts(spec(*keys))
        assert counted.total == sum(p.numel() for p in model.parameters())
        assert {"cross-attention", "encoder"} <= counted.parts.keys()


def _padded(tokens: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
    rows = tokens.new_full((len(tokens), left + tokens.shape[1] + right), 5)
    rows[:, left : left + tokens.shape[1]] = tokens
    mask = torch.zeros_like(rows, dtype=torch.bool)
    mask[:, left : left + tokens.shape[1]] = True
    return rows, mask


def test_what_is_missing_is_asked_for() -> None:
    model = made()
    source, target = texts()
    with pytest.raises(UserError, match="decoder_tokens: found none; a model with an encoder"):
        model(source)
    with pytest.raises(UserError, match="tokens: found no source, and the cache has read none"):
        model(None, target, cache=model.new_cache())
    with pytest.raises(UserError, match="the encoder's output is read by this layer"):
        build_layer(spec())(torch.zeros(1, 4, 64))


@pytest.mark.parametrize("words", lines_of("encoders"))
def test_stacks_that_do_not_fit_are_refused(words: str, sentences: Sentences) -> None:
    with pytest.raises(UserError) as caught:
        spec(*words.split()).resolved()
    sentences.check("encoders", words, caught.value.lines)


def test_an_encoder_reads_both_sides_unless_its_mask_says_otherwise() -> None:
    assert spec().resolved().encoder.attention.mask.kind == "full"  # type: ignore[attr-defined]
    whole = spec("encoder.attention.kind=softmax").resolved()
    assert whole.encoder.attention.mask.kind == "full"  # type: ignore[attr-defined]
    window = spec("encoder.attention.mask.kind=symmetric_window").resolved()
    assert window.encoder.attention.mask.kind == "symmetric_window"  # type: ignore[attr-defined]


def test_both_stacks_are_scaled_down() -> None:
    tiny = spec("encoder.attention.head_dim=32", "encoder.num_layers=12", "num_layers=12").tiny()
    encoder = tiny.encoder_model
    assert encoder is not None
    assert (tiny.dim, encoder.dim, tiny.num_layers, encoder.num_layers) == (64, 64, 4, 4)
    assert build(tiny).num_parameters() < 2e6


@pytest.mark.parametrize("cached", [True, False])
def test_greedy_writing_takes_the_likeliest_token_each_time(cached: bool) -> None:
    model = made()
    source, _ = texts(1)
    wanted, read = [], [3]
    for _ in range(12):
        logits = model(source, torch.tensor([read])).logits[0, -1]
        wanted.append(int(logits.argmax()))
        read.append(wanted[-1])
    if not cached:
        model.__class__ = type("Uncached", (EncoderDecoder,), {"can_cache": False})
    found = sample(model, torch.tensor([3]), source=source[0], max_new_tokens=12, temperature=0.0)
    assert [*found] == wanted
    with pytest.raises(
        UserError, match="source: found none; expected a text for the model's encoder"
    ):
        sample(model, torch.tensor([3]), max_new_tokens=2)
    with pytest.raises(UserError, match="source: found one; the model has no encoder"):
        sample(build(load("modern").tiny()), torch.tensor([3]), source=source[0], max_new_tokens=2)
