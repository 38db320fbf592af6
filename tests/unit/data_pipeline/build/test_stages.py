"""Builds of many chunks: the dataset is the same however the work is cut, shared, stopped and taken up again."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.build import build as module
from data_pipeline.build import digests, passes
from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.common.hashing import file_sha256
from data_pipeline.common.scratch import scratch_folder
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SPLITS
from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document
from tests.helpers.datasets import Silent, make_documents, settings

ROOT = Path(__file__).parents[4]
STEPS = [{"name": "length", "least_characters": 40}, {"name": "length", "most_characters": 600}]
ALL_KINDS = [
    "repair",
    "personal",
    {"name": "dedup_exact", "by": "paragraph", "least_characters": 10},
    *STEPS,
    {"name": "dedup_fuzzy", "ngram": 3, "items_per_task": 500},
]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_dataset_is_the_same_for_any_units_and_processes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_pipeline.common.tasks._SMALL", 0)  # else so little is never shared
    made = []
    for number, (workers, piece_bytes) in enumerate([(1, 2**26), (1, 3000), (3, 1500), (2, 20_000)]):
        config = settings(
            input=str(corpus),
            output=tmp_path / str(number),
            steps=ALL_KINDS,
            workers=workers,
            piece_bytes=piece_bytes,
            tokenizer={"vocabulary": 400, "training_bytes": 15_000},
        )
        assert build(config, Silent)
        made.append(contents(config.output))
    assert len(made[0]) >= 6
    assert made[0] == made[1] == made[2] == made[3]


def test_the_dataset_is_the_same_when_many_units_are_brought_together_in_groups(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    steps = [*ALL_KINDS, {"name": "dedup_fuzzy", "preset": "gpt3", "items_per_task": 900}]
    for few in (2**20, 1):
        monkeypatch.setattr("data_pipeline.common.grid._FEW_ROWS", few)
        config = settings(
            input=str(corpus), output=tmp_path / str(few), steps=steps, workers=1, piece_bytes=3000, shard_tokens=2000
        )
        stages: list[str] = []

        class Noted(Silent):
            def __init__(self, label: str) -> None:
                stages.append(label)  # noqa: B023

        assert build(config, Noted)
        assert ("gathering" in stages) == (few == 1)
        made.append(contents(config.output))
    assert made[0] == made[1]


def test_small_files_share_a_unit_and_make_the_same_dataset(tmp_path: Path) -> None:
    texts = make_documents(0, 90)
    names = [f"{number:03}.jsonl{'.gz' if number % 40 > 30 else ''}" for number in range(90)]
    for name, text in zip(names, texts, strict=True):
        data = (json.dumps({"text": text}) + "\n").encode()
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith("gz") else data)
    made = []
    for piece_bytes in (1, 5000, 2**25):
        config = settings(
            input=str(tmp_path / "in"), output=tmp_path / str(piece_bytes), steps=ALL_KINDS, workers=1,
            piece_bytes=piece_bytes,
        )  # fmt: skip
        tasks: list[int] = []

        class Counted(Silent):
            def __init__(self, label: str) -> None:
                self.label = label

            def add(self, tasks_: int, size: int, new: bool = True) -> None:
                if self.label == "encoding":
                    tasks.append(tasks_)  # noqa: B023

        build(config, Counted)
        made.append((sum(tasks), contents(config.output)))
    assert made[0][1] == made[1][1] == made[2][1]
    chunks = [count for count, _ in made]
    assert chunks[0] >= 90
    assert chunks[1] < 30
    assert chunks[2] == 1
    records = [record for split in SPLITS for record, _ in Dataset(tmp_path / "1").documents(split)]
    assert {record["source"] for record in records} <= set(names)


def test_documents_lie_in_the_order_of_their_keys_over_all_files(corpus: Path, tmp_path: Path) -> None:
    build(settings(input=str(corpus), output=tmp_path / "out"), Silent)
    dataset = Dataset(tmp_path / "out")
    tokenizer = dataset.tokenizer()
    for split in SPLITS:
        texts = [tokenizer.decode(tokens) for _, tokens in dataset.documents(split)]
        keys = [Document((text,), "", 0).key for text in texts]
        assert keys == sorted(keys)
    files = [record["source"] for record, _ in dataset.documents("train")]
    changes = sum(a != b for a, b in itertools.pairwise(files))
    assert changes > 50  # files are thoroughly mixed


def test_steps_count_what_they_drop_and_keep_samples_of_it(corpus: Path, tmp_path: Path) -> None:
    build(settings(input=str(corpus), output=tmp_path / "out", steps=STEPS), Silent)
    texts = make_documents(0, 240)
    short = [text for text in texts if len(text) < 40]
    long = [text for text in texts if len(text) > 600]
    first, second = json.loads((tmp_path / "out" / "report.json").read_text())["steps"]
    assert (first["seen"], first["kept"], first["dropped"]) == (240, 240 - len(short), {"too short": len(short)})
    assert (second["seen"], second["dropped"]) == (240 - len(short), {"too long": len(long)})
    assert second["kept"] == sum(Dataset(tmp_path / "out").manifest.splits[s].documents for s in SPLITS)
    (samples,) = second["samples"].values()
    least = sorted(long, key=lambda text: Document((text,), "", 0).key)[:5]
    assert [sample["text"] for sample in samples] == [text[:500] for text in least]
    assert all(texts[150 * (s["file"] == "b.jsonl") + 180 * (s["file"] == "c.jsonl") + s["index"]].startswith(s["text"])
               for s in samples)  # fmt: skip


def test_steps_that_leave_nothing_are_named(corpus: Path, tmp_path: Path) -> None:
    config = settings(input=str(corpus), output=tmp_path / "out", steps=[{"name": "length", "least_characters": 10**6}])
    with pytest.raises(DataError, match="holds no text after its steps"):
        build(config, Silent)


def test_a_stopped_build_does_not_do_again_what_is_done(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(input=str(corpus), output=tmp_path / "out", piece_bytes=3000, workers=1)
    done: list[int] = []
    real = passes._pass

    def stops(config: BuildConfig, chunk: Any, *others: Any) -> Any:
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(chunk.number)
        return real(config, chunk, *others)

    monkeypatch.setattr(passes, "_pass", stops)
    with pytest.raises(KeyboardInterrupt):
        build(config, Silent)
    first = list(done)
    done.clear()
    done.extend([-1] * 5)  # stops no more
    monkeypatch.undo()
    monkeypatch.setattr(passes, "_pass", stops)
    assert build(config, Silent)
    assert len(first) == 4
    assert not set(first) & set(done)
    monkeypatch.undo()
    build(settings(input=str(corpus), output=tmp_path / "again"), Silent)
    assert contents(tmp_path / "again") == contents(config.output)


TOGETHER = """
import os, pathlib, sys
from tests.helpers.datasets import Silent, settings
from data_pipeline.common import tasks
from data_pipeline.build.build import build
tasks._SMALL = 0
real = tasks.atomic_path
def logged(path):
    with open(sys.argv[3], "a") as log:
        log.write(f"{os.getpid()} {path.name} {path.parent.name}\\n")
    return real(path)
