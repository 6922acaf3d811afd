"""What processes gather, keep and send, counted in bytes: what a plan relies on."""

import json
from typing import Any

import pytest

from archwright.model import build
from archwright.planning.split import Split
from archwright.planning.stages import Needs
from archwright.planning.training_memory import setup
from archwright.spec.run_spec import RunSpec
from tests.scale.counted import CASES, MODEL, ROWS
from tests.scale.together import started

pytestmark = pytest.mark.slow

Counts = dict[str, Any]
PARTS = {name: case[3] for name, case in CASES.items()}


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counts]:
    out = tmp_path_factory.mktemp("counts") / "found.json"
    done = started(2, "-m", "tests.scale.counted", str(out))
    assert done.returncode == 0, done.stderr
    found: dict[str, Counts] = json.loads(out.read_text("utf-8"))
    return found


@pytest.mark.parametrize("name", ["float32", "bfloat16", "not freed"])
def test_layers_are_gathered_for_each_pass_or_once_a_step(
    name: str, counts: dict[str, Counts]
) -> None:
    found, parts, layers = counts[name], PARTS[name], MODEL.num_layers
    times, ends = (1, 1) if name == "not freed" else (2 * parts, parts)
    # The table of the embedding is never kept.
    assert found["number"]["gather"] == times * layers + 2 * ends + parts
    assert found["number"]["scatter"] == parts * (MODEL.num_layers + 3)
    assert "reduce float32" not in found["bytes"]
    narrow, wide = (found["bytes"].get(f"gather {d}", 0) for d in ("bfloat16", "float32"))
    size = 2 if narrow else 4
    table = MODEL.dim * int(MODEL.vocab_size)
    weights = size * (times * found["layers"] + ends * table) + (0 if narrow else 4 * parts * table)
    assert (narrow or wide) == pytest.approx(weights, rel=0.01)
    if narrow:
        assert wide == pytest.approx(parts * 4 * table, rel=0.02)


def test_weights_are_not_kept_until_the_backward_pass(counts: dict[str, Counts]) -> None:
    kept = {name: found.get("weights kept") for name, found in counts.items()}
    assert kept["float32"] == kept["bfloat16"] == kept["bfloat16, full"] == 0.0
    assert kept["cast"] == pytest.approx(2, rel=0.01)  # autocast's copies
    assert kept["not freed"] == pytest.approx(2, rel=0.01)


def test_no_microbatch_leaves_complete_gradients(counts: dict[str, Counts]) -> None:
    kept = {name: found.get("gradients kept") for name, found in counts.items()}
    for name in ("float32", "bfloat16", "bfloat16, full"):
        assert kept[name] == pytest.approx(4 / 2, rel=0.05)
    assert kept["not freed"] == pytest.approx(4 / 2 + 2, rel=0.05)  # and gathered weights
    assert kept["replicas"] == pytest.approx(4, rel=0.05)


def test_replicas_add_up_gradients_once(counts: dict[str, Counts]) -> None:
    found = counts["replicas"]
    assert "gather" not in found["number"]
    assert found["bytes"]["reduce float32"] == 4 * build(MODEL, device="meta").num_parameters()


def test_tensor_groups_gather_what_maps_read(counts: dict[str, Counts]) -> None:
    narrow, wide = (counts[name] for name in ("tensor", "tensor, float32"))
    stream = 2 * ROWS * MODEL.context_length * MODEL.dim  # bytes in bfloat16
    branches = 2 * MODEL.num_layers
    assert narrow["number"] == wide["number"]
    assert narrow["bytes"]["gather bfloat16"] == 2 * branches * stream
    assert (
        narrow["bytes"]["scatter bfloat16"] == branches * stream
    )  # of two ranks, half each, twice
    assert narrow["bytes"]["gather float32"] == 2 * 2 * stream  # around the layers


def test_tensor_groups_gather_no_logits(counts: dict[str, Counts]) -> None:
    """Sums of the embedding and of the head's gradient, two of the loss, and those of the norms."""
    found = counts["tensor, float32"]
    tokens, dim = ROWS * MODEL.context_length, MODEL.dim
    assert found["bytes"]["reduce float32"] < 4 * (2 * tokens * dim + 4 * tokens + 40 * dim)
    branches = 2 * MODEL.num_layers
    assert found["bytes"]["gather float32"] == 4 * tokens * dim * (2 * branches + 2)


def test_stages_send_the_stream_in_half_the_bytes(counts: dict[str, Counts]) -> None:
    stream = 2 * ROWS * MODEL.context_length * MODEL.dim
    assert counts["pipeline"]["bytes"]["send bfloat16"] == PARTS["pipeline"] * stream


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("float32", Split(2, "fsdp"), ("scale.param_dtype=float32",)),
        ("bfloat16", Split(2, "fsdp"), ()),
        ("not freed", Split(2, "fsdp"), ("scale.reshard=false",)),
        ("replicas", Split(2), ()),
        ("tensor", Split(2, tensor=2), ()),
        ("pipeline", Split(2, pipeline=2), ()),
    ],
)
def test_a_plan_says_what_is_sent_and_kept(
    name: str, split: Split, words: tuple[str, ...], counts: dict[str, Counts]
) -> None:
    found, parts = counts[name], PARTS[name]
    run = RunSpec(model=MODEL).override(*words)
    model = build(MODEL, device="meta")
    needs = Needs(run, model, MODEL.context_length)
    way = setup(needs, split, "none", ROWS * parts, ROWS // split.ranks)
    # A process sends half of what two gather, its half of a sum, and twice half of an all-reduced one.
    shares = {"gather": 0.5, "scatter": 1.0, "reduce": 1.0, "send": 1.0}
    dtypes = (
        ("bfloat16",) if split.replicas == 1 else ("bfloat16", "float32")
    )  # others are of the ends
    sent = sum(
        share * found["bytes"].get(f"{kind} {dtype}", 0)
        for kind, share in shares.items()
        for dtype in dtypes
    )
    assert sent == pytest.approx(sum(way.exchange.values()), rel=0.1)
    if "gradients kept" in found and split.tensor == 1 and name != "not freed":
        gradients = found["gradients kept"] * model.num_parameters()
        assert gradients == pytest.approx(way.memory.gradients, rel=0.1)
