"""`pretrain keys` as it is typed."""

import json

import pytest

from pretrain.__main__ import main


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["keys", *argv]) == 0
    return capsys.readouterr().out


def test_a_key_is_shown_with_all_that_is_known_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "run.seed") == (
        "run.seed\n    whole number at least 0; default 1234\n    seed of weights, sample order and dropout\n"
    )
    assert "\n    one of fp32, bf16, fp16, fp8; default fp32\n" in printed(capsys, "precision")
    assert "; required\n" in printed(capsys, "run.dir")
    assert "; default 0.0; with optimizer.name = adafactor\n" in printed(capsys, "optimizer.beta1")


def test_a_pattern_is_a_part_of_a_key_or_has_stars(capsys: pytest.CaptureFixture[str]) -> None:
    def names(pattern: str) -> list[str]:
        return [key["dotted"] for key in json.loads(printed(capsys, pattern, "--json"))]

    assert names("dropout") == [
        "model.dropout", "model.attention_dropout", "model.ffn_dropout", "finetune.lora.dropout",
    ]  # fmt: skip
    assert names("*dropout") == names("dropout")
    assert names("health.s*") == [
        "health.stop_on_nan", "health.stragglers", "health.straggler_steps", "health.spike", "health.spike.name",
        "health.spike.k", "health.spike.window", "health.spike.max_rollbacks", "health.spike.within_steps",
    ]  # fmt: skip
    assert names("data.sources[].w*") == ["data.sources[].weight"]


def test_json_has_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    every = json.loads(printed(capsys, "--json"))
    shown = [line for line in printed(capsys).splitlines() if not line.startswith(" ")]
    assert [key["dotted"] for key in every] == shown
    (zero,) = [key for key in every if key["dotted"] == "parallel.zero"]
    assert (zero["choices"], zero["default"], zero["required"]) == ([0, 1, 2, 3], 1, False)


def test_a_build_s_keys_are_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "one of bpe, unigram, wordpiece, byte_bpe, bytes, characters; default bpe" in printed(
        capsys, "--build", "tokenizer.type"
    )


def test_a_pattern_without_a_match_names_near_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "lerning_rate"]) == 2
    assert capsys.readouterr().err == (
        "pretrain: no key matches 'lerning_rate': did you mean optimizer.learning_rate or "
        "optimizer.adamw_learning_rate or finetune.lora.embedding_rate?\n"
    )


def test_a_key_is_found_by_another_systems_name_and_by_words_of_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    def names(pattern: str) -> list[str]:
        return [key["dotted"] for key in json.loads(printed(capsys, pattern, "--json"))]

    assert "optimizer.learning_rate" in names("lr")
    assert names("num-layers") == ["model.layers", "model.mtp.num_layers"]
    assert names("save interval") == ["checkpoint.every_steps"]
    assert "optimizer.beta2" in names("second moment")


def test_a_value_finds_the_keys_that_can_have_it_and_those_that_exist_only_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [key["dotted"] for key in json.loads(printed(capsys, "lion", "--json"))]
    assert {"optimizer.name", "optimizer.beta1"} <= set(found)
    assert all(key.startswith("optimizer.") for key in found)
    assert "model.positions.scaling.beta_fast" in printed(capsys, "yarn")


def test_a_setting_of_a_choice_within_a_choice_names_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    """`factor` is of every scaling, which rotary positions have; `beta_fast` of one kind of scaling."""
    assert "required; with model.positions.name = rotary\n" in printed(capsys, "scaling.factor")
    assert "; with model.positions.scaling.name = yarn\n" in printed(capsys, "scaling.beta_fast")
    assert "; with steps[].name = quality\n" in printed(capsys, "--build", "steps[].reading.text_field")
