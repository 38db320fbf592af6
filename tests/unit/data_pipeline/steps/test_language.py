"""Documents of other languages go, by the name of their language."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from data_pipeline.errors import DataError
from data_pipeline.steps.language import Language
from tests.helpers.steps import run_local

_ENGLISH = "The old man sat by the river and watched the boats go past until the sun was down."
_GERMAN = "Der alte Mann saß am Fluss und sah den Booten zu, bis die Sonne untergegangen war."
_FRENCH = "Le vieil homme était assis au bord de la rivière et regardait passer les bateaux jusqu'au soir."
_RUSSIAN = "Старик сидел возле реки и смотрел на проплывающие лодки, пока не село солнце."
_NUMBERS = "0123 4567 8901 2345 " * 10


def test_documents_of_other_languages_are_dropped_and_counted_by_language(tmp_path: Path) -> None:
    texts = [_ENGLISH, _GERMAN, _FRENCH, _RUSSIAN, _NUMBERS, _ENGLISH]
    kept, stats = run_local(Language(keep=["en"]), texts, tmp_path)
    assert kept == [_ENGLISH, _ENGLISH]
    assert stats.dropped == Counter({"language:de": 1, "language:fr": 1, "language:ru": 1, "language:unsure": 1})


def test_several_languages_can_be_kept(tmp_path: Path) -> None:
    kept, _ = run_local(Language(keep=["de", "ru"]), [_ENGLISH, _GERMAN, _FRENCH, _RUSSIAN], tmp_path)
    assert kept == [_GERMAN, _RUSSIAN]


def test_only_the_beginning_is_looked_at(tmp_path: Path) -> None:
    text = "\n" * 100 + _ENGLISH + _GERMAN * 50
    assert run_local(Language(keep=["en"], characters=len(_ENGLISH)), [text], tmp_path)[0] == [text]
    assert run_local(Language(keep=["en"], characters=10_000), [text], tmp_path)[0] == []


def test_without_a_least_probability_only_the_language_counts(tmp_path: Path) -> None:
    stats = run_local(Language(keep=["en"], least=0), [_NUMBERS, ""], tmp_path)[1]
    assert "language:unsure" not in stats.dropped
    assert run_local(Language(keep=["en"], least=1), [_NUMBERS], tmp_path)[1].dropped == Counter({"language:unsure": 1})


def test_a_language_that_is_not_known_is_said_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"can't keep 'english'.* en "):
        Language(keep=["english"]).prepare(tmp_path)


def test_the_model_is_loaded_by_builds_that_use_it_only() -> None:
    code = "import sys, data_pipeline.steps.language; sys.exit('py3langid' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_header_padded_with_blanks_does_not_hide_the_text(tmp_path: Path) -> None:
    header = "".join(word + " " * 300 for word in ("Impressum", "Datenschutz", "Startseite"))
    text = header + "\n" * 200 + _ENGLISH * 3
    assert run_local(Language(keep=["en"]), [text], tmp_path)[0] == [text]
    assert run_local(Language(keep=["en"]), [text[:1000]], tmp_path)[0] == []
