"""Sources with objectives of their own: rows are those of each objective alone, at exact rates, for every batch and
rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.batch import Rows
from data_pipeline.errors import DataError
from data_pipeline.recipes.by_source import check_special_ids
from data_pipeline.recipes.causal import Causal
from data_pipeline.recipes.masked import Masked
from data_pipeline.recipes.span_corruption import SpanCorruption
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.data.stream import open_stream
from tests.helpers.datasets import build_dataset, build_pairs, make_documents

LENGTH = 48
T5 = {"family": "t5", "encoder_layers": 1, "layers": 1, "hidden": 16, "heads": 2, "sequence_length": LENGTH}
XLM = {"family": "bert", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": LENGTH, "segments": 2,
       "binary_head": False}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, pairs and rows of a task with one tokenizer."""
    folder = tmp_path_factory.mktemp("sources")
    text = build_dataset(make_documents(0, 80), folder, "text")
    tokenizer = {"tokenizer": {"path": str(text.tokenizer_path)}}
    build_pairs([(f"der Satz {i} ist lang", f"sentence {i}") for i in range(60)], folder, "pairs", **tokenizer)
    rows = folder / "rows"
    rows.mkdir()
    for split, count in (("train", 40), ("validation", 8)):
        lines = [json.dumps({"input": f"word {i}", "target": f"answer {i}"}) for i in range(count)]
        (rows / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _config(sources: list[dict[str, Any]], model: dict[str, Any], objective: dict[str, Any], **data: Any) -> RunConfig:
    tree = {
        "run": {"dir": "unused"}, "train": {"steps": 20}, "batch": {"sequences": 8}, "model": model,
        "objective": objective, "optimizer": {"learning_rate": 1}, "data": {"sources": sources, **data},
    }  # fmt: skip
    return resolve(RunConfig.model_validate(tree))


def _t5(folder: Path) -> RunConfig:
    return _config(
        [
            {"path": str(folder / "text"), "weight": 3},
            {"path": str(folder / "rows"), "weight": 1, "objective": {"name": "text_to_text", "prefix": "say: "}},
        ],
        T5,
        {"name": "span_corruption"},
        tokenizer=str(folder / "text" / "tokenizer.model"),
    )


def _xlm(folder: Path) -> RunConfig:
    return _config(
        [
            {"path": str(folder / "text"), "weight": 1, "objective": {"name": "masked", "language": 1}},
            {"path": str(folder / "pairs"), "weight": 1},
        ],
        XLM,
        {"name": "tlm"},
    )


def _ul2(folder: Path) -> RunConfig:
    denoisers = {"short": (3.0, 0.15), "long": (12.0, 0.15), "extreme": (3.0, 0.5)}
    return _config(
        [
            {
                "path": str(folder / "text"),
                "name": name,
                "objective": {"name": "span_corruption", "mean_span": span, "noise_density": density},
            }
            for name, (span, density) in denoisers.items()
        ],
        {**T5, "target_length": 60},
        {"name": "span_corruption"},
    )


MIXES = {"t5": _t5, "xlm": _xlm, "ul2": _ul2}


def _same(one: Rows, other: Rows) -> bool:
    columns = {name: values for name, _, values in one.columns()}
    others = {name: values for name, _, values in other.columns()}
    return columns.keys() == others.keys() and all(np.array_equal(columns[name], others[name]) for name in columns)


@pytest.mark.parametrize("mix", MIXES)
def test_rows_are_those_of_each_objective_alone_at_exact_rates(mix: str, folder: Path) -> None:
    config = MIXES[mix](folder)
    stream, recipe = open_stream(config)
    batch = stream.batch(16, 24)
    weights = np.array([source.weight for source in config.data.sources])
    counts = np.bincount(stream.sample_ids(0, 120)[:, 0])
    assert np.array_equal(counts, 120 * weights / weights.sum())
    for number, source in enumerate(config.data.sources):
        mine = np.flatnonzero(batch.sample_ids[:, 0] == number)
        assert len(mine)
        objective = source.objective or config.objective
        tokenizer = stream.datasets[0].tokenizer()
        alone = objective.recipe(tokenizer, LENGTH, config.model.target_length)
        expected = alone.samples(stream.datasets[number], "train").rows(config.run.seed, batch.sample_ids[mine])
        if expected.attention_mask is None and batch.attention_mask is not None:
            expected = replace(expected, attention_mask=np.ones_like(expected.tokens, np.bool_))
        expected = replace(expected, source=np.full(len(mine), number))
        assert _same(Rows(**{name: values[mine] for name, _, values in Rows.columns(batch)}), expected)
        assert alone.vocabulary <= recipe.vocabulary == config.model.vocabulary


@pytest.mark.parametrize("mix", MIXES)
def test_a_batch_is_the_same_on_any_ranks(mix: str, folder: Path) -> None:
    stream, _ = open_stream(MIXES[mix](folder))
    whole = stream.batch(8, 8)
    for world in (2, 8):
        parts = [stream.batch(8, 8, rank, world) for rank in range(world)]
        for name, _, values in Rows.columns(whole):
            assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), values)


