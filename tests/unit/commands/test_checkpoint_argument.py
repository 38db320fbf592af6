"""Which keys commands on a checkpoint take, and whose code they run."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from pretrain.__main__ import main
from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.state import Record, check_predicts_tokens
from pretrain.commands import checkpoint_argument
from pretrain.commands.checkpoint_argument import REPORT_KEYS, find_checkpoints, use_newest
from pretrain.config.patterns import function
from pretrain.errors import ConfigError, RunError
from tests.helpers.small_configs import config

CODE = """
from pathlib import Path

def local(query, key):
    (Path(__file__).parent / "called").touch()
    return (query - key < 8) & (key <= query)
"""


@pytest.fixture(autouse=True)
def _nothing_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "_trusted", set())
    monkeypatch.setattr(function, "_trusts_all", False)


def checkpoint(directory: Path, **sections: Any) -> Path:
    found = config(**sections).model_dump(mode="json")
    path = directory / "checkpoints" / "step-00000001"
    path.mkdir(parents=True)
    cursor = {"samples": 240, "fingerprint": "f"}
    (path / "record.json").write_bytes(
        Record(step=1, updates=1, tokens=1, cursor=cursor, config=found, layout="one", versions={}).encode()
    )
    return path


def opened(path: Path, *overrides: str, trust: bool = False, uses: tuple[str, ...] = (), model: Any = "all") -> Any:
    return find_checkpoints(Namespace(checkpoint=path, trust_code=trust), list(overrides), True, uses, model)[1]


def test_a_file_and_a_dataset_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {}\n")
    (tmp_path / "dataset").mkdir()
    for name in ("manifest.json", "train-00000.tar"):
        (tmp_path / "dataset" / name).write_text("{}")
    for path in (tmp_path / "config.yaml", tmp_path / "dataset"):
        with pytest.raises(ConfigError, match="is neither a checkpoint nor a run that has one"):
            locate(path)


def test_the_newest_is_taken_again_where_a_run_removes_a_checkpoint_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = checkpoint(tmp_path / "run")
    new = old.with_name("step-00000002")
    stale = iter([[old]])
    monkeypatch.setattr(checkpoint_argument, "locate", lambda path: next(stale, None) or locate(path))
    old.rename(new)
    assert find_checkpoints(Namespace(checkpoint=tmp_path / "run", trust_code=False), [], True)[0] == [new]

    newest, read = new.with_name("step-00000003"), []

    def generate(config: Any, checkpoint: Path, texts: list[str], request: Any) -> list[dict[str, Any]]:
        read.append(checkpoint)
        if checkpoint == new:
            new.rename(newest)
            raise RunError(f"{new} cannot be read")
        return [{"prompt": texts[0], "text": " end"}]

    monkeypatch.setattr("pretrain.evaluate.opening.open_checkpoint", lambda candidates, *_: (config(), candidates[0]))
    monkeypatch.setattr("pretrain.evaluate.generate.generate", generate)
    assert main(["generate", str(tmp_path / "run"), "--prompt", "The"]) == 0
    assert read == [new, newest]
    assert capsys.readouterr().out == "[prompt] The\n[text]  end\n"


def test_another_error_and_a_named_checkpoint_are_not_tried_again(tmp_path: Path) -> None:
    one, calls = checkpoint(tmp_path / "run"), []

    def fails(candidates: list[Path]) -> None:
        calls.append(candidates)
        raise RunError("damaged")

    with pytest.raises(RunError, match="damaged"):
        use_newest(tmp_path / "run", [one], fails)
    with pytest.raises(RunError, match="damaged"):
        use_newest(one.with_name("step-00000009"), [one.with_name("step-00000009")], fails)
    assert len(calls) == 2


def test_a_run_of_two_models_is_asked_which_is_meant(tmp_path: Path) -> None:
    electra = {"family": "electra", "segments": 2, "norm": "post", "activation": "gelu"}
    two = {"model": electra, "generator": {"hidden": 16, "heads": 2}, "objective": {"name": "replaced_tokens"}}
    checkpoint(tmp_path / "two", **two)
    checkpoint(tmp_path / "one")
    with pytest.raises(ConfigError, match=r"step-00000001 has two models.*choose one with --model discriminator or"):
        opened(tmp_path / "two", model=None)
    both = opened(tmp_path / "two")
    assert both.generator is not None
    discriminator, generator = (opened(tmp_path / "two", model=name) for name in ("discriminator", "generator"))
    assert discriminator.generator is generator.generator is None
    assert (discriminator.model, generator.model) == (both.model, both.generator_model)
    with pytest.raises(ConfigError, match="tells whether a token was replaced, and predicts none: choose the gen"):
        check_predicts_tokens(discriminator, tmp_path)
    check_predicts_tokens(generator, tmp_path)
    assert opened(tmp_path / "one", model=None) == opened(tmp_path / "one")
    with pytest.raises(ConfigError, match="has one model, and --model chooses between two: leave it out"):
        opened(tmp_path / "one", model="generator")


def test_of_several_checkpoints_the_newest_says_what_is_wrong(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "checkpoints" / "step-00000001").rename(tmp_path / "checkpoints" / "step-00000002")
    checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="step-00000002 has one model"):
        opened(tmp_path, model="generator")


def test_a_key_that_does_nothing_is_refused_and_one_that_does_is_taken(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    for override in ("optimizer.learning_rate=1", "train.steps=3", "data.path=x", "run.dir=x", "schedule=constant"):
        with pytest.raises(ConfigError, match=f"{override.partition('=')[0]} changes nothing here: leave it out"):
            opened(tmp_path, override)
    assert opened(tmp_path, "precision=bf16", "parallel.tensor=2").precision == "bf16"
    assert opened(tmp_path, "data.path=x", uses=REPORT_KEYS).data.path == "x"
    with pytest.raises(ConfigError, match="did you mean 'parallel'"):
        opened(tmp_path, "paralel.tensor=2")


def test_code_of_a_run_is_called_only_where_it_is_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "seen.py"
    file.write_text("raise SystemExit('run')")
    path = checkpoint(tmp_path)
    tree = json.loads((path / "record.json").read_text())
    tree["config"]["model"]["attention"]["pattern"] = [{"name": "function", "function": f"{file}:local"}]
    (path / "record.json").write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match=r"names code.*seen\.py:local, .* give --trust-code"):
        opened(tmp_path)
    file.write_text(CODE)
    with pytest.raises(ConfigError, match="--trust-code"):
        opened(tmp_path)
    assert not (tmp_path / "called").exists()
    trusted = opened(tmp_path, trust=True)
    assert "runs code" in capsys.readouterr().err
    assert trusted.model.attention.layer_pattern(0).head(0, 0, None).attends(1, 0)
    assert (tmp_path / "called").exists()


def test_a_config_of_ones_own_needs_no_flag_and_a_record_cannot_call_what_it_does_not_name(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(CODE)
    mine = config(model={"attention": {"pattern": [{"name": "function", "function": f"{tmp_path}/seen.py:local"}]}})
    assert mine.model.attention.layer_pattern(0).attends(1, 0)
    with function.recorded_config():
        other = function.Function(function=f"{tmp_path}/other.py:local")
    with pytest.raises(ConfigError, match="--trust-code"):
        other.attends(1, 0)