tasks.atomic_path = logged
build(settings(input=sys.argv[1], output=sys.argv[2], piece_bytes=2000, workers=1), Silent)
"""


def test_equal_commands_started_together_share_the_work(corpus: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TOGETHER, str(corpus), str(tmp_path / "out"), str(tmp_path / "log")]
    commands = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [command.wait(120) for command in commands] == [0, 0, 0]
    results = [line.split() for line in (tmp_path / "log").read_text().splitlines() if ".done.json" in line]
    assert len({worker for worker, *_ in results}) == 3
    assert len({tuple(task) for _, *task in results}) == len(results)  # none was done twice
    build(settings(input=str(corpus), output=tmp_path / "alone"), Silent)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert not scratch_folder(tmp_path / "out").exists()


def test_another_build_of_the_same_output_waits_or_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(input=str(corpus), output=tmp_path / "out")
    real = passes.save_documents
    monkeypatch.setattr("data_pipeline.common.scratch._TRIES", 2)

    def starts_another(*arguments: Any) -> None:
        monkeypatch.setattr(passes, "save_documents", real)
        with pytest.raises(DataError, match="Another build is writing"):
            build(settings(input=str(corpus), output=tmp_path / "out", validation_fraction=0.2), Silent)
        real(*arguments)

    monkeypatch.setattr(passes, "save_documents", starts_another)
    assert build(config, Silent)
    Dataset(config.output).verify()


def test_what_a_build_of_other_pieces_left_is_not_used(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str, piece_bytes: int | None) -> BuildConfig:
        return settings(input=str(corpus), output=tmp_path / name, piece_bytes=piece_bytes)

    with monkeypatch.context() as stops:
        stops.setattr(module, "encode", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(config("out", 3000), Silent)
    build(config("out", 20_000), Silent)
    build(config("clean", None), Silent)
    assert contents(tmp_path / "out") == contents(tmp_path / "clean")


def test_what_a_build_with_other_settings_left_is_not_used(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stops:
        stops.setattr(module, "encode", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(settings(input=str(corpus), output=tmp_path / "out", steps=STEPS), Silent)
    assert scratch_folder(tmp_path / "out").is_dir()
    build(settings(input=str(corpus), output=tmp_path / "out"), Silent)
    build(settings(input=str(corpus), output=tmp_path / "clean"), Silent)
    assert contents(tmp_path / "out") == contents(tmp_path / "clean")


def test_other_sizes_of_shards_keep_the_work_before_them(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first sizes were found to be impossible."""
    monkeypatch.setattr("data_pipeline.build.size_limits.MOST_MEMBERS", 60)
    with pytest.raises(DataError, match="members of shards, more than 60; start again with a larger member_tokens"):
        build(settings(input=str(corpus), output=tmp_path / "out", steps=STEPS, member_tokens=100), Silent)
    stages: dict[str, list[bool]] = {}

    class Noted(Silent):
        def __init__(self, label: str) -> None:
            self.news = stages.setdefault(label, [])

        def add(self, tasks: int, size: int, new: bool = True) -> None:
            self.news.append(new)

    changed = settings(input=str(corpus), output=tmp_path / "out", steps=STEPS, shard_tokens=7000)
    with monkeypatch.context() as stops:
        stops.setattr(module, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(changed, Noted)
    assert {label for label, news in stages.items() if any(news)} == {"copies", "writing", "finishing"}
    last = settings(input=str(corpus), output=tmp_path / "out", steps=STEPS)
    build(last, Silent)
    build(settings(input=str(corpus), output=tmp_path / "clean", steps=STEPS), Silent)
    assert contents(last.output) == contents(tmp_path / "clean")


def test_what_the_build_would_not_come_to_is_said_before(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(input=str(corpus), output=tmp_path / "out")
    with monkeypatch.context() as few:
        few.setattr("data_pipeline.build.size_limits.LIMIT_BYTES", 300)
        with pytest.raises(DataError, match="The input has 3 files, and a manifest can name about 2; put them into"):
            build(config, Silent)
        assert not scratch_folder(config.output).exists()
    with monkeypatch.context() as few:
        few.setattr("data_pipeline.build.size_limits.MOST_SHARDS", 2)
        with pytest.raises(DataError, match="shards, more than 2; start again with a larger shard_tokens"):
            build(config, Silent)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as full:
        full.setattr("data_pipeline.build.size_limits.shutil.disk_usage", lambda _: usage)
        with pytest.raises(DataError, match=r"The shards will take .* bytes, and the disk of .* has 1,000 left"):
            build(config, Silent)
    assert not list(scratch_folder(config.output).glob("writing/*"))


def test_files_are_digested_once_and_a_finished_build_asks_only_for_their_states(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = settings(input=str(corpus), output=tmp_path / "out")
    read: list[Path] = []
    real = file_sha256
    monkeypatch.setattr(digests, "file_sha256", lambda path: read.append(path) or real(path))  # type: ignore[func-returns-value]
    with monkeypatch.context() as stops:
        stops.setattr(module, "encode", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(config, Silent)
    assert sorted(read) == sorted(corpus.iterdir())
    assert build(config, Silent)
    assert not build(config, Silent)
    assert len(read) == 3
    (corpus / "a.jsonl").touch()
    assert not build(config, Silent)
    assert len(read) == 6
    assert not scratch_folder(config.output).exists()
    (corpus / "a.jsonl").write_text((corpus / "b.jsonl").read_text())
    with pytest.raises(DataError, match="other input or with other settings"):
        build(config, Silent)


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
from tests.helpers.datasets import Silent, settings
from data_pipeline.build.build import build
steps = ["dedup_exact", {"name": "dedup_fuzzy", "ngram": 3}]
quality = {"name": "quality", "good": sys.argv[1] + "/a.jsonl", "raw": sys.argv[1]}
steps += [quality] * (sys.argv[3] == "chosen by quality")
sizes = {"piece_bytes": 1000, "member_tokens": 16, "shard_tokens": 32, "workers": 1}
build(settings(input=sys.argv[1], output=sys.argv[2], steps=steps, **sizes), Silent)
"""


@pytest.mark.parametrize("which", ["all", "chosen by quality"])
def test_more_units_and_shards_than_files_may_be_open_are_no_matter(corpus: Path, tmp_path: Path, which: str) -> None:
    command = [sys.executable, "-c", FEW_FILES, str(corpus), str(tmp_path / "out"), which]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode == 0
    assert which != "all" or len(Dataset(tmp_path / "out").manifest.splits["train"].shards) > 48