def test_another_objective_of_a_source_is_another_order(folder: Path) -> None:
    one, other = _ul2(folder), _ul2(folder)
    sources = [source.model_copy(update={"objective": SpanCorruption()}) for source in other.data.sources]
    other = other.model_copy(update={"data": other.data.model_copy(update={"sources": sources})})
    cursors = [open_stream(config)[0].cursor(0).fingerprint for config in (one, other)]
    assert cursors[0] != cursors[1]


def test_rows_of_a_language_say_so(folder: Path) -> None:
    stream, _ = open_stream(_xlm(folder))
    batch = stream.batch(0, 16)
    assert batch.segments is not None
    assert batch.positions is not None
    mono = batch.sample_ids[:, 0] == 0
    assert (batch.segments[mono] == 1).all()
    assert (batch.positions[mono] == np.arange(LENGTH)).all()
    assert set(batch.segments[~mono].ravel()) == {0, 1}


@pytest.mark.parametrize(
    ("model", "run", "its_own", "message"),
    [
        (XLM, {"name": "tlm"}, {"name": "masked"}, "has columns .* and the run's objective tlm"),
        (T5, {"name": "span_corruption"}, {"name": "masked"}, "does not suit model.family=t5"),
        (T5, {"name": "span_corruption"}, {"name": "denoising", "z_loss": 0.1}, "has z_loss 0.1, and the run's"),
        (T5, {"name": "text_to_text"}, {"name": "span_corruption"}, "make the run's the one of its text"),
    ],
)
def test_what_does_not_go_together_is_refused(
    folder: Path, model: dict[str, Any], run: dict[str, Any], its_own: dict[str, Any], message: str
) -> None:
    sources = [{"path": str(folder / "text"), "objective": its_own}, {"path": str(folder / "pairs")}]
    with pytest.raises(ValidationError, match=message):
        _config(sources, model, run)


def test_one_source_alone_has_the_objective_of_the_run(folder: Path) -> None:
    with pytest.raises(ValidationError, match=r"is for several data\.sources: set the run's objective"):
        _config([{"path": str(folder / "text"), "objective": {"name": "prefix_lm"}}], T5, {"name": "span_corruption"})


def test_an_id_with_two_meanings_is_refused(folder: Path) -> None:
    tokenizer = open_stream(_ul2(folder))[0].datasets[0].tokenizer()
    check_special_ids({"a": Masked(), "b": Causal()}, tokenizer)
    with pytest.raises(DataError, match=r"The objective of the source b needs id \d+ as its .*, and that of a as its"):
        check_special_ids({"a": SpanCorruption(), "b": Masked()}, tokenizer)
