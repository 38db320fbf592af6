"""Building: what ends up where, and that only whole datasets ever appear."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.build import build as module
from data_pipeline.build import passes
from data_pipeline.build.build import build
from data_pipeline.common.scratch import scratch_folder
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SPLITS
from data_pipeline.dataset.shard_writer import _HashedFile
from data_pipeline.errors import DataError
from data_pipeline.reading import readers
from data_pipeline.reading.documents import Document
from data_pipeline.steps.personal import Personal
from tests.helpers.datasets import Silent, build_dataset, make_documents, settings

ROOT = Path(__file__).parents[4]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(make_documents(0, 100)))
    return path


def refuses(complaint: str, **changes: Any) -> None:
    """The build fails with this sentence and leaves nothing behind, but for what another start can go on from."""
    config = settings(**changes)
    before = sorted(config.output.parent.iterdir())
    with pytest.raises(DataError, match=complaint):
        build(config, Silent)
    assert sorted(set(config.output.parent.iterdir()) - {scratch_folder(config.output)}) == before


def texts_of(dataset: Dataset, split: Any) -> list[str]:
    tokenizer = dataset.tokenizer()
    return [tokenizer.decode(tokens) for _, tokens in dataset.documents(split)]


def test_the_hash_of_its_text_decides_on_a_documents_split(tmp_path: Path) -> None:
    documents = [text.strip() for text in make_documents(0, 500)]
    once = build_dataset(documents, tmp_path, "once")
    again = build_dataset([*documents[::-1], *documents[:50]], tmp_path, "again")
    held = set(texts_of(once, "validation"))
    assert 25 <= len(held) <= 80
    assert held == {text for text in documents if Document((text,), "", 0).key < 0.1 * 2**64}
    assert set(texts_of(again, "validation")) == held
    assert not held & set(texts_of(again, "train"))
    assert sorted(texts_of(once, "train")) == sorted(set(documents) - held)


def test_at_least_one_document_is_held_out(tmp_path: Path) -> None:
    dataset = build_dataset(make_documents(0, 100), tmp_path, validation_fraction=1e-9)
    assert dataset.manifest.splits["validation"].documents == 1
    assert dataset.manifest.splits["train"].documents == 99


def test_one_big_text_file_needs_no_setting(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("\n\n".join(make_documents(0, 500)))
    config = module.BuildConfig(
        input=str(tmp_path / "book.txt"), output=tmp_path / "out", tokenizer={"vocabulary": 400}
    )
    assert build(config, Silent)
    splits = Dataset(tmp_path / "out").manifest.splits
    assert splits["validation"].documents >= 1
    assert splits["train"].documents >= 5


def test_the_held_out_text_does_not_train_the_tokenizer(tmp_path: Path, trained_on: list[str]) -> None:
    dataset = build_dataset(make_documents(0, 200), tmp_path)
    assert trained_on == texts_of(dataset, "train")
    trained_on.clear()
    limited = {"vocabulary": 400, "training_bytes": 20_000}
    small = build_dataset(make_documents(0, 200), tmp_path, "small", tokenizer=limited, validation_fraction=1e-9)
    assert 18_000 < sum(len(text.encode()) for text in trained_on) <= 20_000
    assert (
        trained_on == sorted(texts_of(small, "train"), key=lambda text: Document((text,), "", 0).key)[: len(trained_on)]
    )


def test_a_document_larger_than_the_sample_is_cut_for_it(tmp_path: Path) -> None:
    limited = {"vocabulary": 400, "training_bytes": 15_000}
    documents = [" ".join(make_documents(seed, 100)).replace("\n", " ") for seed in range(2)]
    assert build_dataset(documents, tmp_path, tokenizer=limited).manifest.splits["train"].documents == 1


def test_building_what_is_there_does_nothing(text: Path, tmp_path: Path) -> None:
    config = settings(input=str(text), output=tmp_path / "out")
    assert build(config, Silent)
    times = {path: path.stat().st_mtime_ns for path in config.output.iterdir()}
    assert not build(config, Silent)
    assert {path: path.stat().st_mtime_ns for path in config.output.iterdir()} == times
    moved = tmp_path / "elsewhere" / text.name
    moved.parent.mkdir()
    shutil.copy(text, moved)
    assert not build(settings(input=str(moved), output=config.output), Silent)


def test_another_dataset_in_the_place_is_kept_and_named(text: Path, tmp_path: Path) -> None:
    config = settings(input=str(text), output=tmp_path / "out")
    build(config, Silent)
    refuses("other input or with other settings", input=str(text), output=config.output, validation_fraction=0.2)
    text.write_text(text.read_text() + "more")
    refuses("other input or with other settings", input=str(text), output=config.output)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    refuses("mine exists and is not a dataset", input=str(text), output=tmp_path / "mine")
    refuses("text.txt exists and is not a dataset", input=str(text), output=text)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_a_step_that_does_otherwise_now_is_another_build_of_what_it_sees_alone(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = settings(input=str(text), output=tmp_path / "plain")
    masked = settings(input=str(text), output=tmp_path / "masked", steps=[{"name": "personal"}])
    assert build(plain, Silent)
    assert build(masked, Silent)
    assert not build(masked, Silent)
    monkeypatch.setattr(Personal, "version", 99)
    assert not build(plain, Silent)
    with pytest.raises(DataError, match="was built from other input or with other settings"):
        build(masked, Silent)


def test_a_reader_s_new_version_is_another_build_of_what_it_reads_alone(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = tmp_path / "wiki.xml"
    pages = (f"<page><title>T</title><revision><text>{text}</text></revision></page>" for text in make_documents(0, 60))
    dump.write_text(f"<mediawiki>{''.join(pages)}</mediawiki>")
    other = settings(input=str(text), output=tmp_path / "text")
    wiki = settings(input=str(dump), output=tmp_path / "wiki")
    assert build(other, Silent)
    assert build(wiki, Silent)
    assert not build(wiki, Silent)
    before = Dataset(wiki.output).identity
    monkeypatch.setitem(readers._VERSIONS, ".xml", 99)
    assert not build(other, Silent)
    with pytest.raises(DataError, match="by a version that reads the input differently"):
        build(wiki, Silent)
    assert Dataset(wiki.output).identity == before  # which training goes by


KILLED = """
import os, signal, sys
from tests.helpers.datasets import Silent, settings
from data_pipeline.build import build
from data_pipeline.dataset import shard_writer
seen = [0]
def dies(*arguments):
    seen[0] += 1
    if seen[0] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
