"""Files of choices are held against laws: those to start from keep them all, and what breaks one breaks it alone."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from archwright import testing as laws
from archwright.cli.new_verb import FOLDER
from archwright.spec.errors import UserError
from archwright.spec.norms import Norm
from archwright.testing import Law, about, check_file
from tests.outside.test_contributing import FILES
from tests.tiny import ROOT

OUTSIDE = ROOT / "tests" / "outside"
STARTS = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.py")}
"""What `archwright new` writes."""

pytestmark = [pytest.mark.usefixtures("visitors"), pytest.mark.slow]

SCHEDULE = """
from typing import Literal

import archwright
from archwright.spec.run_spec import Schedule


class Falling(Schedule):
    kind: Literal["falling"] = "falling"


calls = []


def falling(spec, step, warmup, num_steps):
    calls.append(step)
    return 1 - step / (num_steps + 1)


archwright.register(Falling, falling)
"""
TASK = """
from typing import Literal

import numpy as np

import archwright
from archwright.data.tasks import Example, Sampler
from archwright.spec.tasks import Task


class Copying(Task):
    kind: Literal["copying"] = "copying"

    @property
    def words(self):
        return ("a", "b")


class Copier(Sampler):
    chance = 0.5

    def __init__(self, spec, length):
        self.length, self.generator = length, np.random.default_rng(0)

    def sample(self, generator):
        tokens = generator.integers(2, size=self.length)
        return Example(tokens, np.roll(tokens, 1))


