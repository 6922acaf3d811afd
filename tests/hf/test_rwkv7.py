"""RWKV-7 in the format of flash-linear-attention, beside the published model in NumPy, token by token.

The library needs a GPU, so that weights are drawn under BlinkDL's names, and renamed as its published conversion does.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from archwright import hf
from archwright.spec.errors import UserError

LAYERS, HEADS, WIDTH, HIDDEN, VOCAB = 3, 2, 8, 96, 40
DIM = HEADS * WIDTH
RANKS = {"w": 5, "a": 6, "v": 4, "g": 7}
CONFIG: dict[str, Any] = {
    "model_type": "rwkv7",
    "architectures": ["RWKV7ForCausalLM"],
    "attn": None,
    "attn_mode": "chunk",
    "hidden_size": DIM,
    "head_dim": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "norm_eps": 1e-5,
    **{f"{n}_low_rank_dim": RANKS[k] for n, k in (("decay", "w"), ("a", "a"), ("v", "v"))},
    "gate_low_rank_dim": RANKS["g"],
}
Weights = dict[str, np.ndarray]


def drawn() -> Weights:
    """Return random float64 weights under BlinkDL's names; matrices of low rank are [in, out] there."""
    dice = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"emb.weight": (VOCAB, DIM), "head.weight": (VOCAB, DIM)}
    norms = ["blocks.0.ln0", "ln_out"]
    for i in range(LAYERS):
        block = f"blocks.{i}."
        norms += [f"{block}{name}" for name in ("ln1", "ln2", "att.ln_x")]
        shapes |= {f"{block}att.x_{x}": (DIM,) for x in "rwkvag"}
        shapes |= {f"{block}att.{x}": (DIM,) for x in ("k_k", "k_a")}
        shapes[f"{block}att.r_k"] = (HEADS, WIDTH)
        for x, rank in RANKS.items():
            if (x, i) != ("v", 0):
                shapes |= {f"{block}att.{x}1": (DIM, rank), f"{block}att.{x}2": (rank, DIM)}
                shapes |= {} if x == "g" else {f"{block}att.{x}0": (DIM,)}
        maps = ("receptance", "key", "value", "output")
        shapes |= {f"{block}att.{name}.weight": (DIM, DIM) for name in maps}
        shapes[f"{block}ffn.x_k"] = (DIM,)
        shapes |= {
            f"{block}ffn.key.weight": (HIDDEN, DIM),
            f"{block}ffn.value.weight": (DIM, HIDDEN),
        }
    shapes |= {f"{name}.{part}": (DIM,) for name in norms for part in ("weight", "bias")}
    return {
        name: dice.normal(0, 1 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5, shape)
        for name, shape in shapes.items()
    }


def layer_norm(x: np.ndarray, weights: Weights, name: str, groups: int = 1) -> np.ndarray:
    eps = 1e-5 * (WIDTH if groups > 1 else 1)
    parts = x.reshape(groups, -1)
    parts = (parts - parts.mean(1, keepdims=True)) / np.sqrt(parts.var(1, keepdims=True) + eps)
    return parts.reshape(-1) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def logits(weights: Weights, tokens: list[int]) -> np.ndarray:
    """Return the logits of a text: the formulas of the paper for one token after another."""
    before = np.zeros((LAYERS, 2, DIM))
    states = np.zeros((LAYERS, HEADS, WIDTH, WIDTH))  # values x keys
    outs = []
    for token in tokens:
        x = layer_norm(weights["emb.weight"][token], weights, "blocks.0.ln0")
        first: np.ndarray | None = None
        for i in range(LAYERS):
            w = {
                name[len(f"blocks.{i}.att.") :]: t
                for name, t in weights.items()
                if name.startswith(f"blocks.{i}.att.")
            }
            z = layer_norm(x, weights, f"blocks.{i}.ln1")
            at = {n: z + w[f"x_{n}"] * (before[i, 0] - z) for n in "rwkvag"}
            before[i, 0] = z
            r, k, v = (w[f"{n}.weight"] @ at[n[0]] for n in ("receptance", "key", "value"))
            decay = np.exp(-np.exp(-0.5) * sigmoid(w["w0"] + np.tanh(at["w"] @ w["w1"]) @ w["w2"]))
            rate = sigmoid(w["a0"] + at["a"] @ w["a1"] @ w["a2"])
            gate = sigmoid(at["g"] @ w["g1"]) @ w["g2"]
            if first is None:
                first = v
            else:
                v = v + (first - v) * sigmoid(w["v0"] + at["v"] @ w["v1"] @ w["v2"])
            h = (k * w["k_k"]).reshape(HEADS, WIDTH)
            h = h / np.linalg.norm(h, axis=1, keepdims=True)
            k = k * (1 + (rate - 1) * w["k_a"])
            y = np.zeros((HEADS, WIDTH))
            bonus = np.zeros((HEADS, WIDTH))
            for n in range(HEADS):
                cut = slice(n * WIDTH, (n + 1) * WIDTH)
                move = np.diag(decay[cut]) - np.outer(h[n], h[n] * rate[cut])
                states[i, n] = states[i, n] @ move + np.outer(v[cut], k[cut])
                y[n] = states[i, n] @ r[cut]
                bonus[n] = (r[cut] * k[cut] * w["r_k"][n]).sum() * v[cut]
            mixed = layer_norm(y.reshape(-1), weights, f"blocks.{i}.att.ln_x", HEADS)
            x = x + w["output.weight"] @ ((mixed + bonus.reshape(-1)) * gate)
            z = layer_norm(x, weights, f"blocks.{i}.ln2")
            k = z + weights[f"blocks.{i}.ffn.x_k"] * (before[i, 1] - z)
            before[i, 1] = z
            k = np.maximum(weights[f"blocks.{i}.ffn.key.weight"] @ k, 0) ** 2
            x = x + weights[f"blocks.{i}.ffn.value.weight"] @ k
        outs.append(weights["head.weight"] @ layer_norm(x, weights, "ln_out"))
    return np.stack(outs)


