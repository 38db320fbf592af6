"""Answers that a fine-tuned model writes for rows: what it has learned, the same on any ranks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.loader import ChainedStreams, SampleStream
from data_pipeline.tokenizers.load import train_tokenizer
from pretrain.checkpoint import store
from pretrain.config.run_config import RunConfig
from pretrain.data.stream import open_stream
from pretrain.engine.collective import file_group
from pretrain.finetune.judge import AnsweredSplit
from pretrain.finetune.texts import TextJudge, make_text_judge
from tests.helpers.breadth import only
from tests.helpers.datasets import make_documents
from tests.helpers.families import family_config
from tests.helpers.hf import save
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine

ANSWERS = {"red": "a rose", "blue": "the sea and the sky", "green": "grass", "white": "snow", "black": "coal at night"}
"""What the model learns to say of each word."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor": 2, "sequence": True},
    "pp2": {"pipeline": 2},
    "dp2": {"zero": 1},
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "t5": {"name": "text_to_text", "prefix": "say: "},
    "bart": {"name": "text_to_text"},
    "prefix-lm": {"name": "text_to_text"},
    "llama": {"name": "instructions", "prompt": "input", "response": "target"},
}
STEPS, BATCH = 60, 8
Judged = dict[str, AnsweredSplit]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of words and what is to be said of them; the test split has an answer that nobody can know."""
    folder = tmp_path_factory.mktemp("words")
    texts = [*make_documents(0, 40), *[f"{word} is {answer}" for word, answer in ANSWERS.items()] * 20]
    train_tokenizer(texts, "wordpiece", 250).save(folder / "tokenizer.json")
    rows = [{"input": word, "target": answer} for word, answer in ANSWERS.items()]
    splits = {"train": rows * 8, "validation": rows, "test": [*rows[:2], {"input": "red", "target": "a door"}]}
    for split, of_split in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in of_split))
    return folder


def _config(folder: Path, family: str, parallel: dict[str, Any], **more: Any) -> RunConfig:
    config = family_config(family, parallel=parallel, batch={"sequences": BATCH, "micro_sequences": 4})
    tree = config.model_dump(mode="json")
    tree |= {"objective": OBJECTIVES[family], "optimizer": {"learning_rate": 3e-3, "weight_decay": 0.0}, **more}
    tree["data"] = {"path": str(folder), "tokenizer": str(folder / "tokenizer.json")}
    return RunConfig.model_validate(tree)


def _judge(config: RunConfig, checkpoint: Path | None = None) -> tuple[TextJudge, SampleStream | ChainedStreams]:
    """The judge of an engine, which has the weights of a checkpoint, and the rows that it is trained on."""
    stream, recipe = open_stream(config)
    engine = build_engine(config)
    if checkpoint is not None:
        store.load(checkpoint, engine.state(), file_group(60))
        engine.state_loaded(0)
    (dataset,) = stream.datasets
    assert isinstance(dataset, LabelledDataset)
    return make_text_judge(config, engine, dataset, recipe, []), stream


def _learned(folder: Path, family: str) -> tuple[Judged, Judged]:
    """Answers after some steps, and those of at most two tokens. The weights are saved beside the rows."""
    config = _config(folder, family, {})
    judge, stream = _judge(config)
    for step in range(STEPS):
        judge.engine.train_step(stream.batch(step * BATCH, BATCH), config.optimizer.learning_rate, step + 1)
    save(judge.engine, config, folder / "tokenizer.json", folder / family)
    short = replace(judge, config=_config(folder, family, {}, evaluate={"new_tokens": 2}))
    return _all(judge), _all(short)


def _on_layouts(folder: Path, family: str) -> dict[str, Judged]:
    """Answers of the weights that were saved, on each layout."""
    found = {}
    for name, parallel in LAYOUTS.items():
        judge, _ = _judge(_config(folder, family, parallel), folder / family / "step-00000000")
        assert judge.obstacle is None
        found[name] = _all(judge)
        meet_again()
    return found


def _all(judge: TextJudge) -> Judged:
    return {"validation": judge("validation"), "test": judge("test")}


@pytest.mark.parametrize("family", only(["t5"], OBJECTIVES))
def test_what_a_model_has_learned_to_say_is_judged_alike_on_any_ranks(folder: Path, family: str) -> None:
    one, short = run_ranks(1, _learned, folder, family)[0]
    validation, test = one["validation"], one["test"]
    assert [answer.predicted for answer in validation.predictions] == list(ANSWERS.values())
    assert [answer.number for answer in validation.predictions] == list(range(len(ANSWERS)))
    assert set(validation.figures.values()) == {1.0}
    assert [answer.expected for answer in test.predictions] == [["a rose"], ["the sea and the sky"], ["a door"]]
    assert [answer.predicted for answer in test.predictions] == ["a rose", "the sea and the sky", "a rose"]
    if "exact_match" in test.figures:
        assert test.figures == {"exact_match": pytest.approx(2 / 3)}
    assert test.notes == ()
    _check_short(short["validation"])
    for ranks in run_ranks(2, _on_layouts, folder, family):
        for layout, judged in ranks.items():
            for split in ("validation", "test"):
                assert judged[split].predictions == one[split].predictions, layout
                assert judged[split].figures == one[split].figures
                assert judged[split].heldout.loss == pytest.approx(one[split].heldout.loss, rel=1e-4)
                assert judged[split].heldout.token_count == one[split].heldout.token_count


def _check_short(judged: AnsweredSplit) -> None:
    """Answers of at most two tokens begin as the expected ones, and a note says that they were cut."""
    for answer, expected in zip(judged.predictions, ANSWERS.values(), strict=True):
        assert answer.predicted
        assert expected.startswith(answer.predicted)
    assert judged.predictions[1].predicted in ("the", "the sea")
    (note,) = judged.notes
    assert "answers to the validation rows reached the most tokens of an answer" in note


def _obstacle(folder: Path, parallel: dict[str, Any]) -> str | None:
    return _judge(_config(folder, "llama", parallel))[0].obstacle


@pytest.mark.parametrize("parallel", [{"context": 2}, {"zero": 3, "zero_engine": "deepspeed"}])
def test_a_layout_that_writes_no_texts_says_so(folder: Path, parallel: dict[str, Any]) -> None:
    for sentence in run_ranks(2, _obstacle, folder, parallel):
        assert sentence is not None
        assert "the answers of the model are not judged" in sentence
