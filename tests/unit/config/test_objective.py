"""An objective has its own settings and no others."""

from pathlib import Path
from typing import Any

import pytest

from data_pipeline.recipes.registry import OBJECTIVES
from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

DEBUG = Path(__file__).parents[3] / "configs" / "debug"
WRITTEN_BY_0_1_0: dict[str, Any] = {
    "label_smoothing": 0.0, "mean_span": 3.0, "next_sentence": False, "noise_density": 0.15, "packing": "windows",
    "noise": ["text_infilling", "sentence_permutation"], "sentinels": 100, "short_fraction": 0.1, "whole_words": False,
}  # fmt: skip


def _load(family: str, *overrides: str) -> RunConfig:
    return load(RunConfig, DEBUG / f"{family}.yaml", ["model.vocabulary=1000", *overrides])


@pytest.mark.parametrize(("family", "name"), [("gpt", "causal"), ("roberta", "masked"), ("t5", "span_corruption")])
def test_a_name_alone_is_an_objective(family: str, name: str) -> None:
    assert _load(family, f"objective={name}").objective == OBJECTIVES[name]()
    assert _load("gpt", "objective={packing: best_fit}").objective.name == "causal"


def test_a_config_reads_what_was_dumped_of_it(tmp_path: Path) -> None:
    for family in ("gpt", "bert", "roberta", "t5", "transformer", "bart"):
        config = _load(family)
        (tmp_path / "config.yaml").write_text(dump(config))
        assert load(RunConfig, tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective=maskd", ": did you mean 'masked'?"),
        ("objective.name=7", "'objective.name' = '7': expected one of causal, control, masked"),
        ("objective.nois_density=1", "unknown key 'objective.nois_density': did you mean 'objective.noise_density'?"),
        (
            "objective.zzz=1",
            "unknown key 'objective.zzz': known here with objective.name=masked: name, label_smoothing, z_loss, ",
        ),
        ("objective.noise_density=2", "'objective.noise_density' = 2: must be less than 1"),
        ("objective.sentinels=7", "objective.sentinels=7 does nothing with objective.name=masked: leave it out"),
        ("objective=[masked]", "'objective' = ['masked']: "),
    ],
)
def test_a_mistake_is_a_sentence(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        _load("bert", override)
    assert message in str(error.value)


def test_what_version_0_1_0_wrote_stands_at_every_objective_s_default() -> None:
    for key, value in WRITTEN_BY_0_1_0.items():
        kinds = [kind for kind in OBJECTIVES.values() if key in kind.model_fields and not kind.labelled]
        defaults = [kind.model_fields[key].default for kind in kinds]
        assert defaults
        assert all(default == value for default in defaults), key


@pytest.mark.parametrize(
    ("noise", "override", "message"),
    [
        ("[token_masking, token_deletion]", "objective.mean_span=2", "objective.mean_span=2.0 does nothing with"),
        ("[sentence_permutation]", "objective.mean_span=2", "leave it out (it is for text_infilling)"),
        ("[document_rotation]", "objective.noise_density=0.3", "objective.noise_density=0.3 does nothing with"),
    ],
)
def test_a_setting_that_no_chosen_noise_reads_is_refused(noise: str, override: str, message: str) -> None:
    alone = "objective.noise_density=0.15"  # the default, over the file's
    with pytest.raises(ConfigError) as error:
        _load("bart", alone, f"objective.noise={noise}", override)
    assert message in str(error.value)
    _load("bart", alone, f"objective.noise={noise}")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_setting_of_an_objective_changes_its_samples_or_its_loss(name: str) -> None:
    """Checks settings that distinguish one order of samples from another: all but those that only the loss reads, the
    padding that is computed, and the path of a file that counts by its content."""
    kind = OBJECTIVES[name]
    other = {
        "packing": "best_fit", "document_mask": True, "direction": "backward", "noise_density": 0.4,
        "whole_words": True, "next_sentence": True, "mean_span": 2.0,
        "sentinels": 50, "sentinel_ids": "last", "codes": {"wiki": "Books"}, "noise": ["token_masking"],
        "short_fraction": 0.5, "ngrams": 3, "sentence_order": True, "source_language": 2, "target_language": 3,
        "text": "title", "pair": "body", "label": "class", "labels": ["b", "a"], "format": "gpt", "segments": True,
        "words": "tokens", "tags": "entities", "question": "q", "context": "c", "answers": "a", "stride": 7,
        "max_question": 7, "input": "i", "target": "t", "prefix": {"wiki": "sum: "}, "prompt": "p", "response": "r",
        "messages": "m", "sequence_length": 8, "choices": "c", "max_choices": 3, "both_orders": True,
        "language": 1, "gap_fraction": 0.5, "selection": "lead", "score_noise": 0.1, "kept_fraction": 0.1,
        "language_model_weight": 0.5, "predict_one_in": 4, "max_span": 3, "masked_fraction": 1.0, "mask_smoothing": 0.7,
        "bi_data": True, "geometric": 0.2, "mask_together": True, "units": "optional",
        "heldout_noise_density": 0.4, "max_predictions": 9, "buckets": 64, "boundaries": "unicode",
        "template_variables": {"enable_thinking": False}, "date": "2024-07-26", "loss_on": "generation",
    }  # fmt: skip
    for key in kind.model_fields.keys() - {
        "name",
        "label_smoothing",
        "z_loss",
        "replaced_weight",
        "padding",
        "conditional_end",
        "chat_template",
        "subwords",
    }:
        words = {"whole_words": True}
        needed: dict[str, Any] = {
            "short_fraction": {"next_sentence": True}, "ngrams": words, "geometric": {**words, "ngrams": 3},
            "mask_together": words,
            "boundaries": words if name == "masked" else {"next_sentence": True} if "character" in name else {},
        }.get(key, {})  # fmt: skip
        needed |= {"codes": {"wiki": "Wiki"}} if name == "control" else {}
        needed |= (
            {"labels": [0, 1]} if name == "classification" else {"labels": ["a", "b"]} if name == "tagging" else {}
        )
        needed |= {"max_choices": 2} if name == "choice" else {}
        needed |= {"subwords": "a file"} if name == "character_subwords" else {}
        assert kind(**{**needed, key: other[key]}).settings() != kind(**needed).settings(), key
