"""Data without the begin of text that its tokenizer puts before a text, as earlier versions built it: it stays what it
is, and whoever trains on it or scores the model is told. Data with it is trained on as it is scored."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.build.build import build
from data_pipeline.build.inputs import build_identity
from data_pipeline.cli import build_and_show, inspect
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.recipes.causal import Causal
from data_pipeline.tokenizers.hf_json import JsonTokenizer
from pretrain.config.run_config import RunConfig
from pretrain.config.start import is_imported
from pretrain.data.unseen_begin import warnings_of_scoring, warnings_of_training
from pretrain.evaluate import opening
from pretrain.evaluate.measures.perplexity import windows
from pretrain.evaluate.scorers.base import encode_pair
from pretrain.run_dir.paths import RECORD
from tests.helpers.begins import BEGIN, tokenizer_files
from tests.helpers.datasets import Silent, build_dataset, make_documents, settings
from tests.helpers.small_configs import config

TEXTS = make_documents(0, 40)
NEVER = f"never holds {BEGIN}"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """begun: documents begin with <s>; old: as an earlier version built them with the same tokenizer; plain: with a
    tokenizer that has no begin."""
    folder = tmp_path_factory.mktemp("sets")
    begun, plain = tokenizer_files(TEXTS, folder)
    made = {"plain": build_dataset(TEXTS, folder, "plain_set", tokenizer={"path": plain})}
    made["begun"] = build_dataset(TEXTS, folder, "begun_set", tokenizer={"path": begun})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_pipeline.build.build.build_identity", partial(build_identity, as_now=False))
        patch.setattr(JsonTokenizer, "begin_of_text", property(lambda self: None, lambda self, value: None))
        made["old"] = build_dataset(TEXTS, folder, "old_set", tokenizer={"path": begun}, workers=1)
    return made


def run(*datasets: Dataset, **sections: Any) -> RunConfig:
    sources = [{"path": dataset.address, "name": f"s{number}"} for number, dataset in enumerate(datasets)]
    return config(train={"steps": 1}, data={"sources": sources}, **sections)


def test_documents_are_read_in_training_as_they_are_scored(sets: dict[str, Dataset]) -> None:
    """A document on its own is the beginning of a row. Of one that is cut into windows, only the first has a begin."""
    begun, tokenizer = sets["begun"], sets["begun"].tokenizer()
    samples = Causal(packing="best_fit").recipe(tokenizer, 512).samples(begun, "train")
    rows = samples.rows(0, np.array([[0, 0, number] for number in range(samples.count)]))
    trained = [
        tokens[documents == one].tolist()
        for tokens, documents in zip(rows.tokens, rows.documents, strict=True)
        for one in range(documents.max() + 1)
    ]
    pairs = [encode_pair(tokenizer, "", tokenizer.decode(ids)) for _, ids in begun.documents("train")]
    scored = [[*read, *target] for read, target in pairs]
    assert len(trained) > 30
    assert all(tokens in scored for tokens in trained)
    (read, ids), begin = max(pairs, key=lambda pair: len(pair[1])), tokenizer.begin_of_text
    first, *later = windows(ids, read[-1], 16, 8)
    assert list(first[0]) == [begin]
    assert len(later) > 3
    assert all(begin not in read for read, _ in later)


def test_a_dataset_of_an_earlier_version_stays_what_it_is(
    sets: dict[str, Dataset], capsys: pytest.CaptureFixture[str]
) -> None:
    old, plain = sets["old"], sets["plain"]
    assert old.manifest.begin_of_text is None
    assert (
        old.window("train", 0, old.num_tokens("train")).tolist()
        == plain.window("train", 0, plain.num_tokens("train")).tolist()
    )
    text = old.directory.parent / "old_set.txt"
    tokenizer = old.directory.parent / "begun" / "tokenizer.json"
    again = settings(input=str(text), output=old.directory, tokenizer={"path": tokenizer})
    build_and_show(again)
    shown = capsys.readouterr().out
    assert "is already built from this input" in shown
    assert f"warning: no document begins with {BEGIN}, which evaluation" in shown
    assert not build(again, Silent)


@pytest.mark.parametrize(("name", "line"), [("begun", f"{BEGIN} before each document"), ("plain", "")])
def test_what_documents_begin_with_is_shown(
    sets: dict[str, Dataset], name: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect(sets[name].address)
    shown = capsys.readouterr().out
    assert "warning" not in shown
    assert (line in shown) if line else ("begin" not in shown)


@pytest.fixture
def starts(tmp_path: Path) -> dict[str, str]:
    """Runs whose newest checkpoint was imported, or trained here."""
    for name, step in (("imported", 0), ("trained", 7)):
        checkpoint = tmp_path / name
        checkpoint.mkdir()
        (checkpoint / RECORD).write_text(json.dumps({"step": step}))
    return {name: str(tmp_path / name) for name in ("imported", "trained")}


def test_training_says_that_a_begin_is_missing(sets: dict[str, Dataset], starts: dict[str, str]) -> None:
    old, begun, plain = sets["old"], sets["begun"], sets["plain"]

    def notes(*datasets: Dataset, **sections: Any) -> tuple[str, ...]:
        return warnings_of_training(run(*datasets, **sections), datasets)

    (note,) = notes(old)
    assert NEVER in note
    assert f"{old.address} never" in note
    (note,) = notes(begun, old)
    assert f"documents of {old.address} do not begin with {BEGIN}, and all other texts of this run do" in note
    assert [is_imported(starts[name]) for name in starts] == [True, False]
    (note,) = notes(old, run={"start_from": starts["imported"]})
    assert f"was trained on begin with {BEGIN}" in note
    # A run that was trained without it continues without it, and with random weights nothing is known.
    assert notes(old, run={"start_from": starts["trained"]}) == ()
    (note,) = notes(old, run={"start_from": starts["imported"]}, finetune={"weights": "random"})
    assert NEVER in note
    assert notes(begun) == notes(plain) == notes(begun, run={"start_from": starts["imported"]}) == ()
    masked = run(old, model={"family": "bert"}, objective={"name": "masked"})
    assert warnings_of_training(masked, [old]) == ()


def test_scoring_says_that_a_begin_is_missing(sets: dict[str, Dataset], starts: dict[str, str]) -> None:
    (note,) = warnings_of_scoring(run(sets["old"]))
    assert f"was trained on {sets['old'].address}, which {NEVER}" in note
    assert warnings_of_scoring(run(sets["begun"])) == warnings_of_scoring(run(sets["plain"])) == ()
    assert warnings_of_scoring(run(sets["old"], sets["begun"])) == ()
    assert warnings_of_scoring(run(sets["old"], run={"start_from": starts["trained"]})) == ()
    gone = run(sets["old"]).model_dump(mode="json")
    gone["data"]["sources"][0]["path"] += "-gone"
    assert warnings_of_scoring(RunConfig.model_validate(gone)) == ()


@pytest.mark.parametrize(("step", "warned"), [(7, True), (0, False)])
def test_whoever_opens_a_checkpoint_is_warned_once(
    sets: dict[str, Dataset],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: int,
    warned: bool,
) -> None:
    """Not of an imported one, which other data trained."""
    for name in ("plan_layout", "check_memory_on_all_ranks", "make_engine", "_load"):
        monkeypatch.setattr(opening, name, lambda *values, **options: None)
    monkeypatch.setattr(opening.rendezvous, "init_process_group", lambda *values: None)
    monkeypatch.setattr(opening, "dist", type("One", (), {"get_rank": lambda: 0, "get_world_size": lambda: 1}))
    monkeypatch.setattr(opening.Record, "read", lambda path: type("Read", (), {"step": step}))
    opening.build_scorer(run(sets["old"]), Path("checkpoint"))
    assert capsys.readouterr().err.count(NEVER) == int(warned)
