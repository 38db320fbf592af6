"""Text that a tokenizer can't spell is counted, said wherever it is met, and refused where it is most of a source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models

from data_pipeline.build import tokenizer as build_tokenizer
from data_pipeline.build.build import build
from data_pipeline.cli import inspect
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.unknown_tokens import unknown_share
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.recipes.instructions import Instructions
from data_pipeline.tokenizers.hf_json import JsonTokenizer
from data_pipeline.tokenizers.load import open_tokenizer, train_tokenizer
from data_pipeline.tokenizers.recorded import record
from pretrain.commands.data import main
from pretrain.data.unknown_tokens import warnings_of_unknown, warnings_of_unknown_rows
from tests.helpers.datasets import Silent, make_documents, settings
from tests.helpers.released import sentencepiece_model

PLAIN = ["The books of the house, all of them, are on the table. " * 3 + str(number) for number in range(30)]
KOREAN = ["모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. " * 3 + str(n) for n in range(30)]
MIXED = [*PLAIN[:27], *KOREAN[:2]]


def test_each_kind_of_tokenizer_names_its_unknown_token() -> None:
    def json_tokenizer(model: models.Model, *specials: str) -> JsonTokenizer:
        made = Tokenizer(model)
        made.add_special_tokens([AddedToken(name, special=True) for name in specials])
        return JsonTokenizer(made.to_str().encode(), "here")

    unigram = json_tokenizer(models.Unigram([("<pad>", 0.0), ("<unk>", 0.0), ("a", -1.0)], 1, False), "</s>")
    assert (unigram.unknown, unigram.encode("b")) == (1, [1])
    bpe = json_tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>"), "</s>")
    assert (bpe.unknown, bpe.encode("b")) == (1, [1])
    words = json_tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"), "</s>")
    assert (words.unknown, words.encode("b")) == (1, [1])
    assert record(words, words.content, None, words.id_of("</s>") or 0).unknown == 1
    trained = {kind: train_tokenizer(make_documents(0, 40), kind, 300) for kind in ("wordpiece", "byte_bpe", "bpe")}  # type: ignore[arg-type]
    assert {kind: tokenizer.unknown for kind, tokenizer in trained.items()} == {
        "wordpiece": 1,
        "byte_bpe": None,
        "bpe": None,
    }
    assert train_tokenizer([], "bytes", 300).unknown is train_tokenizer([], "characters", 300).unknown is None


def test_a_sentencepiece_model_without_bytes_has_one() -> None:
    for spells, expected in ((True, None), (False, 0)):
        content = sentencepiece_model(model_type="bpe", byte_fallback=spells)
        assert open_tokenizer(content, Path("a.model")).unknown == expected


def test_the_share_is_of_the_text_alone() -> None:
    tokenizer = train_tokenizer(make_documents(0, 40), "wordpiece", 300)
    counts = np.zeros(300, np.int64)
    counts[[tokenizer.end_of_text, 1, 7]] = 50, 5, 15
    assert unknown_share(counts, tokenizer) == 0.25
    tokenizer.end_of_text = 1  # as GPT-2's, of which it is unknown what they stand for
    assert unknown_share(counts, tokenizer) is None


def test_a_tokenizer_of_another_language_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_tokenizer(PLAIN, "wordpiece", 60).save(tmp_path / "tokenizer.json")
    folders = []
    for name, documents in (("english", PLAIN), ("mixed", MIXED), ("korean", KOREAN)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents))
        folders.append({"name": name, "input": str(tmp_path / f"{name}.txt")})
    config = settings(
        sources=folders, output=tmp_path / "out", tokenizer={"path": tmp_path / "tokenizer.json"}, workers=1
    )
    with pytest.raises(DataError, match=r"^8\d\.\d% of the tokens in a sample of korean are unknown .*limit=0.2"):
        build(config, Silent)
    assert not config.output.exists()
    assert not list(tmp_path.glob(".out.building/**/*.tar")), "before any text was encoded"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_tokenizer, "_LOOKED_AT", 0)
        with pytest.raises(DataError, match=r"^8\d\.\d% of the tokens of korean \(train\) are unknown .*limit=0.2"):
            build(config, Silent)
    allowed = config.tokenizer.model_copy(update={"unknown_limit": 1.0})
    assert build(config.model_copy(update={"tokenizer": allowed}), Silent)
    assert not build(config, Silent), "the limit is no part of what a dataset is"
    capsys.readouterr()
    inspect(str(config.output))
    english, mixed, korean, together = capsys.readouterr().out.split("\n=== ")[1:]
    assert "unknown     0.00% of the training split's tokens\n" in english
    assert "warning" not in english
    assert next(line.split()[-1] for line in together.splitlines()[2:]) == "0.00%"
    for shown in (mixed, korean):
        assert "are unknown to the tokenizer: train a tokenizer on this text" in shown
    notes = warnings_of_unknown([Dataset(config.output / name) for name in ("english", "mixed", "korean")])
    assert ["mixed" in notes[0], "korean" in notes[1]] == [True, True]
    assert len(notes) == 2
    assert main(["report", str(config.output)]) == 0
    page = (config.output / "report.html").read_text()
    assert "<td>0.00 %</td>" in page
    assert page.count("</mark> Unknown to the tokenizer: ") == 2


def test_labelled_rows_of_another_language_are_said(tmp_path: Path) -> None:
    train_tokenizer(PLAIN, "wordpiece", 60).save(tmp_path / "tokenizer.json")
    datasets = []
    for name, texts in (("english", PLAIN), ("korean", KOREAN)):
        (tmp_path / name).mkdir()
        rows = [{"messages": [{"role": "user", "content": text}], "n": "자유"} for text in texts]
        for split in ("train", "validation"):
            (tmp_path / name / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        datasets.append(LabelledDataset(tmp_path / name, tmp_path / "tokenizer.json"))
    source = SimpleNamespace(objective=Instructions(messages="messages"))
    config: Any = SimpleNamespace(objective=None, data=SimpleNamespace(resolved_sources=[source, source]))
    (note,) = warnings_of_unknown_rows(config, datasets)
    assert re.match(
        r"^[78]\d\.\d% of the tokens in the first 30 rows of .*korean are unknown to .*tokenizer.json, ", note
    )
