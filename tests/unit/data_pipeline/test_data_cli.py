"""The two commands, the shipped config, the progress line, and what may be imported."""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_pipeline.build.config import BuildConfig
from data_pipeline.common.hashing import file_sha256
from data_pipeline.common.progress import TaskProgress
from data_pipeline.dataset.manifest import DatasetManifest, FileRecord
from data_pipeline.errors import DataError
from pretrain.commands.data import main
from pretrain.errors import ConfigError
from tests.helpers.datasets import make_documents

ROOT = Path(__file__).parents[3]
TEXT_YAML = ROOT / "configs" / "data" / "text.yaml"


def yaml_of(path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML

    return dict(YAML(typ="safe").load(path.read_text()))


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "a.txt").write_text("\n\n".join(make_documents(0, 300)))
    status = run(
        "build", TEXT_YAML, f"input={folder / 'a.txt'}", f"output={folder / 'out'}", "tokenizer.vocabulary=500"
    )
    assert status == 0
    return folder


def test_build_says_what_it_made_and_that_it_is_there(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"input={built / 'a.txt'}", f"output={built / 'out'}", "tokenizer.vocabulary=500"]
    assert run("build", TEXT_YAML, *arguments) == 0
    out = capsys.readouterr().out
    assert "is already built" in out
    assert "train" in out
    assert "500 pieces" in out


def test_inspect_shows_counts_and_text(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", built / "out") == 0
    out = capsys.readouterr().out
    assert "checksums   all good" in out
    assert "nats per token" in out
    assert any(text[:50] in out for text in make_documents(0, 100))
    assert "--- validation, first document ---" in out


def test_inspect_shows_what_the_text_held_of_evaluation_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = make_documents(0, 300)
    long = [text for text in documents if len(text.split()) > 40]
    examples = [" ".join(long[0].split()[:20]), *(f"{number} " * 20 for number in range(7))]
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in examples))
    (tmp_path / "build.yaml").write_text(
        f"input: {tmp_path / 'a.txt'}\noutput: {tmp_path / 'out'}\ntokenizer: {{vocabulary: 500}}\n"
        f"txt_documents: paragraph\nsteps: [{{name: decontaminate, against: {tmp_path / 'quiz.jsonl'}}}]\n"
    )
    assert run("build", tmp_path / "build.yaml") == 0
    built = capsys.readouterr().out
    assert run("inspect", tmp_path / "out") == 0
    for shown in (built, capsys.readouterr().out):
        assert [line.split() for line in shown.splitlines() if "quiz" in line] == [["quiz", "13", "8", "1", "12.50%"]]


def test_inspect_refuses_a_damaged_dataset(built: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(built / "out", tmp_path / "copy")
    shard = copy / "train-00000.tar"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match=r"train-00000\.tar is damaged"):
        run("inspect", copy)


WRAPPED = (
    """The committee of the harbour met on the second day of the month and
decided after a long debate that the old lighthouse should be given back
to the town, which had paid for it. Its keeper will stay where he is.
That is what the chairman said to those who had come to hear of it. She
""".strip()
    * 6
)


@pytest.fixture(scope="module")
def shredded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wrapped text through C4's rules, and other text that stays whole."""
    folder = tmp_path_factory.mktemp("shredded")
    wires = [WRAPPED.replace("Its keeper", f"Its keeper of {n} years") for n in range(30)]
    for name, texts in (("wires", wires), ("books", make_documents(0, 200))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "build.yaml").write_text(
        f"sources:\n- {{name: wires, input: {folder / 'wires.jsonl'}}}\n"
        f"- {{name: books, input: {folder / 'books.jsonl'}}}\noutput: {folder / 'out'}\n"
        "tokenizer: {vocabulary: 500}\nsteps: [{name: length, least_characters: 60}, {name: c4, only: [wires]}]\n"
    )
    return folder


