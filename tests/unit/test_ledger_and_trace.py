"""What a run was told about its data: weights that change, limits on repeats, and what it has really read."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.loader import load
from pretrain.__main__ import main
from pretrain.config.load import dump
from pretrain.config.run_config import RunConfig
from pretrain.data.ledger import SourceUsage, source_usage, summary
from pretrain.data.stream import check_repeats, open_stream, planned_samples
from pretrain.errors import ConfigError, RunError
from pretrain.run_length.ramp import batch_sequences, tokens_of

LENGTH = 16
RAMP = {"sequences": 16, "ramp": {"start_sequences": 4, "increment_sequences": 4, "tokens": 4_000}}
PHASES = [
    {"tokens": 3_000, "weights": {"web": 1, "books": 1, "code": 2}},
    {"tokens": 9_000, "weights": {"web": 0, "books": 1, "code": 1}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets with one tokenizer, of lines that say where they are from."""
    folder = tmp_path_factory.mktemp("sources")
    for name, lines in (("web", 300), ("books", 60), ("code", 20)):
        text = [json.dumps({"text": f"{name} has a line {n}, " + "and so on " * (n % 9)}) for n in range(lines)]
        (folder / f"{name}.jsonl").write_text("\n".join(text) + "\n")
        tokenizer: dict[str, Any] = {"vocabulary": 290} if name == "web" else {"path": folder / "web/tokenizer.model"}
        values = {
            "input": str(folder / f"{name}.jsonl"), "output": folder / name, "tokenizer": tokenizer,
            "member_tokens": 500, "shard_tokens": 1500,
        }  # fmt: skip
        build(BuildConfig.model_validate(values))
    return folder


def config_of(folder: Path, run: Path, seed: int = 5, **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "run": {"dir": str(run), "seed": seed},
        "train": {"tokens": 15_000},
        "batch": RAMP,
        "model": {"layers": 1, "hidden": 8, "heads": 1, "sequence_length": LENGTH, "vocabulary": 290},
        "optimizer": {"learning_rate": 1},
        "data": {
            "sources": [
                {"path": str(folder / "web"), "weight": 3},
                {"path": str(folder / "books"), "weight": 1},
                {"path": str(folder / "code"), "weight": 0},
            ],
            "phases": PHASES,
        },
    }
    return RunConfig.model_validate({**values, **changes})


def simulate(config: RunConfig, steps: int) -> list[np.ndarray]:
    """A run that leaves what a real one does, of `steps` steps; the ids of each."""
    run, seen = Path(config.run.dir), []
    run.mkdir()
    (run / "config.yaml").write_text(dump(config))
    stream, _ = open_stream(config)
    size = lambda samples: batch_sequences(config.batch, tokens_of(config, samples))  # noqa: E731
    with (run / "metrics.jsonl").open("w") as file:
        for step, batch in enumerate(islice(load(stream, stream.cursor(0), size, workers=0), steps), start=1):
            line = {"step": step, "samples": batch.cursor.samples, "data_hash": batch.data_hash}
            file.write(json.dumps(line) + "\n")
            seen.append(batch.sample_ids)
    return seen


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray]]:
    """A run in its second phase, and the ids that it saw."""
    path = tmp_path_factory.mktemp("runs") / "run"
    return path, simulate(config_of(folder, path), 33)