archwright.register(Copying, Copier)
"""
TEXTS = (
    STARTS
    | {
        name: (OUTSIDE / f"{name}.py").read_text("utf-8")
        for name in ("running_mean", "low_rank", "log_sparse")
    }
    | {"schedule": SCHEDULE, "task": TASK}
)

ROLES = '        self.roles = {"lambdas": "vector"}  # excluded from Muon\n'


def scan(*lines: str) -> tuple[str, dict[str, str]]:
    """Return the mixer to start from, with a scan of its own that has a fault."""
    body = "".join(
        f"        {line}\n" for line in (*lines, "return super().scan(inputs, state, at)")
    )
    method = f"    def scan(self, inputs, state, at):\n        length = inputs.v.shape[1]\n{body}"
    return "mixer", {"    def output": f"{method}\n    def output"}


BROKEN: dict[str, tuple[str, dict[str, str]]] = {
    "chosen": ("norm", {"Field(1e-5, gt=0)": "Field(gt=0)"}),
    "builds": ("feedforward", {"def reset_parameters": "def first_values"}),
    "toml_returns": (
        "norm",
        {'= "my_norm"\n': '= "my_norm"\n    shape: tuple[int, ...] = (1, 2)\n'},
    ),
    "shapes_and_dtypes": (
        "low_rank",
        {
            "x @ self.first.to(x.dtype)": "(x.float() if x.dtype == torch.bfloat16 else x) @ self.first"
        },
    ),
    "shapes_on_meta": ("feedforward", {"torch.empty(width)": 'torch.empty(width, device="cpu")'}),
    "the_same_seed_gives_the_same_model": (
        "norm",
        {
            "import torch\n": "import random\nimport torch\n",
            "nn.init.ones_(self.weight)": "nn.init.constant_(self.weight, 1 + random.Random().random())",
        },
    ),
    "only_parameters_are_saved": (
        "norm",
        {
            "        self.weight =": '        self.register_buffer("steps", torch.zeros(()))\n        self.weight =',
            "nn.init.ones_(self.weight)": "nn.init.zeros_(self.steps), nn.init.ones_(self.weight)",
        },
    ),
    "roles_are_stated": ("attention", {ROLES: ""}),
    "nothing_is_drawn_outside_training": (
        "norm",
        {"return y.to": "return nn.functional.dropout(y, 0.1).to"},
    ),
    "trains": (
        "norm",
        {
            "        self.weight =": "        self.unused = nn.Parameter(torch.empty(dim))\n        self.weight =",
            "nn.init.ones_(self.weight)": "nn.init.ones_(self.unused), nn.init.ones_(self.weight)",
        },
    ),
    "every_parameter_learns": ("norm", {"* self.weight": "* (1 + 0 * self.weight)"}),
    "weights_return": (
        "norm",
        {
            "* self.weight": "* (self.weight + self.kept.to(x32.dtype))",
            "nn.init.ones_(self.weight)": "self.kept = nn.init.normal_(self.weight).detach().clone()",
        },
    ),
    "rows_do_not_meet": ("norm", {"        y = x32": "        y = (x32 - x32.mean(0))"}),
    "nothing_sees_what_follows": (
        "mixer",
        {"(y.unflatten": "(y.roll(-1, 1).unflatten"},
    ),
    "packed_is_alone": scan("at = at._replace(resets=None)"),
    "padding_is_nothing": ("running_mean", {"seen = seen & layout.padding_mask[:, None]": "pass"}),
    "cached_is_uncached": scan("state = {name: 0 * x for name, x in state.items()}"),
    "cached_rows_of_different_lengths": scan(
        "if at.real is not None:  # what follows the first token counts as real",
        "    at = at._replace(real=at.real.long().cummax(1).values.bool())",
    ),
    "long_packed_is_alone": scan("if length > 99: at = at._replace(resets=None)"),
    "long_padding_is_nothing": scan("if length > 99: at = at._replace(real=None)"),
    "long_cached_is_uncached": scan(
        "if length > 256: return super().scan(inputs, state, at)[0], state"
    ),
    "chunk_size_changes_nothing": scan(
        "if self.chunk_size == 3: inputs = inputs._replace(q=2 * inputs.q)"
    ),
    "forgets_at_no_fixed_token": (
        "mixer",
        {
            "    def output": """    def forward(self, x, context, state=None, projected=None):
        self.resets = (context.layout.index_or_range() % 100 == 0).expand(len(x), -1)
        return super().forward(x, context, state, projected)

    def scan(self, inputs, state, at):
        return super().scan(inputs, state, at._replace(resets=self.resets))

    def output"""
        },
    ),
    "kernels_agree": scan(
        "if self.kernel == 'recurrent': inputs = inputs._replace(q=2 * inputs.q)"
    ),
    "checkpointing_changes_nothing": scan(
        "if not self.first_pass: inputs = inputs._replace(q=2 * inputs.q)"
    ),
    "compiles": scan("if not inputs.v.is_meta and inputs.v.abs().max().item() > 9: print(length)"),
    "keeps_dtype": (
        "norm",
        {"y.to(x.dtype)": 'y.to(torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype)'},
    ),
    "is_finite": ("norm", {" + self.eps": ""}),
    "members_follow_visible": ("log_sparse", {"length + sum(": "length + 1 + sum("}),
    "costs_are_traced": (
        "low_rank",
        {"return x @ self.first": "x.is_meta or (x > 0).nonzero()\n        return x @ self.first"},
    ),
    "state_bytes_are_stated": (
        "mixer",
        {
            "    def output": "    def state_bytes(self, length, itemsize):\n        return 1\n\n    def output"
        },
    ),
    "moves_all": ("optimizer", {"(by_role, spec.lr": '({"matrix": by_role["matrix"]}, spec.lr'}),
    "the_loss_falls": ("optimizer", {"w.sub_(": "w.add_("}),
    "a_rate_of_zero_moves_nothing": ("optimizer", {'alpha=group["lr"]': "alpha=1e-3"}),
    "state_returns": (
        "optimizer",
        {
            'self.state[w].setdefault("mean", ': 'self.__dict__.setdefault("means", {}).setdefault(w, '
        },
    ),
    "choice_returns": (
        "optimizer",
        {'= "my_optimizer"\n': '= "my_optimizer"\n    betas: tuple[float, ...] = (0.9, 0.99)\n'},
    ),
    "shares_are_from_0_to_1": ("schedule", {"1 - step": "3 - step"}),
    "a_function_of_the_step": ("schedule", {"1 - step": "1 / len(calls) - 0 * step"}),
    "makes_batches": ("objective", {"return replace(batch, inputs": "return dict(inputs"}),
    "a_function_of_seed_and_step": (
        "objective",
        {
            "generator.random(": "generator_of_all.random(",
            "\n# 2.": "\ngenerator_of_all = np.random.default_rng(0)\n\n# 2.",
        },
    ),
    "targets_are_of_the_text": (
        "objective",
        {"return replace(batch, ": "return replace(batch, targets=np.roll(batch.targets, 1, 0), "},
    ),
    "padding_is_no_text": (
        "objective",
        {"follow(text,": "follow(replace(text, padding_mask=None),"},
    ),
    "documents_stay_apart": (
        "objective",
        {"follow(text,": "follow(replace(text, segment_ids=None),"},
    ),
    "draws_examples": ("task", {"np.roll(tokens, 1)": "tokens[1:]"}),
    "examples_follow_from_the_generator": (
        "task",
        {"tokens = generator": "tokens = self.generator"},
    ),
}
"""For each law a file, and what is put in place of what in it so that the law is broken, and no other."""


def write(path: Path, text: str, changes: dict[str, str]) -> Path:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    return path


def checked_apart(file: Path) -> dict[str, tuple[str, str]]:
    """Return the findings of `archwright check`, without these tests' checks of shapes, which no compiler can trace."""
    words = [sys.executable, "-m", "archwright", "check", str(file), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    (record,) = json.loads(done.stdout)
    return {law["law"]: (law["state"], law["found"]) for law in record["choices"][0]["laws"]}


def name(law: Law) -> str:
    return law.__name__


def test_every_law_has_a_file_that_breaks_it() -> None:
    axes = (*laws.IN_RUNS.values(), *laws.IN_MODELS.values(), laws.LAWS_OF_MODELS)
    known = {law.__name__ for axis in axes for law in axis}
    assert BROKEN.keys() == known | {"chosen"}


@pytest.mark.sampled(fast=4)
@pytest.mark.parametrize("law", BROKEN)
def test_a_law_is_broken_alone(law: str, tmp_path: Path) -> None:
    start, changes = BROKEN[law]
    file = write(tmp_path / "mine.py", TEXTS[start], changes)
    if law == "compiles":
        findings = checked_apart(file)
    else:
        (checked,) = check_file(file)
        assert not checked.good
        findings = {f.law: (f.state, f.found) for f in checked.findings}
    assert {name for name, (state, _) in findings.items() if state == "broken"} == {law}
    assert len(findings[law][1]) > 20  # what was found, and what to do
    assert "\n" not in findings[law][1]


@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize("start", TEXTS)
def test_files_to_start_from_keep_every_law(start: str, tmp_path: Path) -> None:
    (checked,) = check_file(write(tmp_path / "mine.py", TEXTS[start], {}))
    assert {f.law: f.found for f in checked.findings if f.state == "broken"} == {}
    if start != "running_mean":  # which keeps nothing, so that there is no cache
        assert {f.state for f in checked.findings if f.law != "compiles"} == {"ok"}


VARIANTS = {
    "softmax": "scores.softmax(-1)",
    "sigmoid": "(scores - (scores > -torch.inf).sum(-1, keepdim=True).log()).sigmoid()",
    "squared_relu": "scores.relu().square() / (scores > -torch.inf).sum(-1, keepdim=True)",
}
"""Weights that the comments of attention to start from offer in place of its own."""


@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("weights", VARIANTS)
def test_weights_offered_in_comments_keep_every_law(weights: str, tmp_path: Path) -> None:
    text = STARTS["attention"]
    assert f"return {VARIANTS[weights]}" in text
    body = text[text.index("        q1, k1, q2, k2 =") : text.index("    def forward")]
    reset = text[text.index("    # Initial values") : text.index("# 3.")]
    lambdas = "        self.lambdas = nn.Parameter(torch.empty(4, self.d))  # q1, k1, q2, k2\n"
    changes = {
        "maps = 2": "maps = 1",
        lambdas + ROLES: "",
        body: f"        return {VARIANTS[weights]}\n\n",
        reset: "",
    }
    (checked,) = check_file(write(tmp_path / "mine.py", text, changes))
    assert {f.law for f in checked.findings if f.state != "ok"} == {
        "compiles"
    }  # see `checked_apart`


@pytest.mark.parametrize("file", ["differential", "gated_delta", "xpos", "lion", "fill_in_middle"])
def test_files_from_outside_keep_every_law(file: str) -> None:
    for checked in check_file(OUTSIDE / f"{file}.py"):
        assert {f.law: f.found for f in checked.findings if f.state == "broken"} == {}


@pytest.mark.parametrize("file", FILES)
def test_examples_of_the_page_keep_every_law(file: str, tmp_path: Path) -> None:
    for checked in check_file(write(tmp_path / file, FILES[file], {})):
        assert {f.law: f.found for f in checked.findings if f.state == "broken"} == {}


def test_an_error_of_a_part_is_said_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", STARTS["norm"], {"x32.abs()": "x32.size_of()"})
    (checked,) = check_file(file)
    line = file.read_text("utf-8")[: file.read_text("utf-8").index("size_of")].count("\n") + 1
    (broken,) = [f for f in checked.findings if f.state == "broken"]
    assert broken.law == "builds"
    assert (
        broken.found == f"line {line}: AttributeError: 'Tensor' object has no attribute 'size_of'"
    )
    waiting = [f for f in checked.findings if f.state == "waiting"]
    assert len(waiting) > 10
    assert {f.found for f in waiting} == {broken.about}


def test_a_part_that_is_called_otherwise_is_one_line(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", STARTS["norm"], {"heads: int | None = None": "heads: int"})
    (checked,) = check_file(file)
    (broken,) = [f for f in checked.findings if f.state == "broken"]
    assert "MyNormModule was called with other arguments than it takes" in broken.found


def test_several_choices_of_a_file_are_all_checked(tmp_path: Path) -> None:
    both = STARTS["norm"] + STARTS["optimizer"]
    found = check_file(write(tmp_path / "mine.py", both, {}))
    assert {(checked.axis, checked.kind) for checked in found} == {
        ("norm", "my_norm"),
        ("optimizer", "my_optimizer"),
    }
    assert all(checked.good for checked in found)


def test_a_file_without_choices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no choice is in it"):
        check_file(write(tmp_path / "mine.py", "x = 3\n", {}))


@pytest.mark.parametrize(
    "law", dict.fromkeys(law for axis in laws.IN_MODELS.values() for law in axis), ids=name
)
def test_a_law_says_what_it_holds(law: Law) -> None:
    assert re.fullmatch(r"[A-Z][^\n]{20,}[^.]", about(law))


def test_small_models_have_the_choice(tmp_path: Path) -> None:
    spec = laws.small_model(Norm.kinds["layer"])
    assert (spec.dim, spec.num_layers, spec.norm.kind) == (16, 2, "layer")
