import tomllib
from itertools import permutations
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given, settings

from archwright.spec.errors import UserError
from archwright.spec.merge import validated
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import LayerNorm, Norm, RMSNorm
from archwright.spec.objectives import MaskedTokens, NextToken
from archwright.spec.read import (
    diff,
    load,
    load_run,
    load_with_blame,
    preset_names,
    read_run,
    to_toml,
)
from archwright.spec.rules import suspicions
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from archwright.spec.version import FORMAT
from tests.spec.test_validation_errors import kinds
from tests.strategies import model_specs, run_specs


def lines(caught: pytest.ExceptionInfo[UserError]) -> tuple[str, ...]:
    assert all("\n" not in line for line in caught.value.lines)
    return caught.value.lines


class TestToml:
    @pytest.mark.slow
    @settings(max_examples=60)
    @given(model_specs())
    def test_a_model_returns_from_its_toml(self, spec: ModelSpec) -> None:
        assert validated(ModelSpec, tomllib.loads(to_toml(spec))) == spec

    @pytest.mark.slow
    @settings(max_examples=40)
    @given(run_specs())
    def test_a_run_returns_from_its_toml(self, spec: RunSpec) -> None:
        returned = validated(RunSpec, tomllib.loads(to_toml(spec)))
        assert returned == spec
        assert returned.hash() == spec.hash()

    def test_layer_kinds_given_as_specs_return_equal(self) -> None:
        spec = ModelSpec(layer_kinds={"local": {"norm": LayerNorm(bias=False)}})
        assert validated(ModelSpec, tomllib.loads(to_toml(spec))) == spec

    def test_a_run_folder_s_file_may_state_its_format(self, tmp_path: Path) -> None:
        run = load_run("demo").override("seed=3", "init.from=runs/other")
        file = tmp_path / "spec.toml"
        file.write_text(f"format = {FORMAT}\n" + to_toml(run))
        assert read_run(file) == run


