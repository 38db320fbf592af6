"""YAML, `extends`, overrides and validation: what is read, and what a mistake says."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from pretrain.config.attention import Banded, Dense
from pretrain.config.load import dump, load, read
from pretrain.config.parallel import Parallel
from pretrain.config.positions import LinearScaling, RotaryPositions
from pretrain.config.run_config import RunConfig
from pretrain.config.schedule import ConstantSchedule, CosineSchedule
from pretrain.errors import ConfigError

MINIMAL = """
run: {dir: runs/a}
train: {steps: 10}
batch: {sequences: 8}
model: {layers: 2, hidden: 64, heads: 4, sequence_length: 32}
optimizer: {learning_rate: 3e-4}
schedule: {}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return write(tmp_path / "run.yaml", MINIMAL)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(RunConfig, path, list(overrides))
    assert error.value.exit_status == 2
    return str(error.value)


class TestUnknownKeys:
    def test_nested_key_names_its_nearest_match(self, config_file: Path) -> None:
        said = message(config_file, "model.hiden=64")
        assert "unknown key 'model.hiden': did you mean 'model.hidden'?" in said

    def test_section_names_its_nearest_match(self, config_file: Path) -> None:
        assert "unknown key 'optimiser': did you mean 'optimizer'?" in message(config_file, "optimiser={}")

    def test_two_levels_down(self, config_file: Path) -> None:
        assert "did you mean 'model.attention.window'?" in message(config_file, "model.attention.windows=3")

    def test_under_an_optional_section(self, config_file: Path) -> None:
        said = message(config_file, "batch.ramp={start_sequences: 4, increment_sequences: 4, tokens: 64, token: 1}")
        assert "unknown key 'batch.ramp.token': did you mean 'batch.ramp.tokens'?" in said

    def test_in_a_list(self, config_file: Path) -> None:
        said = message(config_file, "data.sources=[{path: a}, {path: b, wieght: 2}]")
        assert "unknown key 'data.sources.1.wieght': did you mean 'data.sources.1.weight'?" in said

    def test_with_nothing_near_lists_what_is_known(self, config_file: Path) -> None:
        said = message(config_file, "checkpoint.zzz=1")
        assert "unknown key 'checkpoint.zzz': known here: every_steps, keep, best, in_flight" in said

    @pytest.mark.parametrize(
        ("override", "meant"),
        [
            ("seed=1", "'run.seed'"),
            ("model.seed=1", "'run.seed'"),
            ("parallel.zero_stage=1", "'parallel.zero'"),
            ("model.num_layers=1", "'model.layers'"),
            ("learning_rate=1", "'optimizer.learning_rate'"),
            ("steps=1", "'train.steps' or 'profile.steps' or 'batch.short.steps'"),
            ("model.learning_rte=1", "'optimizer.learning_rate'"),
        ],
    )
    def test_of_another_section_or_with_words_added_is_found(
        self, config_file: Path, override: str, meant: str
    ) -> None:
        assert f"unknown key '{override.split('=')[0]}': did you mean {meant}?" in message(config_file, override)


class TestWhoIsToBlame:
    def test_the_file_for_what_is_in_it(self, config_file: Path) -> None:
        config_file.write_text(MINIMAL.replace("hidden: 64", "hidden: 63"))
        said = message(config_file, "train.steps=20", "run.seed=3")
        assert said.startswith(f"{config_file}: model.hidden=63 is not a multiple")

    def test_the_command_line_for_a_key_in_it(self, config_file: Path) -> None:
        assert message(config_file, "run.seed=3", "model.layers=0").startswith("command line: 'model.layers' = 0")

    def test_the_command_line_for_a_rule_between_its_key_and_the_file_s(self, config_file: Path) -> None:
        said = message(config_file, "run.seed=3", "train.tokens=5")
        assert said == "command line, train.tokens: set exactly one of train.steps, train.tokens and train.epochs"

    def test_the_file_for_its_mistake_beside_one_that_is_typed(self, config_file: Path) -> None:
        config_file.write_text(MINIMAL.replace("dir: runs/a", "dir: 3"))
        assert message(config_file, "model.layers=0").startswith(f"{config_file}: 'run.dir' = 3")

    def test_a_key_that_only_the_command_line_gives_is_not_blamed_for_being_needed(self, config_file: Path) -> None:
        config_file.write_text(MINIMAL.replace("run: {dir: runs/a}", ""))
        said = message(config_file, "run.dir=runs/a", "objective=masked")
        assert said.startswith("command line, objective: objective.name=masked does not suit model.family=gpt")


