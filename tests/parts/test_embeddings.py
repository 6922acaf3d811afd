"""Both ends of a model beside sums in plain Python and numpy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.losses import cross_entropy, linear_cross_entropy
from archwright.model import build
from archwright.parts.embeddings import Head, TokenEmbedding
from archwright.parts.linear import Embedding
from archwright.spec import embeddings as spec
from archwright.spec.fingerprint import differing
from archwright.spec.model_spec import ModelSpec

HEADS = [
    {},
    {"bias": True},
    {"logit_scale": 0.3},
    {"logit_divisor": 1.7},
    {"softcap": 2.0},
    {"softcap": 30},
    {"bias": True, "logit_scale": 0.7, "logit_divisor": 1.3, "softcap": 3.0},
]


def head(options: dict[str, object], dim: int = 4, **given: object) -> Head:
    made = Head(spec.Head.model_validate(options), dim, 6, **given)
    torch.manual_seed(0)
    torch.nn.init.normal_(made.weight, 0.0, 1.5 / math.sqrt(dim))
    if made.bias is not None:
        torch.nn.init.normal_(made.bias, 0.0, 0.3)
    return made.double()


@pytest.mark.parametrize("options", HEADS, ids=str)
def test_head(options: dict[str, float]) -> None:
    part = head(options)
    x = torch.randn(2, 3, 4, dtype=torch.float64) * 5
    found = part(x)
    bias = [0.0] * 6 if part.bias is None else part.bias.tolist()
    for b, t, v in np.ndindex(2, 3, 6):
        pairs = zip(part.weight[v].tolist(), x[b, t].tolist(), strict=True)
        logit = math.fsum(w * y for w, y in pairs) + bias[v]
        logit = logit * options.get("logit_scale", 1) / options.get("logit_divisor", 1)
        cap = options.get("softcap")
        expected = logit if cap is None else cap * math.tanh(logit / cap)
        assert found[b, t, v].item() == pytest.approx(expected, rel=1e-12)
    assert found.abs().max() <= options.get("softcap", math.inf)


@pytest.mark.parametrize("options", HEADS, ids=str)
def test_a_head_computes_alike_with_a_table_that_is_shared(options: dict[str, float]) -> None:
    untied = head(options)
    tied = Head(tied_spec(options), 4, 6, torch.nn.Parameter(untied.weight.detach())).double()
    if tied.bias is not None and untied.bias is not None:
        tied.bias.data.copy_(untied.bias)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(tied(x), untied(x), rtol=0, atol=0)


def tied_spec(options: dict[str, float]) -> spec.Head:
    return spec.Head.model_validate({**options, "tied": True})


@pytest.mark.parametrize("options", HEADS, ids=str)
def test_gradients_of_a_head(options: dict[str, float]) -> None:
    part = head(options)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(3, 6, dtype=torch.float64)
    part(x).backward(pull)
    weight, rows = part.weight.detach().numpy(), x.detach().numpy()
    factor = options.get("logit_scale", 1) / options.get("logit_divisor", 1)
    bias = 0.0 if part.bias is None else part.bias.detach().numpy()
    logits = (rows @ weight.T + bias) * factor
    inner = pull.numpy() * factor
    if "softcap" in options:
        inner = inner * (1 - np.tanh(logits / options["softcap"]) ** 2)
    np.testing.assert_allclose(x.grad, inner @ weight, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(part.weight.grad, inner.T @ rows, rtol=1e-10, atol=1e-12)
    if part.bias is not None:
        np.testing.assert_allclose(part.bias.grad, inner.sum(0), rtol=1e-10, atol=1e-12)


def test_an_initialisation_divides_logits_as_well() -> None:
    x = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(
        head({"logit_divisor": 2.0}, divisor=3.0)(x) * 6, head({})(x), rtol=1e-12, atol=1e-12
    )


def test_a_tied_head_is_the_embedding() -> None:
    embedding = Embedding(6, 4).double()
    part = head({"tied": True}, table=embedding.weight)
    assert part.weight is embedding.weight
    x = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(part(x), x @ embedding.weight.T)


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("sqrt_dim", 48**0.5), (12.0, 12.0)])
def test_a_scaled_embedding(scale: str | float, factor: float) -> None:
    part = TokenEmbedding(spec.Embedding(scale=scale), 48, 5).double()
    torch.nn.init.normal_(part.weight)
    tokens = torch.tensor([[4, 0, 4]])
    table = part.weight.detach().numpy()
    np.testing.assert_allclose(part(tokens).detach(), table[[[4, 0, 4]]] * factor, rtol=1e-14)
    part(tokens).sum().backward()
    expected = np.outer([1, 0, 0, 0, 2], [factor] * 48)
    np.testing.assert_allclose(part.weight.grad, expected, rtol=1e-12)


def test_the_scale_is_rounded_first() -> None:
    """sqrt(3072) is 55.43, and 55.5 in bfloat16: Gemma was trained with the latter."""
    part = TokenEmbedding(spec.Embedding(scale="sqrt_dim"), 3072, 2).bfloat16()
    torch.nn.init.ones_(part.weight)
    found = part(torch.tensor([0]))
    assert found.dtype == torch.bfloat16
    assert found[0, 0].item() == 55.5
    torch.nn.init.constant_(part.weight, 1.0078125)  # 55.43 times it is 55.86, nearest to 55.75
    assert part(torch.tensor([0]))[0, 0].item() == 56.0


def captured(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """Return what enters the first layer."""
    seen: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(tokens)
    return seen[0].detach()


def test_scale_then_positions_then_norm_and_an_unscaled_head() -> None:
    model = build(
        ModelSpec(dim=16, num_layers=1, vocab_size=32, context_length=8).override(
            "attention.num_heads=2",
            "position.kind=learned",
            "embedding.scale=sqrt_dim",
            "embedding.norm.kind=layer",
            "head.tied=true",
        )
    ).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.embedding_norm.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    table = model.embedding.weight.detach().numpy()
    x = table[tokens.numpy()] * 4 + model.position.table.weight.detach().numpy()[:5]
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    norm = model.embedding_norm
    x = x * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    np.testing.assert_allclose(captured(model, tokens), x, rtol=1e-10, atol=1e-12)
    hidden = model.hidden(tokens).detach().numpy()
    np.testing.assert_allclose(
        model(tokens).logits.detach(), hidden @ table.T, rtol=1e-10, atol=1e-12
    )


def random_(module: torch.nn.Module, seed: int = 0) -> None:
    """Give matrices N(0, 1.5^2 / fan_in), and add 0.3 N(0, 1) to vectors."""
    dice = torch.Generator().manual_seed(seed)
    for tensor in module.parameters():
        noise = torch.randn(tensor.shape, generator=dice)
        if tensor.ndim < 2:
            tensor.data += 0.3 * noise
        else:
            tensor.data.copy_(1.5 * noise * tensor.shape[-1] ** -0.5)


class TestFactorised:
    """A table of another width than the model, mapped on the way in and on the way out."""

    SPEC = ModelSpec(dim=16, num_layers=1, vocab_size=32, context_length=8).override(
        "attention.num_heads=2", "position.kind=learned", "embedding.scale=2.5", "embedding.dim=6"
    )

    @pytest.mark.parametrize("tied", [True, False])
    def test_formula(self, tied: bool) -> None:
        model = build(
            self.SPEC.override("embedding.bias=true", f"head.tied={str(tied).lower()}")
        ).double()
        random_(model)
        tokens = torch.tensor([[3, 1, 4, 1, 5]])
        state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        table = state["embedding.weight"]
        assert table.shape == (32, 6)
        x = (table[tokens.numpy()] * 2.5) @ state["embedding.project_in.weight"].T
        x = x + state["embedding.bias"] + state["position.table.weight"][:5]
        np.testing.assert_allclose(captured(model, tokens), x, rtol=1e-10, atol=1e-12)
        read = model.hidden(tokens).detach().numpy() @ state["head.project_out.weight"].T
        logits = read @ (table if tied else state["head.weight"]).T
        np.testing.assert_allclose(model(tokens).logits.detach(), logits, rtol=1e-10, atol=1e-12)

    def test_opt(self) -> None:
        """Both ends of the library's OPT, without layers between them."""
        library = pytest.importorskip("transformers.models.opt.modeling_opt")
        theirs = library.OPTForCausalLM(
            library.OPTConfig(
                vocab_size=32,
                hidden_size=16,
                word_embed_proj_dim=6,
                num_hidden_layers=0,
                ffn_dim=8,
                num_attention_heads=2,
                max_position_embeddings=8,
                do_layer_norm_before=False,
            )
        ).eval()
        random_(theirs)
        spec = self.SPEC.override("head.tied=true", "position.offset=2", "embedding.scale=none")
        model, state = build(spec), theirs.model.decoder.state_dict()
        model.embedding.weight.data.copy_(state["embed_tokens.weight"])
        model.embedding.project_in.weight.data.copy_(state["project_in.weight"])
        model.position.table.weight.data.copy_(state["embed_positions.weight"])
        model.head.project_out.weight.data.copy_(state["project_out.weight"])
        tokens = torch.tensor([[3, 1, 4, 1, 5]])
        with torch.no_grad():
            found = model.head(captured(model, tokens))
            torch.testing.assert_close(found, theirs(tokens).logits, rtol=1e-5, atol=1e-5)

    def test_a_transform_maps_to_the_width_of_the_table(self) -> None:
        """As ALBERT and ELECTRA have it: one map, not two."""
        model = build(self.SPEC.override("head.transform.kind=dense"))
        assert model.head.project_out is None
        assert model.head.transform.dense.weight.shape == (6, 16)

    def test_as_wide_as_the_model_is_no_factor(self) -> None:
        same = self.SPEC.override("embedding.dim=16")
        assert same.hash() == self.SPEC.override("embedding.dim=auto").hash()
        assert build(same).embedding.project_in is None
        assert "embedding" not in differing(same.override("embedding.scale=none").resolved())

    def test_a_tied_table_starts_as_small_as_its_own_width_asks(self) -> None:
        spec = self.SPEC.override("embedding.dim=4", "head.tied=true")
        assert spec.resolved().init.embedding_std == 4**-0.5