def test_a_step_that_takes_more_than_half_of_what_it_keeps_is_told(
    shredded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", shredded / "build.yaml") == 0
    built = capsys.readouterr().out
    assert run("inspect", shredded / "out") == 0
    for shown in (built, capsys.readouterr().out):
        (warning,) = [line for line in shown.splitlines() if line.startswith("warning")]
        assert "c4 took 7" in warning
        assert "unwrap: true" in warning
        following = shown[shown.index(warning) :]
        assert following.count("    before '") == following.count("    after  '") == 3
        assert "wires.jsonl, document" in following
    step = json.loads((shredded / "out" / "wires" / "report.json").read_text())["steps"][1]
    assert warning == f"warning: {step['warning']}"
    assert len(step["samples_changed"]) == 3


def test_the_report_is_one_page_of_what_each_step_did(shredded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", shredded / "build.yaml") == 0
    assert run("report", shredded / "out") == 0
    assert capsys.readouterr().out.endswith(f"report: {shredded / 'out' / 'report.html'}\n")
    page = (shredded / "out" / "report.html").read_text()
    assert not any(outside in page for outside in ("http://", "https://", "src=", "@import"))
    wires, books = (
        json.loads((shredded / "out" / name / "report.json").read_text())["steps"] for name in ("wires", "books")
    )
    characters = wires[1]["characters"]
    taken = f"{100 * (1 - characters['kept'] / characters['seen']):.1f} %"
    row = re.search(rf"<b>{taken}</b></td><td><span class=.soft.>.</span></td>", page)
    assert row, "taken of wires; books were not seen"
    assert "lines without end mark" in page
    assert all(html.escape(sample["text"]) in page for sample in books[0]["samples"]["too short"])
    assert f"{books[0]['dropped']['too short']:,}" in page


def test_a_report_needs_a_build_that_recorded_what_it_shows(built: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(built / "out", tmp_path / "copy"))
    manifest = DatasetManifest.load(copy)
    (copy / "report.json").write_text(json.dumps({"malformed": {}, "steps": [{"name": "c4", "seen": 1}]}))
    record = FileRecord(
        file="report.json",
        bytes=(copy / "report.json").stat().st_size,
        sha256=file_sha256(copy / "report.json"),
    )
    manifest.model_copy(update={"report": record}).save(copy)
    with pytest.raises(DataError, match="build it again"):
        run("report", copy)
    with pytest.raises(ConfigError, match="cannot be written"):
        run("report", built / "out", "--out", tmp_path)


def test_the_shipped_config_is_valid_and_states_the_defaults() -> None:
    values = yaml_of(TEXT_YAML)
    assert BuildConfig(**values, input="a", output="b") == BuildConfig(input="a", output=Path("b"))


@pytest.mark.parametrize(("name", "text"), [("pairs", False), ("bert", True)])
def test_the_other_shipped_configs_build(
    name: str, text: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = make_documents(0, 300)
    if text:
        (tmp_path / "a.txt").write_text("\n\n".join(documents))
    else:
        pairs = [{"source": text.strip()[:90], "target": text.strip()[:90][::-1]} for text in documents]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    path = ROOT / "configs" / "data" / f"{name}.yaml"
    size = "tokenizer.vocabulary=500"
    source = tmp_path / ("a.txt" if text else "a.jsonl")
    assert run("build", path, f"input={source}", f"output={tmp_path / 'out'}", size, "txt_documents=paragraph") == 0
    capsys.readouterr()
    assert run("inspect", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    if not text:
        assert any(f"\n{pair['source']}\n{pair['target'][:20]}" in shown for pair in pairs)


def test_unknown_keys_and_changes_are_refused() -> None:
    with pytest.raises(ValidationError, match="vocabluary"):
        BuildConfig(input="a", output="b", tokenizer={"vocabluary": 5})
    config = BuildConfig(input="a", output="b")
    with pytest.raises(ValidationError, match="frozen"):
        config.input = "c"


def test_every_setting_is_described() -> None:
    from data_pipeline.config import TokenizerConfig
    from data_pipeline.recipes.registry import OBJECTIVES

    for schema in (BuildConfig, TokenizerConfig, *OBJECTIVES.values()):
        assert all(field.description or name == "name" for name, field in schema.model_fields.items())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_rewritten_on_a_terminal_and_plain_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for stream, lines in ((Terminal(), 5), (io.StringIO(), 1)):
        now[0] = 0.0
        progress = TaskProgress("reading", stream)
        progress.expect(10_000_000)
        for _ in range(5):
            now[0] += 0.5
            progress.add(1, 1_000_000)
        progress.done()
        shown = stream.getvalue()
        assert "reading: 5 done, 5.0 M, 2.0 M/s, 2 s left (2.5 s)" in shown
        assert shown.endswith("\n")
        assert shown.count("\n") == 1
        assert shown.count("reading") == lines + stream.isatty()
        assert ("\r" in shown) == stream.isatty()


def test_reading_needs_neither_torch_nor_training_code() -> None:
    paths = (ROOT / "data_pipeline").rglob("[a-z]*.py")
    modules = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    assert {"data_pipeline.loader", "data_pipeline.recipes.registry"} <= set(modules)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(modules)}\n"
        "print([name for name in ('torch', 'pretrain', 'launch', 'webdataset') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