def test_a_home_directory_is_found_in_paths_alone(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    overrides = [
        "run.dir=~/run",
        "data.sources=[{path: ~/a}, {path: s3://b/~c}]",
        "data.cache_dir=~/cache",
        "run.name=~/n",
    ]
    config = load(RunConfig, config_file, overrides)
    assert (config.run.dir, config.data.cache_dir) == ("/home/somebody/run", "/home/somebody/cache")
    assert [source.path for source in config.data.sources] == ["/home/somebody/a", "s3://b/~c"]
    assert config.run.name == "~/n"


class TestYaml:
    def test_numbers_and_words_are_yaml_1_2(self, config_file: Path) -> None:
        config = load(RunConfig, config_file, ["optimizer.learning_rate=3e-4", "run.name=no", "track.experiment=on"])
        assert config.optimizer.learning_rate == 0.0003
        assert isinstance(config.optimizer.learning_rate, float)
        assert (config.run.name, config.track.experiment) == ("no", "on")

    def test_whole_floats_are_counts(self, config_file: Path) -> None:
        config = load(RunConfig, config_file, ["train.steps=null", "train.tokens=300e9"])
        assert config.train.tokens == 300_000_000_000
        assert isinstance(config.train.tokens, int)

    def test_a_fraction_is_no_count(self, config_file: Path) -> None:
        assert "'train.steps' = 1.5: " in message(config_file, "train.steps=1.5")

    def test_broken_yaml_names_file_and_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "broken.yaml", "run:\n  dir: [a\nmodel: }\n")
        said = message(path)
        assert f"{path}, line 3: not valid YAML" in said

    def test_a_key_given_twice_is_refused(self, tmp_path: Path) -> None:
        assert "not valid YAML" in message(write(tmp_path / "twice.yaml", MINIMAL + "train: {steps: 20}\n"))

    def test_missing_file(self, tmp_path: Path) -> None:
        assert "no such config file" in message(tmp_path / "nothing.yaml")

    def test_a_directory(self, tmp_path: Path) -> None:
        assert "cannot be read as a config file" in message(tmp_path)

    def test_a_list_is_no_config(self, tmp_path: Path) -> None:
        assert "a config is a mapping of keys, found list" in message(write(tmp_path / "list.yaml", "- a\n"))


class TestExtends:
    def test_chain_merges_mappings_and_replaces_the_rest(self, tmp_path: Path) -> None:
        write(tmp_path / "base.yaml", MINIMAL + "data: {sources: [{path: a}, {path: b}]}\n")
        (tmp_path / "sub").mkdir()
        write(tmp_path / "sub" / "middle.yaml", "extends: ../base.yaml\nmodel: {layers: 3}\noptimizer: {beta2: 0.99}\n")
        leaf = write(
            tmp_path / "sub" / "leaf.yaml", "extends: middle.yaml\nmodel: {layers: 5}\ndata: {sources: [{path: c}]}\n"
        )
        config = load(RunConfig, leaf)
        assert (config.model.layers, config.model.hidden, config.optimizer.beta2) == (5, 64, 0.99)
        assert [source.path for source in config.data.sources] == ["c"]

    def test_settings_of_another_choice_do_not_come_with_it(self, tmp_path: Path) -> None:
        linear = "schedule: {name: linear, warmup_steps: 3, final_fraction: 0.2}"
        write(tmp_path / "base.yaml", MINIMAL.replace("schedule: {}", linear))
        schedule = load(
            RunConfig, write(tmp_path / "a.yaml", "extends: base.yaml\nschedule: {name: constant}")
        ).schedule
        assert schedule == ConstantSchedule(warmup_steps=3)
        wrong = write(tmp_path / "b.yaml", "extends: base.yaml\nschedule: {name: constant, final_fraction: 0.2}")
        assert "schedule.final_fraction=0.2 does nothing with schedule.name=constant" in message(wrong)

    def test_loop_names_the_chain(self, tmp_path: Path) -> None:
        write(tmp_path / "a.yaml", "extends: b.yaml\n")
        write(tmp_path / "b.yaml", "extends: a.yaml\n")
        assert "extends itself through a.yaml -> b.yaml" in message(tmp_path / "a.yaml")

    def test_same_parent_of_two_children_is_no_loop(self, tmp_path: Path) -> None:
        write(tmp_path / "base.yaml", MINIMAL)
        for child in ("a", "b"):
            assert read(write(tmp_path / f"{child}.yaml", "extends: base.yaml\n"))["train"] == {"steps": 10}

    def test_missing_parent_is_named(self, tmp_path: Path) -> None:
        assert "gone.yaml: no such config file" in message(write(tmp_path / "a.yaml", "extends: gone.yaml\n"))


