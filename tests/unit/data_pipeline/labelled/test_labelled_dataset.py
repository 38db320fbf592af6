"""Directories of JSON lines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.tokenizers.load import load_tokenizer
from tests.helpers import released
from tests.unit.data_pipeline.conftest import KINDS
from tests.unit.data_pipeline.labelled.conftest import Write


def test_rows_come_back_with_their_lines(write: Write) -> None:
    rows = [{"text": "a b", "label": 1}, {"text": "ü\u2028\n", "label": 0}]
    dataset = write([rows[0], "", "  ", rows[1]], [*rows, *rows], test=[rows[1]])
    assert list(dataset.rows("train")) == rows
    assert [dataset.line("train", number) for number in range(2)] == [1, 4]
    assert [dataset.num_rows(name) for name in dataset.splits()] == [2, 4, 1]
    assert dataset.sizes() == {"train_rows": 2, "validation_rows": 4, "test_rows": 1}


def test_a_last_line_needs_no_newline(write: Write) -> None:
    dataset = write([{"text": "a"}])
    dataset.path("train").write_text('{"text": "a"}\r\n{"text": "b"}')
    assert [row["text"] for row in LabelledDataset(dataset.address, dataset.tokenizer_path).rows("train")] == ["a", "b"]


def test_identity_is_that_of_what_training_reads(write: Write) -> None:
    rows = [{"text": "a"}, {"text": "b"}]
    first = write(rows)
    same = [write(rows, name="copy"), write(rows, test=rows)]
    others = [write(rows[:1], rows, name="x"), write(rows, rows[:1], name="y"), write(rows, kind="bpe", name="z")]
    assert {one.identity for one in same} == {first.identity}
    assert len({one.identity for one in (first, *others)}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_keeps_the_tokenizer(write: Write, tmp_path: Path, kind: str) -> None:
    dataset = write([{"text": "a"}], kind=kind)
    (tmp_path / "kept").write_bytes(dataset.tokenizer_bytes())
    assert load_tokenizer(tmp_path / "kept").identity == dataset.tokenizer_identity


def test_a_tokenizer_is_read_as_it_was_released(write: Write, tmp_path: Path) -> None:
    beside = {"tokenizer_config.json": {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}}
    folder = released.write(tmp_path / "released", released.byte_level(["<s>", "</s>", "<|endoftext|>"]), beside)
    bare = load_tokenizer(folder)
    (tmp_path / "recorded").write_bytes((folder / "tokenizer.json").read_bytes())
    rows = write([{"text": "a"}])
    dataset = LabelledDataset(rows.address, folder, source_tokenizer=folder)
    assert dataset.source_tokenizer is not None
    for tokenizer in (dataset.tokenizer(), dataset.source_tokenizer):
        assert (tokenizer.begin_of_text, tokenizer.end_of_text) == (300, 301)
    # As in a run that was begun before the files beside it counted.
    resumed = LabelledDataset(rows.address, folder, recorded=tmp_path / "recorded")
    assert resumed.tokenizer_identity == bare.identity != dataset.tokenizer_identity
    (tmp_path / "recorded").write_bytes(dataset.tokenizer_bytes())
    again = LabelledDataset(rows.address, folder, recorded=tmp_path / "recorded")
    assert again.tokenizer_identity == dataset.tokenizer_identity


def test_a_file_that_changes_is_noticed(write: Write) -> None:
    dataset = write([{"text": "a"}])
    dataset.verify()
    assert dataset.identity
    dataset.path("validation").write_text('{"text": "b"}\n')
    dataset.verify(0, 2)
    with pytest.raises(DataError, match=r"validation.jsonl has changed since it was opened"):
        dataset.verify(1, 2)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_no_part_of_a_row(write: Write, mark: bytes) -> None:
    dataset = write([{"text": "a"}])
    dataset.path("train").write_bytes(mark + b'{"text": "a"}\n')
    dataset.path("validation").write_bytes(mark + b'[{"text": "a"}]')
    again = LabelledDataset(dataset.address, dataset.tokenizer_path)
    assert [list(again.rows(split)) for split in again.splits()] == [[{"text": "a"}]] * 2


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_array_has_a_row_in_each_element(write: Write, indent: int | None, ascii_only: bool) -> None:
    rows = [{"text": "ü [1, {"}, {"text": "a\n]", "more": {"b": []}}, {"text": "c"}]
    dataset = write(rows)
    array = json.dumps(rows, indent=indent, ensure_ascii=ascii_only)
    for split in ("train", "validation"):
        (dataset.directory / f"{split}.jsonl").unlink()
        (dataset.directory / f"{split}.json").write_text(f"\n {array} \n")
    again = LabelledDataset(dataset.address, dataset.tokenizer_path)
    assert list(again.rows("train")) == rows
    assert [again.line("train", n) for n in range(3)] == ([3, 6, 12] if indent else [2, 2, 2])
    assert again.path("train").name == "train.json"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[]", "train.jsonl has no row; give its array"),
        ('[{"text": "a"}', r"begins as a JSON array, and is none \(Expecting ',' or '\]'"),
        ('[{"text": "a"}] 1', r"is none \(Extra data"),
        ('[{"text": "a",}]', "begins as a JSON array, and is none"),
        ("[1]", "train.jsonl, line 1: the line is not a JSON object"),
    ],
)
def test_an_array_that_is_damaged_is_refused(write: Write, content: str, problem: str) -> None:
    dataset = write([{"text": "a"}])
    dataset.path("train").write_text(content)
    with pytest.raises(DataError, match=problem):
        list(LabelledDataset(dataset.address, dataset.tokenizer_path).rows("train"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", r"train.jsonl, line 2: the line is not JSON \(Expecting property name"),
        ("[1]", "train.jsonl, line 2: the line is not a JSON object"),
        ("[" * 10**5, "train.jsonl, line 2: the line is not JSON"),
    ],
)
def test_a_line_that_is_no_object_is_named(write: Write, line: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        list(write([{"text": "a"}, line]).rows("train"))


def test_bytes_that_are_no_text_are_named(write: Write) -> None:
    dataset = write([{"text": "a"}])
    dataset.path("train").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(DataError, match=r"train.jsonl, line 1: the line is not JSON \('utf-8' codec can't decode"):
        list(LabelledDataset(dataset.address, dataset.tokenizer_path).rows("train"))


def test_a_file_without_rows_or_without_a_file_is_refused(write: Write) -> None:
    dataset = write([{"text": "a"}])
    with pytest.raises(DataError, match=r"test.jsonl is missing"):
        dataset.num_rows("test")
    dataset.path("validation").write_text("\n \n")
    with pytest.raises(DataError, match=r"validation.jsonl has no row"):
        LabelledDataset(dataset.address, dataset.tokenizer_path)
    dataset.path("validation").unlink()
    with pytest.raises(DataError, match=r"validation.jsonl is missing: labelled data is a directory with train.jsonl"):
        LabelledDataset(dataset.address, dataset.tokenizer_path)
    with pytest.raises(DataError, match=r"s3://bucket/set is remote"):
        LabelledDataset("s3://bucket/set", dataset.tokenizer_path)


def test_a_million_rows_open_in_seconds(write: Write) -> None:
    dataset = write([{"text": "a"}])
    with dataset.path("train").open("w") as file:
        file.writelines(json.dumps({"text": f"text {number}"}) + "\n" for number in range(10**6))
    began = time.process_time()
    big = LabelledDataset(dataset.address, dataset.tokenizer_path)
    assert big.identity
    assert time.process_time() - began < 10
    assert big.num_rows("train") == 10**6
    numbers = np.random.default_rng(0).integers(10**6, size=20).tolist()
    assert [big.row("train", number)["text"] for number in numbers] == [f"text {number}" for number in numbers]


def test_rows_that_are_trained_on_are_counted(write: Write) -> None:
    rows = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    assert write(rows, rows[:2], test=[rows[2], {"text": "d"}]).num_trained_on("validation") == 2
    dataset = write(rows, ['{"text": "a"}  ', {"text": "e"}], test=[{"text": "d"}], name="other")
    assert [dataset.num_trained_on(split) for split in ("validation", "test")] == [1, 0]