def renamed(weights: Weights) -> dict[str, Tensor]:
    """Return the weights under the names and in the shapes of flash-linear-attention."""
    words = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    words |= {"ln_x": "g_norm"}
    places = {"att": "attn", "ffn": "ffn", "ln0": "pre_norm", "ln1": "attn_norm", "ln2": "ffn_norm"}
    outside = {"emb": "model.embeddings", "head": "lm_head", "ln_out": "model.norm"}
    tensors = {}
    for name, array in weights.items():
        start, *rest = name.split(".")
        if start != "blocks":
            tensors[f"{outside[start]}.{rest[0]}"] = torch.tensor(array)
            continue
        number, place, *rest = rest
        if match := re.fullmatch("([wavg])([012])", rest[0]):
            part = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}[match[2]]
            rest, array = [f"{match[1]}_lora.lora.{part}"], array.T
        elif place == "att":
            rest = [words.get(rest[0], rest[0]), *rest[1:]]
            array = array[None, None] if rest[0].startswith("x_") else array
        tensors[".".join(("model.layers", number, places[place], *rest))] = torch.tensor(array)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def written(folder: Path, tensors: dict[str, Tensor], **changes: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes), "utf-8")
    return folder


TOKENS = torch.randint(VOCAB, (2, 70), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def expected() -> Tensor:
    return torch.tensor(np.stack([logits(drawn(), row) for row in TOKENS.tolist()]))


def test_logits_are_those_of_the_published_model(tmp_path: Path, expected: Tensor) -> None:
    """In float64, whole, and token by token with a cache."""
    model = hf.load(written(tmp_path / "in", renamed(drawn())), dtype=torch.float64).model
    assert 0.5 < expected.std() < 8
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, expected, rtol=1e-9, atol=1e-9)
        cache = model.new_cache()
        parts = [model(part, cache=cache).logits for part in TOKENS.split([1, 1, 64, 4], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-9, atol=1e-9)


def test_float32_is_as_near_as_its_rounding(tmp_path: Path, expected: Tensor) -> None:
    model = hf.load(written(tmp_path / "in", renamed(drawn()))).model
    with torch.no_grad():
        chunked = model(TOKENS).logits.double()
        recurrent = model.use_kernel("recurrent")(TOKENS).logits.double()
    errors = [float((x - expected).norm() / expected.norm()) for x in (chunked, recurrent)]
    assert errors[0] < 5e-6
    assert errors[0] < 3 * errors[1]


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    tensors = {name: t.float() for name, t in renamed(drawn()).items()}
    loaded = hf.load(written(tmp_path / "in", tensors))
    assert hf.save(loaded.model, tmp_path / "out") == "rwkv7"
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert {key: config[key] for key in CONFIG if key != "attn_mode"} == {
        key: value for key, value in CONFIG.items() if key != "attn_mode"
    }
    assert config["value_dim"] == [DIM] * LAYERS
    back = load_file(tmp_path / "out" / "model.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name


def test_older_files_have_the_shares_of_a_layer_in_one_tensor(tmp_path: Path) -> None:
    tensors = renamed(drawn())
    new = hf.load(written(tmp_path / "new", tensors)).model
    for i in range(LAYERS):
        parts = [tensors.pop(f"model.layers.{i}.attn.x_{x}") for x in "rwkvag"]
        tensors[f"model.layers.{i}.attn.x_x"] = torch.cat(parts).flatten(1)
    old = hf.load(written(tmp_path / "old", tensors)).model
    assert torch.equal(old(TOKENS).logits, new(TOKENS).logits)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"hidden_act": "relu"}, "hidden_act: found 'relu'; expected sqrelu"),
        ({"attn": {"layers": [1]}}, "attn: found {'layers': \\[1\\]}; expected None"),
        ({"value_dim": 32}, "value_dim: found 32; expected hidden_size = 16"),
    ],
)
def test_what_is_not_here_is_refused(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line) as refused:
        hf.load_spec(CONFIG | changes)
    assert len(refused.value.lines) == 1


def test_sizes_that_a_config_leaves_open() -> None:
    left = {"head_dim": None, "num_heads": 2, "intermediate_size": None, "hidden_ratio": 3.5}
    spec = hf.load_spec(CONFIG | left | {"norm_first": False, "norm_bias": False})
    assert (spec.recurrence.num_heads, spec.recurrence.head_dim) == (2, 8)  # type: ignore[attr-defined]
    assert spec.feedforward.hidden_dim == 64  # type: ignore[attr-defined]
    assert spec.embedding.norm.is_none
    assert not spec.norm.bias  # type: ignore[attr-defined]