def test_weights_change_at_the_first_batch_that_follows_the_tokens(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder, tmp_path / "run")
    batches = simulate(config, 90)
    tokens, seen = 0, np.zeros(3, np.int64)
    for ids in batches:
        weights = [3, 1, 0] if tokens < 3_000 else [1, 1, 2] if tokens < 9_000 else [0, 1, 1]
        counts = np.bincount(ids[:, 0], minlength=3)
        assert np.abs(counts - len(ids) * np.array(weights) / sum(weights)).max() <= 1.5
        assert (counts[np.array(weights) == 0] == 0).all()
        tokens += len(ids) * LENGTH
        seen += counts
    stream, _ = open_stream(config)
    everything = np.concatenate(batches)
    for source, samples in enumerate(stream.num_samples):
        mine = everything[everything[:, 0] == source]
        assert np.array_equal(mine[:, 1], np.arange(len(mine)) // samples), "each goes on where it stood"
        for epoch in range(len(mine) // samples):
            assert len(set(mine[mine[:, 1] == epoch, 2].tolist())) == samples


@pytest.mark.parametrize("changes", [{}, {"batch": {"sequences": 6, "short": {"sequence_length": 8, "steps": 4}}}])
def test_counts_are_those_of_the_samples_that_were_read(changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    if changes:  # batch.short goes with no phases
        sources = [{"path": str(folder / name), "weight": w} for name, w in (("web", 2), ("books", 1), ("code", 1))]
        changes = {**changes, "data": {"sources": sources}}
    config = config_of(folder, tmp_path / "run", **changes)
    stream, _ = open_stream(config)
    counted = np.zeros(3, np.int64)
    samples = 0
    for ids in simulate(config, 40):
        samples += len(ids)
        counted += np.bincount(ids[:, 0], minlength=3)
        assert np.array_equal(stream.counts(samples), counted)
        assert sum(entry.tokens for entry in source_usage(config, stream, samples)) == tokens_of(config, samples)


def test_the_ledger_says_what_the_run_has_read_and_will(
    run: tuple[Path, list[np.ndarray]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, batches = run
    assert main(["data", "ledger", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    everything = np.concatenate(batches)
    assert report["step"] == 33
    assert report["tokens"] == len(everything) * LENGTH
    config = config_of(folder, path)
    stream, _ = open_stream(config)
    last = stream.sample_ids(0, planned_samples(config))
    for ids, listed in ((everything, report["realised"]), (last, report["planned"])):
        for source, entry in enumerate(listed):
            count = int((ids[:, 0] == source).sum())
            assert entry["name"] == ("web", "books", "code")[source]
            assert entry["samples"] == count
            assert entry["tokens"] == count * LENGTH
            assert entry["epochs"] == pytest.approx(count / stream.num_samples[source])
    assert [entry["share"] for entry in report["realised"]] == [0.25, 0.25, 0.5]
    assert main(["data", "ledger", str(path)]) == 0
    assert "25.00%" in capsys.readouterr().out


def test_the_line_at_the_start_says_how_much_of_each_source_is_read() -> None:
    sources = [
        SourceUsage(name="web", path="a/web", share=0.5, samples=1_234_567, tokens=0, epochs=0.444),
        SourceUsage(name="books", path="b", share=0.5, samples=411_522, tokens=0, epochs=3.0),
    ]
    assert summary(sources) == "web: 75.0%, 1.2M samples, 0.44 epochs; books: 25.0%, 411.5k samples, 3.00 epochs"


def test_the_trace_names_the_documents_that_a_step_was_trained_on(
    run: tuple[Path, list[np.ndarray]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, batches = run
    assert main(["data", "trace", str(path), "--step", "31", "--json", "--text"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ids = [[("web", "books", "code").index(line["source"]), line["epoch"], line["sample"]] for line in lines]
    assert ids == batches[30].tolist()
    for line in lines:
        dataset = Dataset(folder / line["source"])
        texts = (folder / f"{line['source']}.jsonl").read_text().splitlines()
        (span,) = line["spans"]
        assert (span["start"], span["tokens"]) == (line["sample"] * LENGTH, LENGTH + 1)
        assert sum(document["tokens"] for document in line["documents"]) == span["tokens"]
        end = span["start"]
        for document in line["documents"]:
            assert document["start"] == end
            end += document["tokens"]
            whole = json.loads(texts[document["index"]])["text"]
            assert document["bytes"] == len(whole.encode())
            assert document["text"].strip() in whole
            tokens = dataset.window("train", document["start"], document["tokens"])
            assert document["text"].startswith(dataset.tokenizer().decode(tokens[:5])[:3])
    assert Counter(document["file"] for line in lines for document in line["documents"]).keys() >= {"web.jsonl"}
    assert main(["data", "trace", str(path), "--step", "1"]) == 0
    assert "web.jsonl:" in capsys.readouterr().out


def test_data_that_changed_is_noticed(
    run: tuple[Path, list[np.ndarray]], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run[0], tmp_path / "copy")
    (copy / "config.yaml").write_text(dump(config_of(folder, copy, seed=77)))
    for verb in (["trace", str(copy), "--step", "20"], ["ledger", str(copy)]):
        assert main(["data", *verb]) == RunError.exit_status
        assert "has changed since step" in capsys.readouterr().err
    assert main(["data", "trace", str(copy), "--step", "34"]) == ConfigError.exit_status
    assert "no step 34: the newest is 33" in capsys.readouterr().err
    assert main(["data", "ledger", str(tmp_path)]) == ConfigError.exit_status
    assert "no run directory" in capsys.readouterr().err


def test_neither_needs_torch(run: tuple[Path, list[np.ndarray]]) -> None:
    code = (
        "import sys; from pretrain.__main__ import main; "
        f"main(['data', 'trace', {str(run[0])!r}, '--step', '2']); main(['data', 'ledger', {str(run[0])!r}]); "
        "print(sorted({'torch', 'megatron', 'deepspeed', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_a_trace_may_be_read_in_part(run: tuple[Path, list[np.ndarray]]) -> None:
    """A reader such as `head` that closes the pipe causes no traceback."""
    read, write = os.pipe()
    os.close(read)
    arguments = [sys.executable, "-m", "pretrain", "data", "trace", str(run[0]), "--step", "2"]
    done = subprocess.run(arguments, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_that_reads_a_source_too_often_is_refused(folder: Path, tmp_path: Path) -> None:
    def limited(most: float) -> RunConfig:
        sources = [
            {"path": str(folder / "web"), "weight": 3},
            {"path": str(folder / "code"), "weight": 1, "max_epochs": most},
        ]
        return config_of(folder, tmp_path, data={"sources": sources})

    config = limited(1.0)
    stream, _ = open_stream(config)
    planned = stream.epochs(planned_samples(config))[1]
    assert planned > 1
    check_repeats(limited(planned), stream)
    with pytest.raises(ConfigError, match=f"read code {planned:.2f} times, more than max_epochs=1") as caught:
        check_repeats(config, stream)
    ids = stream.sample_ids(0, planned_samples(config))
    first = int(np.flatnonzero((ids[:, 0] == 1) & (ids[:, 1] == 1))[0])
    assert f"exceeds at {(first + 1) * LENGTH:,} tokens" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"phases": [{"tokens": 5, "weights": {"a": 1, "b": 1, "c": 1}}]}, "names c, which is no source"),
        ({"phases": [{"tokens": 5, "weights": {"a": 1}}]}, "leaves out b"),
        ({"phases": [{"tokens": 5, "weights": {"a": 0, "b": 0}}]}, "no source a weight above 0"),
        ({"phases": [{"tokens": t, "weights": {"a": 1, "b": 1}} for t in (9, 9)]}, "list them in order"),
        ({"phases": [{"tokens": 5, "weights": {"a": 1, "b": 1}}], "mixing": {"name": "equal"}}, "no data.mixing"),
        ({"sources": [{"path": "x/a", "weight": 0}, {"path": "b"}]}, "a has weight 0 throughout"),
        ({"sources": [{"path": "a", "weight": 0}]}, "no source has a weight above 0"),
        ({"sources": [{"path": "x/a"}, {"path": "y/a", "name": "a"}]}, "several data.sources are called a"),
    ],
)
def test_weights_that_make_no_sense_are_refused(data: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    sources = [{"path": "a"}, {"path": "b"}]
    with pytest.raises(ValueError, match=sentence):
        config_of(tmp_path, tmp_path, data={"sources": sources, **data})


def test_phases_and_short_sequences_do_not_go_together(folder: Path, tmp_path: Path) -> None:
    short = {"sequences": 4, "short": {"sequence_length": 8, "steps": 3}}
    with pytest.raises(ValueError, match=r"leave out batch\.short, or data\.phases"):
        config_of(folder, tmp_path, batch=short)


def test_the_first_long_batch_follows_the_last_short_one_and_skips_no_sample(folder: Path, tmp_path: Path) -> None:
    short = {"sequences": 4, "short": {"sequence_length": 8, "steps": 3}}
    sources = {"sources": [{"path": str(folder / name), "weight": 1} for name in ("web", "books")]}
    stream, _ = open_stream(config_of(folder, tmp_path, data=sources, batch=short))
    long, _ = open_stream(config_of(folder, tmp_path, data=sources, batch={"sequences": 4}))
    assert [stream.batch(start, 4).tokens.shape[1] for start in (0, 4, 8, 12)] == [8, 8, 8, LENGTH]
    assert np.array_equal(stream.sample_ids(12, 8), long.sample_ids(0, 8))
    assert np.array_equal(stream.batch(12, 4).tokens, long.batch(0, 4).tokens)
