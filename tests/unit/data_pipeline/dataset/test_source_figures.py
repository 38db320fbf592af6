"""The figures of each source are those of its text, counted in another way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_pipeline.build.build import build
from data_pipeline.cli import inspect
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import DatasetManifest
from data_pipeline.dataset.source_figures import figures_table, mix_of, source_figures
from pretrain.commands.data import main
from tests.helpers.datasets import Silent, make_documents, settings
from tests.helpers.released import sentencepiece_model

ENGLISH = make_documents(0, 12)
CHINESE = [f"人人生而自由，在尊严和权利上一律平等。{'她们赋有理性' * (1 + number)}。" for number in range(12)]
"""21 letters and three marks, and six letters for each time"""


@pytest.fixture(scope="module", params=["bytes", "released"])
def mix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, of a tokenizer whose tokens are known; "released": with begins of documents."""
    folder = tmp_path_factory.mktemp("mix")
    tokenizer = {"type": "bytes"}
    if request.param == "released":
        (folder / "a.model").write_bytes(sentencepiece_model())
        tokenizer = {"path": str(folder / "a.model"), "begin_of_text": "<s>", "unknown_limit": 1.0}
    for name, texts in (("en", ENGLISH), ("zh", CHINESE)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources = [
        {"name": name, "input": str(folder / f"{name}.jsonl"), "weight": weight}
        for name, weight in (("en", 3), ("zh", 1))
    ]
    assert build(settings(sources=sources, output=folder / "out", tokenizer=tokenizer, validation_fraction=0.2), Silent)
    return folder / "out"


def test_tokens_a_word_a_character_and_a_byte_are_those_of_the_text(mix: Path) -> None:
    texts = {"en": ENGLISH, "zh": CHINESE}
    figures = source_figures(mix_of(mix))
    assert [(one.name, one.weight) for one in figures] == [("en", 0.75), ("zh", 0.25)]
    for one in figures:
        dataset = Dataset(mix / one.name)
        training = [record["index"] for record, _ in dataset.documents("train")]
        read = [texts[one.name][index] for index in training]
        tokens = sum(len(tokens) for _, tokens in dataset.documents("train"))
        words = sum(len(text.split()) if one.name == "en" else len(text) - 3 for text in read)
        assert 0 < len(read) < len(texts[one.name])
        assert one.tokens_per_word == pytest.approx(tokens / words)
        assert one.tokens_per_character == pytest.approx(tokens / sum(map(len, read)))
        assert one.tokens_per_byte == pytest.approx(tokens / sum(len(text.encode()) for text in read))
        if dataset.manifest.tokenizer.library == "bytes":
            assert one.tokens_per_byte == 1
        assert one.share == pytest.approx(dataset.num_tokens("train") / sum(other.tokens for other in figures))


def test_they_are_shown_side_by_side(mix: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    inspect(str(mix))
    english, _, together = capsys.readouterr().out.split("\n=== ")[1:]
    rate = source_figures(mix_of(mix))[0].tokens_per_word
    assert f"fertility   tokens of the training split: {rate:.3f} per word, " in english
    assert main(["report", str(mix), "--out", str(tmp_path / "a.html")]) == 0
    for shown in (together, capsys.readouterr().out):
        row = next(line for line in shown.splitlines() if line.startswith("en "))
        assert row.split()[1::3] == ["75.00%", f"{rate:.3f}", row.split()[-1]]
    page = (tmp_path / "a.html").read_text()
    assert f"<tr><th>en</th><td>75.0 %</td><td>{Dataset(mix / 'en').num_tokens('train'):,}</td>" in page
    assert f"<td>{rate:.3f}</td>" in page


def test_a_dataset_of_an_earlier_version_has_what_it_counted(mix: Path, tmp_path: Path) -> None:
    manifest = DatasetManifest.load(mix / "zh")
    splits = {
        name: split.model_copy(update={"characters": None, "unicode_words": None})
        for name, split in manifest.splits.items()
    }
    manifest.model_copy(update={"splits": splits}).save(tmp_path)
    assert "unicode_words" not in (tmp_path / "manifest.json").read_text()
    for file in (mix / "zh").iterdir():
        if file.name != "manifest.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (figures,) = source_figures(mix_of(tmp_path))
    assert figures.tokens_per_word is figures.tokens_per_character is None
    assert figures.tokens_per_byte == source_figures(mix_of(mix))[1].tokens_per_byte
    assert figures_table([figures]).splitlines()[1].split()[3:5] == ["-", "-"]