class TestOverrides:
    def test_nested_and_lists(self, config_file: Path) -> None:
        config = load(RunConfig, config_file, ["model.attention.pattern=[dense, banded]", "run.seed=7"])
        assert config.model.attention.pattern == [Dense(), Banded()]
        assert config.run.seed == 7

    def test_make_sections_that_the_file_lacks(self, config_file: Path) -> None:
        assert load(RunConfig, config_file, ["parallel.tensor=2"]).parallel.tensor == 2

    def test_of_another_choice_leave_out_what_the_file_says_of_the_first(self, tmp_path: Path) -> None:
        scaling = (
            "model: {positions: {name: rotary, scaling: {name: yarn, factor: 4, original_length: 32, beta_fast: 16}}}\n"
        )
        linear = "schedule: {name: linear, final_fraction: 0.2, warmup_steps: 3}\n"
        base = write(tmp_path / "base.yaml", MINIMAL)
        file = write(tmp_path / "a.yaml", f"extends: {base.name}\n{scaling}{linear}")
        config = load(RunConfig, file, ["schedule.name=constant", "model.positions.scaling.name=linear"])
        assert config.schedule == ConstantSchedule(warmup_steps=3)
        assert config.model.positions == RotaryPositions(scaling=LinearScaling(factor=4))
        assert load(RunConfig, file, ["schedule.name=cosine"]).schedule == CosineSchedule(
            warmup_steps=3, final_fraction=0.2
        )
        mistyped = write(tmp_path / "b.yaml", f"extends: {file.name}\nschedule: {{final: 0.1}}\n")
        assert "unknown key 'schedule.final'" in message(mistyped, "schedule.name=constant")

    def test_of_a_choice_that_has_them_not_are_refused_as_typed(self, config_file: Path) -> None:
        for order in (1, -1):
            said = message(config_file, *["schedule.name=constant", "schedule.final_fraction=0.2"][::order])
            assert said.startswith("command line")
            assert "final_fraction=0.2 does nothing with schedule.name=constant" in said

    def test_the_last_one_wins(self, config_file: Path) -> None:
        assert load(RunConfig, config_file, ["run.seed=1", "run.seed=2"]).run.seed == 2

    def test_value_may_hold_an_equals_sign(self, config_file: Path) -> None:
        assert load(RunConfig, config_file, ["run.name=a=b"]).run.name == "a=b"

    @pytest.mark.parametrize("override", ["train.steps", "=3", "train.steps 3"])
    def test_without_key_or_value_is_refused(self, config_file: Path, override: str) -> None:
        assert f"'{override}' is not an override: write key=value" in message(config_file, override)

    def test_broken_value_is_refused(self, config_file: Path) -> None:
        assert "override 'run.name=[a', line 1: not valid YAML" in message(config_file, "run.name=[a")

    def test_below_a_value_that_is_no_section_is_refused(self, config_file: Path) -> None:
        assert "'train.steps'" in message(config_file, "train.steps.more=3")

    def test_into_a_list_is_refused(self, config_file: Path) -> None:
        assert "data.sources" in message(config_file, "data.sources=[{path: a}]", "data.sources.0.path=b")