class TestTransform:
    """The head that BERT's language model has."""

    def part(self, *words: str, width: str = "auto") -> Head:
        small = ModelSpec(dim=8, num_layers=1, vocab_size=12).override(
            "head.transform.kind=dense", "head.bias=true", f"embedding.dim={width}", *words
        )
        part = build(small).head
        random_(part)
        return part.double()

    @pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
    @pytest.mark.parametrize("bias", [True, False])
    def test_formula(self, activation: str, bias: bool) -> None:
        part = self.part(
            f"head.transform.activation={activation}",
            f"head.transform.bias={str(bias).lower()}",
            width="5",
        )
        x = torch.randn(3, 8, dtype=torch.float64)
        function = {
            "gelu": lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2,
            "gelu_tanh": lambda v: (
                v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2
            ),
            "relu": lambda v: max(v, 0.0),
            "silu": lambda v: v / (1 + math.exp(-v)),
        }[activation]
        state = {name: tensor.numpy() for name, tensor in part.state_dict().items()}
        hidden = x.numpy() @ state["transform.dense.weight"].T
        if bias:
            hidden = hidden + state["transform.dense.bias"]
        hidden = np.vectorize(function)(hidden)
        hidden = hidden - hidden.mean(-1, keepdims=True)
        hidden = hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-5)
        hidden = hidden * state["transform.norm.weight"] + state["transform.norm.bias"]
        expected = hidden @ state["weight"].T + state["bias"]
        np.testing.assert_allclose(part(x).detach(), expected, rtol=1e-9, atol=1e-9)

    def test_bert(self) -> None:
        library = pytest.importorskip("transformers.models.bert.modeling_bert")
        theirs = library.BertLMPredictionHead(library.BertConfig(hidden_size=8, vocab_size=12))
        random_(theirs)
        state = theirs.state_dict()
        part = self.part("head.transform.norm.kind=layer", "head.transform.norm.eps=1e-12").float()
        part.load_state_dict(
            {
                "weight": state["decoder.weight"],
                "bias": state["decoder.bias"],
                "transform.dense.weight": state["transform.dense.weight"],
                "transform.dense.bias": state["transform.dense.bias"],
                "transform.norm.weight": state["transform.LayerNorm.weight"],
                "transform.norm.bias": state["transform.LayerNorm.bias"],
            }
        )
        x = torch.randn(4, 8)
        torch.testing.assert_close(part(x), theirs(x), rtol=1e-5, atol=1e-5)

    def test_its_gradient_in_chunks_is_that_of_the_whole(self) -> None:
        """The loss that never holds all logits reads the whole head, not its table alone."""
        part, x = self.part(width="5"), torch.randn(7, 8, dtype=torch.float64)
        targets = torch.tensor([1, 5, -100, 3, 3, 0, 11])
        x.requires_grad_()
        given = [x, *part.parameters()]
        whole = torch.autograd.grad(cross_entropy(part(x), targets).total, given)
        chunked = torch.autograd.grad(linear_cross_entropy(x, part, targets).total, given)
        torch.testing.assert_close(chunked, whole, rtol=1e-10, atol=1e-12)