class TestBases:
    def test_a_chain_is_laid_from_its_end(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text('dim = 64\nnum_layers = 2\n[norm]\nkind = "layer"\n')
        (tmp_path / "b.toml").write_text('base = "a.toml"\ndim = 96\n')
        (tmp_path / "c.toml").write_text('base = "b.toml"\nnum_layers = 5\n')
        spec = load(tmp_path / "c.toml")
        assert (spec.dim, spec.num_layers, spec.norm) == (96, 5, LayerNorm())

    def test_a_base_lies_beside_the_file_that_names_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "far/below").mkdir(parents=True)
        (tmp_path / "a.toml").write_text("dim = 64\n")
        (tmp_path / "far/below/b.toml").write_text('base = "../../a.toml"\n')
        (tmp_path / "far/c.toml").write_text('base = "below/b.toml"\n')
        monkeypatch.chdir(tmp_path)
        assert load("far/c.toml").dim == 64

    def test_a_preset_can_be_a_base(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text('base = "textbook"\ndim = 64\n')
        mine = load(tmp_path / "mine.toml")
        assert mine.override("dim=512").hash() == load("textbook").hash()
        assert mine.name == "mine"
        assert mine.source == ""  # another file's source is not its own

    def test_every_preset_can_be_a_base_of_a_base(self, tmp_path: Path) -> None:
        for name in preset_names("models"):
            (tmp_path / "mine.toml").write_text(f'base = "{name}"\n')
            (tmp_path / "other.toml").write_text('base = "mine.toml"\n')
            assert load(tmp_path / "other.toml").hash() == load(name).hash()

    def test_a_chain_has_eight_files_at_most(self, tmp_path: Path) -> None:
        for name, base in zip("bcdefghi", "abcdefgh", strict=True):
            (tmp_path / f"{name}.toml").write_text(f'base = "{base}.toml"\n')
        (tmp_path / "a.toml").write_text("")
        load(tmp_path / "h.toml")
        with pytest.raises(UserError, match=r"i\.toml: more than 8 files in a chain of bases"):
            load(tmp_path / "i.toml")

    def test_a_loop_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text('base = "b.toml"\n')
        (tmp_path / "b.toml").write_text(f'base = "../{tmp_path.name}/a.toml"\n')
        with pytest.raises(UserError, match=r"a\.toml: base leads back to itself"):
            load(tmp_path / "a.toml")

    @pytest.mark.parametrize(
        ("base", "said"),
        [
            ('"modren"', '"modren": no such preset; see'),
            ('"gone.toml"', "gone.toml: no such file"),
            ("3", "found 3; expected the name of a model"),
        ],
    )
    def test_a_base_that_is_not_there(self, tmp_path: Path, base: str, said: str) -> None:
        (tmp_path / "mine.toml").write_text(f"base = {base}\n")
        with pytest.raises(UserError) as caught:
            load(tmp_path / "mine.toml")
        assert lines(caught)[0].startswith(f"mine.toml: base: {said}")


class TestFiles:
    @pytest.mark.parametrize(
        ("contents", "said"),
        [
            (b"dim = \n", "mine.toml: not TOML: Invalid value (at line 1, column 7)"),
            (b'name = "\xff"\n', "mine.toml: not UTF-8 at byte 8; expected a TOML file"),
        ],
    )
    def test_a_file_that_is_no_toml(self, tmp_path: Path, contents: bytes, said: str) -> None:
        (tmp_path / "mine.toml").write_bytes(contents)
        with pytest.raises(UserError) as caught:
            load(tmp_path / "mine.toml")
        assert [line.removeprefix(f"{tmp_path}/") for line in lines(caught)] == [said]

    def test_a_byte_order_mark_is_no_mistake(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text("dim = 64\n", encoding="utf-8-sig")
        assert load(tmp_path / "mine.toml").dim == 64

    def test_a_preset_that_is_not_there(self) -> None:
        with pytest.raises(UserError) as caught:
            load("modren")
        (line,) = lines(caught)
        assert line.startswith('"modren": no such preset; see archwright list, ')
        assert line.endswith('or give a file ending in .toml. Did you mean "modern"?')

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").mkdir()
        with pytest.raises(UserError, match=r"mine\.toml: is a folder; expected a TOML file"):
            load(tmp_path / "mine.toml")


class TestRuns:
    def test_a_model_gets_the_default_run(self, tmp_path: Path) -> None:
        assert load_run("textbook") == RunSpec(name="textbook", model=load("textbook"))
        (tmp_path / "mine.toml").write_text("dim = 64\n")
        run = load_run(tmp_path / "mine.toml")
        assert (run.name, run.model.dim) == ("mine", 64)

    @pytest.mark.parametrize(
        "model", ['model = "textbook"', '[model]\nbase = "textbook"', 'model = "beside.toml"']
    )
    def test_a_recipe_names_its_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
    ) -> None:
        (tmp_path / "beside.toml").write_text('base = "textbook"\n')
        (tmp_path / "mine.toml").write_text(f"batch_size = 2\n{model}\n")
        monkeypatch.chdir("/")
        run = load_run(tmp_path / "mine.toml")
        assert (run.name, run.batch_size) == ("mine", 2)
        assert run.model.hash() == load("textbook").hash()

    def test_a_recipe_changes_its_model(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text(
            '[model]\nbase = "textbook"\ndim = 64\n[model.norm]\nkind = "rms"\n'
        )
        model = load_run(tmp_path / "mine.toml").model
        assert (model.dim, model.norm, model.residual.kind) == (64, RMSNorm(), "post")

    def test_the_objective_of_a_model_is_the_default_of_its_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("plain.toml").write_text("dim = 64\n")
        Path("bert.toml").write_text(
            'base = "plain.toml"\n[objective]\nkind = "masked_tokens"\nshare = 0.2\n'
        )
        Path("mine.toml").write_text('base = "bert.toml"\n[objective]\nrandom = 0\n')
        Path("recipe.toml").write_text('model = "mine.toml"\n[objective]\nkept = 0\n')
        assert load("bert.toml").hash() == load("plain.toml").hash()
        assert load_run("bert.toml").objective == MaskedTokens(share=0.2)
        assert load_run("mine.toml").objective == MaskedTokens(share=0.2, random=0)
        assert load_run("recipe.toml").objective == MaskedTokens(share=0.2, random=0, kept=0)
        run = load_run("mine.toml").override("objective.kind=next_token")
        assert run.objective == NextToken()
        told = '[sources]\nobjective = "as in section 3"\n'
        Path("told.toml").write_text(f'base = "bert.toml"\n{told}')
        found = [load_with_blame(f"{name}.toml").objective_source for name in ("mine", "told")]
        assert found == ["", "as in section 3"]

    def test_a_model_that_translates_has_pairs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = load_run("original-transformer")
        enforce_run(run)
        assert (run.objective.kind, run.data.pairs) == ("sequence_to_sequence", "synthetic")
        assert run.override("data.pairs=mine.tsv").data.pairs == "mine.tsv"
        spans = run.override("objective.kind=span_corruption", "data.text=stdlib")
        enforce_run(spans)
        assert spans.data.pairs == ""
        monkeypatch.chdir(tmp_path)
        Path("recipe.toml").write_text('model = "original-transformer"\nlabel_smoothing = 0.1\n')
        enforce_run(load_run("recipe.toml"))

    @pytest.mark.parametrize(
        ("objective", "said"),
        [
            ('kind = "maskedtokens"', 'mine.toml: objective.kind: found "maskedtokens"; '),
            ('kind = "masked_tokens"\nshare = 2', "mine.toml: objective.share: found 2; "),
            ("share = 0.2", "mine.toml: objective.share: unknown option"),
        ],
    )
    def test_a_wrong_objective_of_a_model(self, tmp_path: Path, objective: str, said: str) -> None:
        (tmp_path / "mine.toml").write_text(f"dim = 64\n[objective]\n{objective}\n")
        for read in (load, load_run):
            with pytest.raises(UserError) as caught:
                read(tmp_path / "mine.toml")
            (line,) = lines(caught)
            assert line.startswith(said)

    def test_a_recipe_may_leave_the_model_to_the_default(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text('budget = "9steps"\n')
        assert load_run(tmp_path / "mine.toml") == RunSpec(name="mine", budget="9steps")

    @pytest.mark.parametrize(
        ("contents", "said"),
        [
            ("model = 3", "mine.toml: model: found 3; expected a table"),
            ("[model]\nbase = 3", "mine.toml: base: found 3; expected the name of a model"),
            ("seed = 1\nlr = 2", "mine.toml: lr: unknown option; accepted: "),
        ],
    )
    def test_a_wrong_recipe(self, tmp_path: Path, contents: str, said: str) -> None:
        (tmp_path / "mine.toml").write_text(contents)
        with pytest.raises(UserError) as caught:
            load_run(tmp_path / "mine.toml")
        (line,) = lines(caught)
        assert line.startswith(said)


class TestOverride:
    def test_values_are_read_as_toml_and_else_as_text(self) -> None:
        run = RunSpec().override(
            "model.dim=1_024", "data.text=a/b c.txt", 'data.separator="\\n\\n"', "max_grad_norm=none",
            "optimizer.betas=[0.8, 0.9]", "model.head.tied=true", "budget=400steps", "data.field=",
            "init.from=runs/x",
        )  # fmt: skip
        assert (run.model.dim, run.data.text, run.data.separator) == (1024, ("a/b c.txt",), "\n\n")
        assert (run.max_grad_norm, run.model.head.tied, run.budget) == ("none", True, "400steps")
        assert (run.data.field, run.init.from_) == ("", "runs/x")
        assert run.optimizer.model_dump()["betas"] == (0.8, 0.9)

    def test_the_order_decides_nothing(self) -> None:
        words = ["norm.bias=false", "norm.kind=layer", "dim=64", "layer_kinds.a.norm.kind=none"]
        made = {load("modern").override(*some).hash() for some in permutations(words)}
        assert len(made) == 1
        assert load("modern").override(*words).norm == LayerNorm(bias=False)

    def test_a_table_sets_what_it_names(self) -> None:
        spec = ModelSpec().override('norm={kind = "layer", bias = false}', "norm.eps=0.1")
        assert spec.norm == LayerNorm(bias=False, eps=0.1)

    def test_the_spec_itself_stays(self) -> None:
        spec = ModelSpec()
        assert spec.override("dim=64") != spec
        assert spec == ModelSpec()

    @pytest.mark.parametrize("words", [["dim=64", "dim=32"], ["dim=32", "dim=64"]])
    def test_two_values_are_refused_in_any_order(self, words: list[str]) -> None:
        with pytest.raises(UserError, match=r"^dim: given twice, as .. and as ..$"):
            ModelSpec().override(*words)
        assert (
            ModelSpec().override(words[0], words[0]).hash() == ModelSpec().override(words[0]).hash()
        )

    @pytest.mark.parametrize("turned", [False, True])
    def test_a_whole_and_its_part_are_refused_in_any_order(self, turned: bool) -> None:
        words = ["attention.bias=true", "attention.bias.query=false"]
        with pytest.raises(UserError) as caught:
            ModelSpec().override(*(reversed(words) if turned else words))
        assert lines(caught) == (
            "attention.bias: given whole and, by attention.bias.query, in part",
        )

    @pytest.mark.parametrize(
        "key", ["dim=256", "norm.kind=layer", "init.kind=gpt2", "layer_kinds.near.norm.eps=1e-4"]
    )
    def test_the_name_of_the_model_s_table_may_be_left_out_or_given(self, key: str) -> None:
        run, model = RunSpec(), ModelSpec()
        assert run.override(key) == run.override(f"model.{key}") != run
        assert model.override(key) == model.override(f"model.{key}") == run.override(key).model

    def test_a_key_that_both_have_is_the_run_s(self) -> None:
        run = RunSpec().override("name=mine", "init.from=runs/other")
        assert (run.name, run.model.name, run.init.from_) == ("mine", "", "runs/other")

    def test_one_value_by_both_names_is_given_twice(self) -> None:
        with pytest.raises(UserError, match=r"model\.dim: given twice, as 64 and as 128"):
            RunSpec().override("dim=64", "model.dim=128")

    def test_a_key_of_the_model_is_found_in_a_run(self) -> None:
        with pytest.raises(UserError) as caught:
            RunSpec().override("num_heads=4", "lr=0.1", "model.attention.num_heds=4")
        assert lines(caught) == (
            'num_heads: unknown key. Did you mean "model.attention.num_heads"?',
            'lr: unknown key. Did you mean "optimizer.lr"?',
            'model.attention.num_heds: unknown key. Did you mean "model.attention.num_heads"?',
        )

    def test_all_that_is_wrong_is_said_at_once(self) -> None:
        with pytest.raises(UserError) as caught:
            load("modern").override("dim", "=3", "qqq=1", "num_layers=0", "norm.kind=lyer")
        assert lines(caught) == (
            '"dim": expected key=value, such as dim=256',
            '"=3": expected key=value, such as dim=256',
            "qqq: unknown key.",
            f'norm.kind: found "lyer"; expected one of {kinds(Norm)}. Did you mean "layer"?',
            "num_layers: found 0; expected at least 1",
        )


class TestDiff:
    def test_only_what_differs_is_named_and_names_are_left_out(self) -> None:
        old = load("modern")
        new = old.override("name=other", "dim=64", "norm.kind=layer", "layer_kinds.a.norm.kind=rms")
        assert diff(old, old.override("name=other", "source=x", "sources.dim=y")) == []
        assert diff(old, new) == [
            'norm.kind: "rms" -> "layer"',
            'norm.scale_in: "float32" -> -',
            "dim: 512 -> 64",
            "norm.bias: - -> true",
            'layer_kinds.a.norm.kind: - -> "rms"',
        ]

    def test_values_that_are_alike_are_told_as_one(self) -> None:
        old = load("modern")
        new = old.override("residual.multiplier=0.5", "attention.bias=true")
        assert diff(old, new) == [
            "residual.multiplier: 1.0 -> 0.5",
            "attention.bias: false -> true",
        ]
        new = old.override("residual.multiplier.attention=0.5", "attention.bias.out=true")
        assert diff(old, new) == [
            "residual.multiplier.attention: 1.0 -> 0.5",
            "attention.bias.out: false -> true",
        ]


@pytest.mark.parametrize("name", ["modern", "textbook"])
def test_a_model_preset_is_good_at_any_size(name: str) -> None:
    spec = load(name)
    assert (spec.name, spec.source != "") == (name, True)
    for dim, layers in [(64, 1), (128, 4), (4096, 32)]:
        heads = f"attention.num_heads={dim // 64 * 4}"
        assert spec.override(f"dim={dim}", f"num_layers={layers}", heads).resolved().dim == dim


@pytest.mark.parametrize("name", preset_names("runs"))
def test_a_run_preset_is_good(name: str) -> None:
    run = load_run(name)
    assert run.name == name
    assert run.model.resolved()


def test_a_source_is_given_by_its_path() -> None:
    spec = ModelSpec().override("sources.attention.num_heads=paper", 'sources={"head.tied" = "x"}')
    assert spec.sources == {"attention.num_heads": "paper", "head.tied": "x"}
    run = RunSpec().override("model.sources.head.tied=paper")
    assert run.model.sources == {"head.tied": "paper"}


def test_a_change_drops_the_sources_of_what_it_replaces() -> None:
    modern = load("modern")
    assert {"norm", "attention.num_kv_heads", "feedforward"} <= {*modern.sources}
    for words, dropped in (
        (("norm.kind=layer",), {"norm"}),
        (("attention.kind=latent",), {"attention.num_kv_heads"}),
        (("attention.num_kv_heads=8",), {"attention.num_kv_heads"}),
        (("feedforward.bias=true", "norm.eps=1"), set()),
        (("norm.kind=layer", "sources.norm=Ba et al."), set()),
    ):
        changed = modern.override(*words)
        assert {*modern.sources} - {*changed.sources} == dropped
        run = load_run("modern").override(*words)
        assert run.model.sources == changed.sources
        assert "source of no value" not in str(suspicions(changed))


def test_run_folders_of_before_are_read_without_removed_options(tmp_path: Path) -> None:
    """Those at their defaults only: others changed the model."""
    run = RunSpec()
    model = run.model_dump()["model"] | {"global_tokens": 0, "predicting_streams": 0}
    model["attention"] |= {"distance_scores": {"kind": "none"}}
    values = run.model_dump(by_alias=True) | {"model": model, "stream_decay": 1.0}
    file = tmp_path / "spec.toml"
    file.write_text(tomli_w.dumps(values))
    assert read_run(file) == run
    file.write_text(tomli_w.dumps(values | {"model": model | {"global_tokens": 2}}))
    with pytest.raises(UserError, match="global_tokens: unknown option"):
        read_run(file)