class TestValidation:
    def test_missing_required_key(self, config_file: Path) -> None:
        config_file.write_text(MINIMAL.replace("layers: 2, ", ""))
        assert "'model.layers' is required" in message(config_file)

    def test_missing_required_section(self, config_file: Path) -> None:
        config_file.write_text(MINIMAL.replace("optimizer: {learning_rate: 3e-4}", ""))
        assert "'optimizer' is required" in message(config_file)

    def test_wrong_type_shows_the_value(self, config_file: Path) -> None:
        assert "'model.layers' = 'many': expected an integer" in message(config_file, "model.layers=many")

    def test_out_of_range_shows_the_range(self, config_file: Path) -> None:
        assert "'model.layers' = 0: must be greater than 0" in message(config_file, "model.layers=0")

    def test_unknown_choice_lists_the_choices(self, config_file: Path) -> None:
        said = message(config_file, "precision=fp64")
        assert "'precision' = 'fp64'" in said
        assert "'bf16'" in said

    @pytest.mark.parametrize(
        ("override", "sentence"),
        [
            ("train.tokens=5", "set exactly one of train.steps, train.tokens and train.epochs"),
            ("train.steps=null", "set exactly one of train.steps, train.tokens and train.epochs"),
            ("model.heads=5", "model.hidden=64 is not a multiple of model.heads=5: set model.head_dim"),
            ("data={path: a, sources: [{path: b}]}", "set data.path or data.sources, not both"),
            (
                "batch.ramp={start_sequences: 3, increment_sequences: 4, tokens: 1000}",
                "batch.ramp cannot reach batch.sequences=8 from 3 in steps of 4",
            ),
        ],
    )
    def test_rules_between_keys(self, config_file: Path, override: str, sentence: str) -> None:
        assert sentence in message(config_file, override)


class TestDump:
    def test_load_reads_back_an_equal_config(self, tmp_path: Path, config_file: Path) -> None:
        config = load(
            RunConfig,
            config_file,
            [
                "run.name=no",
                "optimizer.eps=1e-12",
                "optimizer.learning_rate=0.1234567890123456789",
                "train.steps=null",
                "train.tokens=300e9",
                "data.sources=[{path: 'a: b', weight: 2}, {path: '3e-4'}]",
                "batch.ramp={start_sequences: 4, increment_sequences: 4, tokens: 1000}",
                "track.experiment='null'",
            ],
        )
        assert load(RunConfig, write(tmp_path / "again.yaml", dump(config))) == config

    def test_a_config_cannot_be_changed(self, config_file: Path) -> None:
        config = load(RunConfig, config_file)
        with pytest.raises(ValidationError, match="frozen"):
            config.parallel = Parallel(tensor=2)  # type: ignore[misc]
        with pytest.raises(ValidationError, match="frozen"):
            config.model.layers = 3  # type: ignore[misc]


def test_adafactor_has_defaults_of_its_own_which_survive_a_dump(config_file: Path) -> None:
    config = load(RunConfig, config_file, ["optimizer.name=adafactor"])
    assert (config.optimizer.beta1, config.optimizer.weight_decay, config.optimizer.scale_parameter) == (0.0, 0.0, True)
    assert load(RunConfig, write(config_file.with_name("again.yaml"), dump(config))) == config
    assert load(RunConfig, config_file, ["optimizer.name=adafactor", "optimizer.beta1=0.9"]).optimizer.beta1 == 0.9
    assert load(RunConfig, config_file, ["optimizer.name=lamb"]).optimizer.weight_decay == 0.1


@pytest.mark.parametrize(
    ("optimizer", "key"),
    [
        ("adafactor", "optimizer.beta2=0.99"),
        ("adafactor", "optimizer.eps=1e-06"),
        ("adamw", "optimizer.scale_parameter=False"),
        ("lamb", "optimizer.scale_parameter=False"),
    ],
)
def test_what_an_optimizer_does_not_use_is_refused(optimizer: str, key: str, config_file: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key} does nothing with optimizer.name={optimizer}: leave it out"):
        load(RunConfig, config_file, [f"optimizer.name={optimizer}", key])


@pytest.mark.parametrize(
    ("key", "record"),
    [
        ("changes", "[{why: x, step: 5, settings: {optimizer.learning_rate: 0.1}}]"),
        ("skipped", "[{step: 3, sample: 16, samples: 8, why: x}]"),
    ],
)
def test_what_a_run_records_is_taken_from_its_own_config_alone(key: str, record: str, tmp_path: Path) -> None:
    path = write(tmp_path / "config.yaml", MINIMAL.replace("dir: runs/a", f"dir: runs/a, {key}: {record}"))
    by_hand = rf"run\.{key} is written by the run"
    with pytest.raises(ConfigError, match=by_hand):
        load(RunConfig, path)
    (tmp_path / "events.jsonl").write_text("")
    assert len(getattr(load(RunConfig, path).run, key)) == 1
    with pytest.raises(ConfigError, match=by_hand):
        load(RunConfig, path, [f"run.{key}={record}"])
