"""Settings without a point: refused in new runs, said in runs that have begun; and those that may be meant."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.commands.finetune import config_of, finetune_parser
from pretrain.config.attention import Attention, Banded
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.doubtful_settings import doubtful_settings
from pretrain.data.pointless_settings import check_new_run, pointless_settings
from pretrain.errors import ConfigError
from tests.helpers.families import family_config
from tests.helpers.shipped import NO_RUNS

CONFIGS = Path(__file__).parents[2] / "configs"
RUNS = sorted(
    path
    for path in CONFIGS.rglob("*.yaml")
    if path.relative_to(CONFIGS).parts[0] not in NO_RUNS and path.stem != "common"
)
CLASSES = {"name": "classification", "labels": ["a", "b"]}
MUON = {"name": "muon", "learning_rate": 1e-3}
STARTED = {"dir": "unused", "start_from": "a/checkpoint"}


def changed(family: str, **sections: Any) -> RunConfig:
    """A config of 4 layers of width 64, in which sections are replaced, or their keys if they begin with `+`."""
    tree = family_config(family).model_dump(mode="json")
    tree |= {"train": {"steps": 100}, "optimizer": {"learning_rate": 1e-3}}
    start = sections.pop("run", {"dir": "unused"})
    config = RunConfig.model_validate(
        tree | {name: {**tree[name], **one} if name == "model" else one for name, one in sections.items()}
    )
    return config.model_copy(update={"run": config.run.model_copy(update=start)})


def experts(**settings: Any) -> dict[str, Any]:
    return {"experts": {"count": 4, "top_k": 2, **settings}}


POINTLESS: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"objective": CLASSES | {"label": "text"}}, "objective.text and objective.label both name the field"),
    ("bert", {"objective": {"name": "regression", "pair": "label"}}, "objective.pair and objective.label both name"),
    (
        "bert",
        {"objective": {"name": "tagging", "labels": ["a", "b"], "tags": "words"}},
        "objective.words and objective.tags both name the field 'words'",
    ),
    (
        "bert",
        {"objective": {"name": "spans", "answers": "context", "stride": 1, "max_question": 4}},
        "objective.context and objective.answers",
    ),
    ("llama", {"objective": {"name": "instructions", "response": "prompt"}}, "objective.prompt and objective.response"),
    ("bert", {"finetune": {"lora": {}}}, "finetune.lora freezes most weights, which without run.start_from are random"),
    ("bert", {"finetune": {"adapters": {}}}, "finetune.adapters freezes most weights"),
    ("bert", {"finetune": {"train": "top", "layers": 1}}, "finetune.train=top freezes most weights"),
    ("bert", {"finetune": {"lora": {"rank": 65}}, "run": STARTED}, "rank=65 is more than a matrix of 192 x 64"),
    ("bert", {"evaluate": {"positive": "a"}}, "evaluate.positive=a is the class of the figure f1"),
    ("bert", {"objective": CLASSES, "evaluate": {"positive": "a"}}, "which this run does not compute"),
    ("bert", {"objective": CLASSES, "evaluate": {"new_tokens": 5}}, "evaluate.new_tokens=5 is of answers"),
    ("llama", {"evaluate": {"new_tokens": 5}}, "with objective.name=causal it writes none"),
    ("bert", {"objective": CLASSES, "evaluate": {"normalization": "unicode"}}, "evaluate.normalization=unicode is of"),
    ("llama", {"objective": {"name": "instructions"}, "evaluate": {"bleu_tokenize": "zh"}}, "bleu_tokenize=zh is of"),
    ("llama", {"evaluate": {"lanes": 2}}, "evaluate.lanes=2 divides held-out text among the memories"),
    ("llama", {"profile": {"ranks": [1]}}, "profile.ranks is for the steps of profile.steps"),
    (
        "llama",
        {"optimizer": MUON | {"adjust_lr_fn": "original", "update_rms": 0.3}},
        "optimizer.update_rms=0.3 does nothing with optimizer.adjust_lr_fn=original",
    ),
    (
        "llama",
        {"optimizer": MUON | {"ns_final_coefficients": [1, 0, 0]}},
        "does nothing with optimizer.ns_final_steps=0",
    ),
    ("llama", {"optimizer": MUON | {"ns_coefficients": [0, 0, 0]}}, "bring singular values to between 0 and 0"),
    ("llama", {"optimizer": MUON | {"ns_coefficients": [9, 9, 9]}}, "updates are orthogonal where they are near 1"),
    (
        "llama",
        {"model": {"mtp": {"num_layers": 100}}},
        "num_layers=100 further tokens lie beyond a row of 32 positions",
    ),
    ("bert", {"finetune": {"unfreeze_steps": 100}, "run": STARTED}, "lets no layer below the head join"),
    ("llama", {"data": {"path": "a/rows"}, "run": {"dir": "a/rows/run"}}, "lies in a/rows, the directory of the run's"),
    ("llama", {"data": {"path": "rows"}, "run": {"dir": "./rows"}}, "lies in rows"),
]
DOUBTFUL: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"evaluate": {"shots": [0, 1]}}, "evaluate.shots does nothing without evaluate.tasks"),
    ("llama", {"evaluate": {"limit": 9}}, "evaluate.limit does nothing"),
    ("llama", {"batch": {"sequences": 8, "ramp": {"start_sequences": 4, "increment_sequences": 4, "tokens": 10**6}}},
     "the run, which never has batches of batch.sequences=8"),
    ("llama", {"model": {"attention": {"pattern": ["dense"] * 9}}}, "has 9 entries for 4 layers"),
    ("llama", {"model": {"attention": {"pattern": ["banded"], "window": 32}}}, "the pattern banded of window=32"),
    ("bert", {"model": {"attention": {"pattern": [{"name": "blocks", "block": 64}]}}}, "the pattern blocks in"),
    ("bert", {"objective": CLASSES, "finetune": {"train": "head"}}, "finetune freezes weights that are random"),
    ("bert", {"finetune": {"lora": {}, "weights": "random"}, "run": STARTED}, "which is of use to compare with alone"),
    ("bert", {"finetune": {"adapters": {"size": 65}}, "run": STARTED}, "and an adapter is a bottleneck"),
    ("bert", {"finetune": {"unfreeze_steps": 40}, "run": STARTED}, "lets 2 of 4 layers join"),
    ("t5", {"objective": {"name": "text_to_text", "target": "input"}}, "so that the model learns to copy it"),
    ("llama", {"optimizer": {"learning_rate": 1e-3, "eps": 1}}, "optimizer.eps=1 is more than most gradients"),
    ("llama", {"optimizer": {"learning_rate": 1e-3, "weight_decay": 100}}, "takes 10% of each weight in every step"),
    ("llama", {"optimizer": {"learning_rate": 0.5}}, "moves each weight by about as much in a step of adamw"),
    ("llama", {"optimizer": {"learning_rate": 1e-10}}, "the learning rate is 1.0e-10 at most"),
    ("llama", {"schedule": {"name": "power", "amplitude": 1e-15}}, "below the rounding of most weights"),
    ("llama", {"optimizer": MUON | {"ns_coefficients": [1.5, -0.5, 0], "ns_steps": 1}}, "bring singular values to"),
    ("llama", {"optimizer": MUON | {"qk_clip_threshold": 1e-6}}, "keeps attention nearly even"),
    ("llama", {"model": {"dropout": 0.99}}, "model.dropout=0.99: most is dropped"),
    ("llama", {"objective": {"name": "causal", "label_smoothing": 0.9}}, "most of each label is spread"),
    ("llama", {"model": {"final_logit_softcap": 0.01}}, "keeps probabilities nearly even"),
    ("llama", {"model": experts(balance_loss=1e6)}, "balance_loss=1e+06 is a term of the loss beside 1"),
    ("llama", {"model": experts(selection_bias=True, bias_rate=5)}, "so that it alone chooses experts"),
    ("llama", {"model": experts(selection_bias=True)}, "selection_bias stays 0 with model.experts.bias_rate=0"),
    ("llama", {"model": {"mtp": {"num_layers": 1, "loss_scaling_factor": 0}}}, "the modules of model.mtp untrained"),
    ("llama", {"health": {"spike": {"name": "act", "k": 0.1}}}, "counts sound steps as spikes"),
    ("llama", {"health": {"replay_every": 101}}, "is more than the 100 steps of the run, so that it does nothing"),
    ("llama", {"track": {"norms_every_steps": 1000}}, "so that it does nothing"),
    ("llama", {"track": {"offline": True}}, "track.offline does nothing"),
    ("llama", {"schedule": {"name": "linear", "final_fraction": 1}}, "leaves nothing to decay"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "sections", "words"), POINTLESS)
def test_a_new_run_is_refused_and_one_that_has_begun_is_warned(
    family: str, sections: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changed(family, **sections)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        check_new_run(config)
    assert words in str(error.value)
    (tmp_path / config.run.dir).mkdir(parents=True)
    (tmp_path / config.run.dir / "metrics.jsonl").touch()
    check_new_run(config)
    assert str(error.value) in doubtful_settings(config)


@pytest.mark.parametrize(("family", "sections", "words"), DOUBTFUL)
def test_what_may_be_meant_is_said_once(family: str, sections: dict[str, Any], words: str) -> None:
    config = changed(family, **sections)
    assert list(pointless_settings(config)) == []
    (said,) = doubtful_settings(config)
    assert words in said


@pytest.mark.parametrize(
    ("family", "sections"),
    [
        ("llama", {}),
        ("bert", {"objective": CLASSES, "evaluate": {"positive": "a", "figures": ["accuracy", "f1"]}}),
        ("bert", {"finetune": {"lora": {"rank": 64}}, "run": STARTED}),
        ("bert", {"finetune": {"unfreeze_steps": 20}, "run": STARTED}),
        ("llama", {"objective": {"name": "instructions"}, "evaluate": {"new_tokens": 5, "words": "unicode"}}),
        ("llama", {"objective": {"name": "instructions"}, "evaluate": {"figures": ["bleu"], "bleu_tokenize": "zh"}}),
        ("llama", {"objective": {"name": "instructions", "response": "prompt", "messages": "turns"}}),
        ("llama", {"optimizer": MUON | {"adjust_lr_fn": "original"}}),
        ("llama", {"optimizer": MUON | {"ns_final_steps": 2, "ns_steps": 8}}),
        ("llama", {"model": {"mtp": {"num_layers": 31}}}),
        ("llama", {"model": {"attention": {"pattern": ["banded"], "window": 8}}}),
        ("llama", {"model": {"attention": {"pattern": ["banded"], "window": 64}}, "run": STARTED}),
        ("llama", {"model": experts(selection_bias=True, bias_rate=0.001, balance_loss=0.01)}),
        ("llama", {"data": {"path": "a/rows"}, "run": {"dir": "a/rows-run"}}),
    ],
)
def test_what_is_meant_is_not_said(family: str, sections: dict[str, Any]) -> None:
    assert doubtful_settings(changed(family, **sections)) == ()


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(CONFIGS).with_suffix("")))
def test_no_shipped_config_is_doubtful(path: Path) -> None:
    config = load(RunConfig, path)
    vocabulary = config.model.vocabulary or 8192
    model = config.model.model_copy(update={"vocabulary": vocabulary})
    found = doubtful_settings(config.model_copy(update={"model": model}))
    assert [one for one in found if "makes the learning rate 0 in the last step" not in one] == []  # as published


def test_a_run_is_given_one_start(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"extends: finetune/classification\nrun: {{dir: {tmp_path / 'run'}, start_from: other}}\n")
    options = finetune_parser().parse(["checkpoint", str(file)])
    with pytest.raises(ConfigError, match=r"run.start_from=other and the checkpoint checkpoint both say"):
        config_of(options)
    options = finetune_parser().parse(["checkpoint", "finetune/classification", "run.dir=a", "run.start_from=b"])
    with pytest.raises(ConfigError, match=r"leave run.start_from out"):
        config_of(options)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    options = finetune_parser().parse(["checkpoint", str(file)])
    with pytest.raises(ConfigError, match="start_from=checkpoint is neither a checkpoint nor a run"):
        config_of(options)


@pytest.mark.parametrize(("recorded", "said"), [(64, 0), (8, 1)])
def test_a_window_beyond_the_row_may_be_that_of_the_weights(
    recorded: int, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = Attention(pattern=[Banded()], window=recorded).model_dump(mode="json")
    monkeypatch.setattr("pretrain.data.doubtful_settings.recorded_model", lambda start: {"attention": attention})
    config = changed("llama", model={"attention": {"pattern": ["banded"], "window": 64}}, run=STARTED)
    assert len(doubtful_settings(config)) == said
