"""A build of several sources."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SPLITS
from data_pipeline.dataset.mix import MixManifest
from tests.helpers.datasets import Silent, make_documents
from tests.unit.data_pipeline.build.conftest import write


@pytest.fixture
def mix(corpus: Path, tmp_path: Path) -> BuildConfig:
    write(tmp_path / "other", {"x.jsonl": make_documents(7, 60)})
    return BuildConfig(
        sources=[
            {"name": "web", "input": str(corpus), "weight": 3},
            {"name": "books", "input": str(tmp_path / "other"), "weight": 1},
        ],
        output=tmp_path / "mix",
        steps=[{"name": "length", "least_characters": 100, "only": ["books"]}],
        tokenizer={"vocabulary": 400},
        validation_fraction=0.1,
        shard_tokens=5000,
    )


def test_sources_become_datasets_with_one_tokenizer_and_weights(mix: BuildConfig) -> None:
    assert build(mix, Silent)
    assert not build(mix, Silent)
    web, books = (Dataset(mix.output / name) for name in ("web", "books"))
    assert web.manifest.tokenizer == books.manifest.tokenizer
    found = MixManifest.load(mix.output)
    assert [(s.name, s.weight, s.identity) for s in found.sources] == [
        ("web", 3.0, web.identity), ("books", 1.0, books.identity)
    ]  # fmt: skip
    for dataset in (web, books):
        dataset.verify()
    assert sum(web.manifest.splits[s].documents for s in SPLITS) == 240
    assert [file.file for file in books.manifest.build.inputs] == ["x.jsonl"]
    reports = [json.loads((dataset.directory / "report.json").read_text())["steps"][0] for dataset in (web, books)]
    assert [report["seen"] for report in reports] == [0, 60]
    kept = sum(len(text) >= 100 for text in make_documents(7, 60))
    assert sum(books.manifest.splits[s].documents for s in SPLITS) == kept == reports[1]["kept"]


def test_the_tokenizer_s_sample_follows_the_weights(mix: BuildConfig, trained_on: list[str]) -> None:
    values = mix.model_dump() | {"tokenizer": {"vocabulary": 400, "training_bytes": 24_000}}
    build(BuildConfig.model_validate(values), Silent)
    web = set(make_documents(0, 240))
    sizes = [sum(len(text.encode()) for text in trained_on if (text in web) == own) for own in (True, False)]
    assert 16_500 < sizes[0] <= 18_000
    assert 4_500 < sizes[1] <= 6_000


def test_sources_of_equal_weight_have_equal_parts_of_the_sample(mix: BuildConfig, trained_on: list[str]) -> None:
    values = mix.model_dump() | {"tokenizer": {"vocabulary": 400, "training_bytes": 20_000}}
    values["sources"] = [source | {"weight": 1} for source in values["sources"]]
    build(BuildConfig.model_validate(values), Silent)
    web = set(make_documents(0, 240))
    sizes = [sum(len(text.encode()) for text in trained_on if (text in web) == own) for own in (True, False)]
    assert all(8_500 < size <= 10_000 for size in sizes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"input": "a"}, "exactly one of input and sources"),
        ({"sources": []}, "exactly one of input and sources"),
        ({"steps": ["lenght"]}, "no step 'lenght': did you mean 'length'"),
        (
            {"steps": [{"name": "length", "least": 3}]},
            "length: unknown key 'least': did you mean 'least_characters'",
        ),
        ({"steps": [{"name": "length", "only": ["wiki"]}]}, "names 'wiki', which is none of the sources"),
        ({"steps": [{"name": "dedup_fuzzy", "prefer": ["bokks"]}]}, "names 'bokks', which is none of the sources"),
        ({"steps": [3]}, "a step is its name"),
    ],
)
def test_configs_that_make_no_sense_are_refused(mix: BuildConfig, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        BuildConfig.model_validate(mix.model_dump() | changes)
