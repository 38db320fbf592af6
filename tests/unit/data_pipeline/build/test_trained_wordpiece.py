"""A wordpiece is trained otherwise than in earlier versions: new datasets have another identity, old ones stay."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.build import inputs, tokenizer
from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.changed_words import ChangedWords
from tests.helpers.datasets import Silent, make_documents, settings

IDENTITIES: dict[str, tuple[dict[str, Any], str]] = {
    "wordpiece": (
        {"type": "wordpiece", "vocabulary": 300},
        "dd9d5087fe8c22aa7ac929719bce1a1efb9a77a6d0e98db9e584b0c86a900734",
    ),
    "byte_bpe": (
        {"type": "byte_bpe", "vocabulary": 300},
        "c3e3397ad915ae04cd73cb3eb2c8dcde2467e072c428349654404cb9e52a2870",
    ),
    "bytes": ({"type": "bytes"}, "a5d73866927d102ad9cf7f7afd579f61729561354eeb5b939878c73726523ea6"),
    "bpe": ({}, "f5550cee604ceaed72f4998ed6e647676f9dd3c2382ac1d726ab6cf79bffb250"),
}
"""Settings, and the identity of a build with them at commit cf8d6ce9."""


@pytest.mark.parametrize("kind", IDENTITIES)
def test_datasets_of_before_are_known(kind: str, tmp_path: Path) -> None:
    given, before = IDENTITIES[kind]
    file = tmp_path / "a.txt"
    file.write_text("a text\n")

    def identities(**more: Any) -> list[str]:
        config = BuildConfig(input=str(file), output=tmp_path / "out", tokenizer=given | more)
        sources = inputs.find_sources(config)
        found = inputs.build_identity(config, sources, {file: "0" * 64})
        accepted = list(inputs.accepted_identities(config, sources, {file: "0" * 64}))
        assert accepted[0] == found
        return accepted

    now = identities()
    assert before in now
    assert now[0] != before, "copies lie apart"
    assert identities(unknown_limit=0.5) == now
    if kind == "wordpiece":
        assert not {*now} & {*identities(lowercase=False)}
        assert not {*now} & {*identities(strip_accents=False)}


def test_a_dataset_of_an_earlier_version_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n\n".join(make_documents(0, 40)))
    config = settings(
        input=str(file), output=tmp_path / "out", tokenizer={"type": "wordpiece", "vocabulary": 300}, workers=1
    )
    with monkeypatch.context() as patch:
        patch.setattr("data_pipeline.build.build.build_identity", partial(inputs.build_identity, as_now=False))
        patch.setattr(tokenizer, "changed_by_stripping", lambda texts: ChangedWords(0, ()))
        assert build(config, Silent)
    old = Dataset(config.output).manifest
    assert not build(config, Silent)
    assert Dataset(config.output).manifest == old
    assert build(config.model_copy(update={"output": tmp_path / "new"}), Silent)
    new = Dataset(tmp_path / "new").manifest
    assert new.build.identity != old.build.identity
    assert new.tokenizer.identity != old.tokenizer.identity, "its text has é and ü"
    for dataset, warned in ((config.output, True), (tmp_path / "new", False)):
        caplog.clear()
        path = settings(input=str(file), output=tmp_path / f"as-{dataset.name}", tokenizer={"path": dataset}, workers=1)
        assert build(path, Silent)
        assert ("% of the words change beyond case (" in caplog.text) == warned
