"""Runs on labelled rows: their config, their length, and what is reported of their data."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.tokenizers.load import load_tokenizer, train_tokenizer
from pretrain.checkpoint.identity import config_fingerprint
from pretrain.commands.data_ledger import table
from pretrain.commands.data_trace import shown
from pretrain.config.run_config import RunConfig
from pretrain.data.ledger import planned_usage, skipped_usage, source_usage
from pretrain.data.resolve import open_dataset, open_datasets, resolve
from pretrain.data.stream import open_stream
from pretrain.data.trace import trace_documents, trace_samples
from pretrain.errors import ConfigError
from pretrain.evaluate.heldout import heldout_loss
from pretrain.evaluate.run_data import run_datasets
from pretrain.observe.points import data_inputs
from pretrain.run_length.segments import run_length
from tests.helpers.datasets import make_documents

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "bert": {"segments": 2, "binary_head": True},
    "roberta": {},
    "t5": {"positions": {"name": "relative"}},
    "bart": {},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two directories of labelled rows, 21 and 10 for training, and a tokenizer."""
    folder = tmp_path_factory.mktemp("labelled")
    train_tokenizer(make_documents(0, 60), "wordpiece", 300).save(folder / "tokenizer.json")
    for seed, (name, count) in enumerate((("reviews", 21), ("posts", 10))):
        (folder / name).mkdir()
        for split, rows in (("train", count), ("validation", 5)):
            texts = make_documents(seed, rows)
            lines = [
                json.dumps({"text": text, "pair": text[::-1], "label": ("bad", "good")[n % 2], "target": text[:9]})
                for n, text in enumerate(texts)
            ]
            (folder / name / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def config_of(folder: Path, family: str = "gpt", **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "run": {"dir": "unused", "seed": 5},
        "train": {"epochs": 3},
        "batch": {"sequences": 4, "micro_sequences": 2},
        "model": {"family": family, "layers": 1, "hidden": 8, "heads": 1, "sequence_length": 32, **FAMILIES[family]},
        "objective": {"name": "classification", "labels": ["bad", "good"]},
        "optimizer": {"learning_rate": 1},
        "data": {"path": str(folder / "reviews"), "tokenizer": str(folder / "tokenizer.json")},
    }
    return RunConfig.model_validate({**values, **changes})


def sources(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "sources": [{"path": str(folder / "reviews")}, {"path": str(folder / "posts")}],
        "tokenizer": str(folder / "tokenizer.json"),
        **more,
    }


@pytest.mark.parametrize(
    ("family", "name", "segments"),
    [
        ("gpt", "gpt", False),
        ("bert", "bert", True),
        ("roberta", "roberta", False),
        ("t5", "t5", False),
        ("bart", "bart", False),
    ],
)
def test_the_input_format_follows_from_the_family(folder: Path, family: str, name: str, segments: bool) -> None:
    config = resolve(config_of(folder, family))
    assert (config.objective.model_dump()["format"], config.objective.model_dump()["segments"]) == (name, segments)
    assert RunConfig.model_validate(config.model_dump()) == config, "as a checkpoint's config.yaml is read"
    stream, recipe = open_stream(config)
    batch = stream.batch(0, 4)
    assert (batch.loss_mask.sum(axis=1) == 1).all()
    assert (batch.segments is not None) == segments
    assert recipe.target_length == 32


def test_epochs_become_steps(folder: Path) -> None:
    config = resolve(config_of(folder))
    assert (config.train.steps, config.train.epochs) == (16, None)  # 3 * 21 / 4, rounded up
    assert run_length(config) == (16, 16 * 4 * 32)
    assert resolve(config_of(folder, train={"epochs": 0.5})).train.steps == 3
    assert resolve(config_of(folder, data=sources(folder), train={"epochs": 2})).train.steps == 16  # 2 * 31 / 4
    assert resolve(config) == config, "a run that resumes"


def test_a_fraction_of_epochs_becomes_steps_of_warm_up(folder: Path) -> None:
    config = resolve(config_of(folder, schedule={"name": "linear", "warmup_fraction": 0.25}))
    assert (config.schedule.warmup_steps, config.schedule.warmup_fraction) == (4, None)  # of 16
    assert resolve(config) == config, "a run that resumes"


def test_epochs_of_windows_count_windows(folder: Path, tmp_path: Path) -> None:
    row = {"question": "a", "context": "b " * 60, "answers": {"text": [], "start": []}}
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    config = config_of(
        folder,
        "bert",
        data={"path": str(tmp_path), "tokenizer": str(folder / "tokenizer.json")},
        objective={"name": "spans", "stride": 4, "max_question": 4},
        train={"epochs": 4},
    )
    stream, _ = open_stream(config)
    assert len(stream.samples) == 1
    assert stream.samples[0].count > 1
    assert resolve(config).train.steps == stream.samples[0].count


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train": {"epochs": 1, "steps": 3}}, "set exactly one of train.steps, train.tokens and train.epochs"),
        (
            {"batch": {"sequences": 4, "ramp": {"start_sequences": 2, "increment_sequences": 2, "tokens": 64}}},
            "train.epochs requires batches of one size and length",
        ),
        ({"objective": {"name": "causal"}}, "data.tokenizer is for labelled data"),
        ({"objective": {"name": "causal"}, "data": {"path": "set"}}, "train.epochs is for labelled data"),
        (
            {"objective": {"name": "classification", "labels": [0, 1], "format": "t5"}},
            "does not suit a model of the shape",
        ),
        ({"evaluate": {"tasks": ["copa"]}}, "evaluate.tasks scores language models"),
        ({"objective": {"name": "text_to_text"}}, "objective.name=text_to_text does not suit model.family=gpt"),
        ({"objective": {"name": "classification"}}, "labels"),
    ],
)
def test_settings_that_do_not_suit_are_refused(folder: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        config_of(folder, **changes)


def test_labelled_data_needs_a_tokenizer(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"objective.name=classification reads labelled text: set data.tokenizer to the tokenizer"
    ):
        resolve(config_of(folder, data={"path": str(folder / "reviews")}))
    with pytest.raises(DataError, match=r"Tokenizer .*missing.json can't be read"):
        resolve(config_of(folder, data={"path": str(folder / "reviews"), "tokenizer": str(folder / "missing.json")}))
    with pytest.raises(ConfigError, match=r"set data.path .* to a directory of train.jsonl and validation.jsonl"):
        resolve(config_of(folder, data={}))


def test_one_directory_is_one_source(folder: Path) -> None:
    twice = {"sources": [{"path": str(folder / "posts"), "name": name} for name in "ab"]}
    with pytest.raises(ConfigError, match="twice"):
        resolve(config_of(folder, data={**twice, "tokenizer": str(folder / "tokenizer.json")}))


def test_a_class_without_a_row_is_refused_before_the_first_step(folder: Path) -> None:
    config = config_of(folder, objective={"name": "classification", "labels": ["bad", "good", "fair"]})
    with pytest.raises(DataError, match=r"No row of .*reviews/train.jsonl has the label 'fair'"):
        open_stream(resolve(config))


def test_several_tasks_are_mixed_by_their_examples(folder: Path) -> None:
    objective = {"name": "text_to_text", "input": "text", "prefix": {"reviews": "review: ", "posts": "post: "}}
    mixing = {"name": "proportional", "cap": 15}
    config = resolve(config_of(folder, "t5", data=sources(folder, mixing=mixing), objective=objective))
    stream, _ = open_stream(config)
    assert stream.shares(0) == pytest.approx([15 / 25, 10 / 25])
    batch, prefixes = stream.batch(0, 20), [["review", ":"], ["post", ":"]]
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    for row, (source, _, _) in enumerate(batch.sample_ids.tolist()):
        start = tokenizer.encode(" ".join(prefixes[source]))
        assert batch.tokens[row, : len(start)].tolist() == start


@pytest.mark.parametrize(
    ("mixing", "rates"),
    [
        ({"name": "proportional", "cap": 12}, (12, 10)),
        ({"name": "temperature", "temperature": 2}, (21**0.5, 10**0.5)),
        ({"name": "temperature", "temperature": 2, "cap": 12}, (12**0.5, 10**0.5)),
    ],
    ids=["proportional, K = 12", "temperature 2", "temperature 2, K = 12"],
)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_ledger_counts_the_rows_of_each_task_that_ranks_read(
    folder: Path, mixing: dict[str, Any], rates: tuple[float, float], world: int
) -> None:
    """Also that the rows of a source are read equally often, or once more, and that rates are T5's."""
    config = resolve(config_of(folder, data=sources(folder, mixing=mixing), train={"epochs": 4}))
    assert config.train.steps == 31  # 4 * 31 / 4
    stream, _ = open_stream(config)
    read = np.zeros((2, 21), np.int64)
    for step in range(31):
        for rank in range(world):
            batch = stream.batch(step * 4, 4, rank, world)
            ids = batch.sample_ids[rank * len(batch.tokens) : (rank + 1) * len(batch.tokens)]
            np.add.at(read, (ids[:, 0], ids[:, 2]), 1)
    usage = source_usage(config, stream, 31 * 4)
    assert [one.samples for one in usage] == read.sum(axis=1).tolist()
    for one, of_source, rate in zip(usage, (read[0], read[1, :10]), rates, strict=True):
        assert abs(one.samples - 31 * 4 * rate / sum(rates)) <= 1
        assert one.epochs == one.samples / len(of_source)
        assert set(of_source.tolist()) <= {math.floor(one.epochs), math.ceil(one.epochs)}


def test_the_ledger_and_the_trace_name_rows(folder: Path) -> None:
    config = resolve(config_of(folder, data=sources(folder)))
    stream, _ = open_stream(config)
    usage = planned_usage(config, stream)
    assert [entry.name for entry in usage] == ["reviews", "posts"]
    assert sum(entry.samples for entry in usage) == 4 * (config.train.steps or 0)
    ids = stream.sample_ids(0, 12)
    part, _ = stream.locate(0, 12)
    for sample, (source, _, number) in zip(
        trace_samples(part, ids, ["reviews", "posts"], text=True), ids.tolist(), strict=True
    ):
        (document,) = sample["documents"]
        assert (document["file"], document["index"]) == ("train.jsonl", number)
        lines = (folder / ("reviews", "posts")[source] / "train.jsonl").read_text().split("\n")
        assert document["text"] == lines[number][:100]
        assert document["bytes"] == len(lines[number].encode())
        assert (sample["spans"], document["rows"]) == ([{"start": number, "rows": 1}], 1)
        first, second, _ = shown(sample).splitlines()
        assert first.endswith(f"sample {number}  rows {number}..{number}")
        assert second == f"    train.jsonl:{number}  {document['bytes']:,} bytes"
    assert {(one["source"], one["index"], one["rows"]) for one in trace_documents(part, ids, ["reviews", "posts"])} == {
        (("reviews", "posts")[source], number, 1) for source, _, number in ids.tolist()
    }


def test_the_table_of_a_labelled_run_counts_rows(folder: Path) -> None:
    skipped = [{"sample": 4, "samples": 4, "step": 2, "why": "a test"}]
    config = resolve(config_of(folder, run={"dir": "unused", "seed": 5, "skipped": skipped}))
    stream, _ = open_stream(config)
    report = {
        "step": 1, "steps": 16, "tokens": 128, "end_tokens": 2048, "samples": 4, "end_samples": 64, "labelled": True,
        "realised": [asdict(entry) for entry in source_usage(config, stream, 4)],
        "planned": [asdict(entry) for entry in source_usage(config, stream, 64)],
        "skipped": skipped_usage(config, stream), "changes": [],
    }  # fmt: skip
    head, titles, reviews, left_out = table(report).splitlines()
    assert head == "step 1 of 16, 4 of 64 rows"
    assert titles.split() == ["source", "weight", "rows", "of", "epochs", "of"]
    assert reviews.split() == ["reviews", "100.00%", "4", "64", "0.190", "3.048"]
    assert left_out == "left out at step 2, a test: 4 rows of reviews"


def test_a_tracker_hears_of_rows(folder: Path) -> None:
    config = config_of(folder)
    (entry,) = data_inputs(config.data.resolved_sources, open_datasets(config))
    assert entry.profile == {"train_rows": 21, "validation_rows": 5, "vocabulary": 300, "weight": 1.0}


def test_machines_may_keep_a_tokenizer_in_different_places(folder: Path) -> None:
    config = config_of(folder)
    moved = config.model_copy(update={"data": config.data.model_copy(update={"tokenizer": "elsewhere"})})
    assert config_fingerprint(config) == config_fingerprint(moved)


def test_no_text_of_a_labelled_run_is_evaluated(folder: Path) -> None:
    assert run_datasets(config_of(folder), load_tokenizer(folder / "tokenizer.json")) == []


def test_a_source_is_labelled_rows_where_the_objective_is(folder: Path) -> None:
    config = config_of(folder)
    dataset = open_dataset(config, config.data.resolved_sources[0])
    assert isinstance(dataset, LabelledDataset)
    assert (dataset.name, dataset.vocabulary_size, dataset.remote, dataset.report()) == ("reviews", 300, False, {})


def test_a_run_resumes_with_the_tokenizer_that_it_began_with(folder: Path, tmp_path: Path) -> None:
    """Runs once read the file alone, whatever lay beside it."""
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true, "bos_token": "[CLS]"}')
    data = {"path": str(folder / "reviews"), "tokenizer": str(tmp_path / "tokenizer.json")}
    config = config_of(folder, data=data, run={"dir": str(tmp_path / "run")})
    bare = load_tokenizer(tmp_path / "tokenizer.json")
    (new,) = open_datasets(config)
    assert new.tokenizer().begin_of_text is not None
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    bare.save(checkpoint / "tokenizer.model")
    (resumed,) = open_datasets(config)
    assert resumed.tokenizer_identity == bare.identity != new.tokenizer_identity


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("sequences", [None, 4])
def test_the_held_out_loss_is_of_labelled_rows(folder: Path, world: int, sequences: int | None) -> None:
    config = resolve(config_of(folder, data=sources(folder)))
    stream, recipe = open_stream(config)
    sums = []
    for rank in range(world):
        engine: Any = SimpleNamespace(
            data_rank=rank,
            data_world=world,
            score=lambda batch: SimpleNamespace(log_probability=-1.0 - batch.labels, terms={}),
            sum_over_data=lambda values: values,
        )
        scored = heldout_loss(engine, stream.datasets, recipe, sequences, rank_rows=2)
        assert (scored.words, scored.text_bytes, scored.bits_per_byte) == (None, None, None)
        sums.append(np.array(scored.by_source))
    total = np.sum(sums, axis=0)
    assert total[:, 1].tolist() == ([5, 5] if sequences is None else [2, 2])
    assert total[:, 0].tolist() == ([7, 7] if sequences is None else [3, 3])  # a loss of 1, and of 2 for each "good"