owner, name = {"add": (shard_writer.ShardWriter, "add"), "publish": (build, "fsync")}[sys.argv[4]]
real = getattr(owner, name)
setattr(owner, name, dies)
build.build(settings(input=sys.argv[1], output=sys.argv[2]), Silent)
"""


@pytest.mark.parametrize(("call", "where"), [(1, "add"), (60, "add"), (3, "publish")])
def test_a_killed_build_is_not_taken_for_whole(text: Path, tmp_path: Path, call: int, where: str) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(text), str(output), str(call), where]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not output.exists()
    assert (tmp_path / ".out.building").is_dir()
    with pytest.raises(DataError, match="out does not exist"):
        Dataset(output)
    assert build(settings(input=str(text), output=output), Silent)
    Dataset(output).verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt"]
    build(settings(input=str(text), output=tmp_path / "clean"), Silent)
    names = sorted(path.name for path in output.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "clean").iterdir())
    assert Dataset(output).identity == Dataset(tmp_path / "clean").identity


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_after_a_full_disk_the_build_goes_on_where_it_stopped(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _HashedFile.__init__

    def on_a_full_disk(self: _HashedFile, path: Path) -> None:
        real(self, path)
        self._file.close()
        self._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115

    config = settings(input=str(text), output=tmp_path / "out")
    with monkeypatch.context() as full:
        full.setattr(_HashedFile, "__init__", on_a_full_disk)
        with pytest.raises(DataError, match=r"The disk of .*out is full"):
            build(config, Silent)
    gc.collect()
    assert not config.output.exists()
    monkeypatch.setattr(passes, "_pass", lambda *_: pytest.fail("reads the input again"))
    monkeypatch.setattr("data_pipeline.build.tokenizer.train_tokenizer", None)
    assert build(config, Silent)
    Dataset(config.output).verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt"]


def test_input_that_changes_while_it_is_read_is_noticed(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = passes.save_documents

    def changes_the_input(path: Path, documents: Iterable[Document]) -> None:
        write(path, documents)
        text.write_text(text.read_text().replace("a", "e"))

    monkeypatch.setattr(passes, "save_documents", changes_the_input)
    refuses("changed while it was read", input=str(text), output=tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (" \n\n \n", "holds no text"),
        ("only one document", "All of the input's 1 documents fall into the validation split"),
        ("too\n\nlittle\n\ntext\n\nfor 400 pieces", "largest possible is"),
        (b"a\n\n\xff", "line 3"),
    ],
)
def test_input_that_makes_no_dataset_is_refused(tmp_path: Path, content: str | bytes, complaint: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    refuses(complaint, input=str(path), output=tmp_path / "out")


def test_all_documents_held_out_is_refused(text: Path, tmp_path: Path) -> None:
    refuses("none is left to train on", input=str(text), output=tmp_path / "out", validation_fraction=1 - 1e-12)


def test_a_given_tokenizer_is_used_as_it_is(dataset: Dataset, second: Dataset) -> None:
    names = [d.directory / d.manifest.tokenizer.file for d in (dataset, second)]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert dataset.manifest.tokenizer == second.manifest.tokenizer


def test_several_kinds_of_files_become_one_dataset(tmp_path: Path) -> None:
    documents = [text.strip() for text in make_documents(0, 90)]
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("\n\n".join(documents[:40]))
    lines = "\n".join(json.dumps({"text": text}) for text in documents[40:])
    (tmp_path / "in" / "deep" / "b.jsonl").write_text(lines)
    build(settings(input=str(tmp_path / "in"), output=tmp_path / "in" / "out"), Silent)
    dataset = Dataset(tmp_path / "in" / "out")
    found = [record for split in SPLITS for record, _ in dataset.documents(split)]
    assert {(r["source"], r["index"]) for r in found} == {("a.txt", i) for i in range(40)} | {
        ("deep/b.jsonl", i) for i in range(50)
    }
    assert [f.file for f in dataset.manifest.build.inputs] == ["a.txt", "deep/b.jsonl"]


def test_real_text_comes_back_whole(real_text: Path, tmp_path: Path) -> None:
    path = real_text / "tinyshakespeare.txt"
    config = module.BuildConfig(input=str(path), output=tmp_path / "out")
    build(config, Silent)
    dataset = Dataset(config.output)
    dataset.verify()
    tokenizer = dataset.tokenizer()
    found = {r["index"]: tokenizer.decode(tokens) for split in SPLITS for r, tokens in dataset.documents(split)}
    assert "".join(found[i] for i in range(len(found))) == path.read_text(encoding="utf-8")
    assert dataset.manifest.splits["validation"].documents >= 1
    share = dataset.unigram_counts() / dataset.num_tokens("train")
    share = share[share > 0]
    assert 5 < -(share * np.log(share)).sum() < 8


def test_the_manifest_tells_what_was_built(dataset: Dataset) -> None:
    values = json.loads((dataset.directory / MANIFEST).read_text())
    assert values["build"]["config"]["tokenizer"]["vocabulary"] == 400
    assert values["tokenizer"]["vocabulary"] == 400
    assert values["dtype"] == "uint16"
    assert set(values["splits"]) == set(SPLITS)
