"""WordPiece and byte-level BPE: the same in every run, specials that text can't produce, found again by content."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.tokenizers import hf_json as module
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import Kind, load_tokenizer, train_tokenizer
from tests.helpers.breadth import only
from tests.helpers.datasets import ODD, build_dataset, make_documents

TEXTS = [f"{text} The end! [SEP] naïve 中文 x-{i}" for i, text in enumerate(make_documents(0, 200))]
TRAIN = """
import sys
from tests.helpers.datasets import make_documents
from data_pipeline.tokenizers.load import train_tokenizer
train_tokenizer(make_documents(0, 300), sys.argv[1], 600).save(__import__("pathlib").Path(sys.argv[2]))
"""

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return train_tokenizer(TEXTS, "wordpiece", 500)


@pytest.fixture(scope="module")
def byte_bpe() -> Tokenizer:
    return train_tokenizer(TEXTS, "byte_bpe", 500)


@pytest.mark.parametrize("kind", only([], ["byte_bpe", "wordpiece"]))
def test_any_number_of_threads_trains_the_same_bytes(kind: str, tmp_path: Path) -> None:
    found = set()
    for threads in ("1", "2", "5"):
        path = tmp_path / threads
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAYON_NUM_THREADS": threads}
        subprocess.run([sys.executable, "-c", TRAIN, kind, str(path)], env=environment, check=True, timeout=60)
        found.add(path.read_bytes())
    assert len(found) == 1


@pytest.mark.parametrize("text", [*ODD, "<s>", "</s>", "<mask> <pad>", "Hello  World\n"])
def test_byte_bpe_gives_odd_text_back(byte_bpe: Tokenizer, text: str) -> None:
    ids = byte_bpe.encode(text)
    assert byte_bpe.decode(ids) == text
    assert not byte_bpe.is_special()[ids].any()
    assert ids == byte_bpe.encode_batch(["x", text])[1].tolist()


def test_wordpiece_is_bert_s_and_text_makes_no_special(wordpiece: Tokenizer) -> None:
    assert wordpiece.encode("THE Naïve end") == wordpiece.encode("the  naive\nend")
    assert wordpiece.decode(wordpiece.encode("The end!")) == "the end!"
    named = [wordpiece.id_of(piece) for piece in module.BERT_SPECIALS]
    assert named == [0, 1, 2, 3, 4]
    assert wordpiece.end_of_text == wordpiece.id_of("[SEP]")
    assert not set(wordpiece.encode("a [SEP] b [MASK]")) & {0, 2, 3, 4}
    assert wordpiece.id_of("the") is None


def test_byte_bpe_has_roberta_s_specials(byte_bpe: Tokenizer) -> None:
    assert [byte_bpe.id_of(piece) for piece in module.ROBERTA_SPECIALS] == [0, 1, 2, 3, 4]
    assert byte_bpe.end_of_text == byte_bpe.id_of("</s>")
    assert byte_bpe.vocabulary_size == len(byte_bpe.texts()) == 500


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "byte_bpe"])
def test_words_and_sentences_are_seen(kind: Kind) -> None:
    tokenizer = train_tokenizer(TEXTS, kind, 500)
    starts, ends, special = tokenizer.starts_word(), tokenizer.ends_sentence(), tokenizer.is_special()
    ids = tokenizer.encode("the end end x.")
    text = [tokenizer.texts()[i] for i in ids]
    assert sum(starts[ids[1:]]) == "".join(text)[1:].count(" ")
    assert any(ends[i] for i in ids)
    assert not any(ends[i] for i in tokenizer.encode("the end end"))
    assert special[tokenizer.end_of_text]
    assert starts[tokenizer.end_of_text]
    assert len(starts) == len(ends) == len(special) == tokenizer.vocabulary_size


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "byte_bpe"])
def test_what_a_file_holds_tells_its_kind_whatever_its_name(kind: Kind, tmp_path: Path) -> None:
    trained = train_tokenizer(TEXTS, kind, 500)
    trained.save(tmp_path / "tokenizer.model")
    again = load_tokenizer(tmp_path / "tokenizer.model")
    assert type(again) is type(trained)
    assert again.identity == trained.identity
    assert again.encode("the end") == trained.encode("the end")


def test_another_version_of_the_library_is_another_tokenizer(
    byte_bpe: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_bpe.save(tmp_path / "t")
    assert byte_bpe.identity != hashlib.sha256((tmp_path / "t").read_bytes()).hexdigest()
    monkeypatch.setattr(tokenizers, "__version__", "9.9.9")
    assert load_tokenizer(tmp_path / "t").identity != byte_bpe.identity


@pytest.mark.parametrize(("extra", "same"), [([], True), (["Upper"], False)])
def test_a_bert_vocabulary_is_lower_case_unless_it_has_capitals(tmp_path: Path, extra: list[str], same: bool) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*module.BERT_SPECIALS, "the", "en", "##d", *extra]) + "\n")
    given = load_tokenizer(tmp_path / "vocab.txt")
    assert given.encode("the end") == [5, 6, 7]
    assert (given.encode("THE end") == [5, 6, 7]) == same
    assert given.end_of_text == 3
    assert given.vocabulary_size == 8 + len(extra)
    assert np.flatnonzero(given.is_special()).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_a_vocabulary_of_a_wrong_size_names_one_that_will_do(kind: Kind) -> None:
    with pytest.raises(DataError, match=r"too small .*=50000; the largest possible is (\d+)\.") as caught:
        train_tokenizer(TEXTS[:20], kind, 50_000)
    largest = int(str(caught.value).rstrip(".").rpartition(" ")[2])
    assert train_tokenizer(TEXTS[:20], kind, largest).vocabulary_size == largest
    with pytest.raises(DataError, match=r"the smallest possible is (\d+)\.") as caught:
        train_tokenizer(TEXTS[:20], kind, 20)
    smallest = int(str(caught.value).rstrip(".").rpartition(" ")[2])
    assert train_tokenizer(TEXTS[:20], kind, smallest).vocabulary_size == smallest


def test_a_character_too_rare_for_the_alphabet_makes_its_word_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ALPHABET", 5)
    monkeypatch.setattr(module, "_COVERAGE", 0.97)
    trained = train_tokenizer(["abab abab ab cab deab"] * 3 + ["zab"], "wordpiece", 18)
    assert trained.encode("zab") == [trained.id_of("[UNK]")]
    assert trained.id_of("[UNK]") not in trained.encode("cab")


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"model": 5}')
    with pytest.raises(DataError, match=r"a\.json is not a tokenizer\.json"):
        load_tokenizer(tmp_path / "a.json")
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(tmp_path / "b.json"))
    with pytest.raises(DataError, match=r"b\.json has none of the special tokens"):
        load_tokenizer(tmp_path / "b.json")


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_a_dataset_of_it_is_built_and_read(kind: Kind, tmp_path: Path) -> None:
    dataset = build_dataset(make_documents(0, 200), tmp_path, tokenizer={"type": kind, "vocabulary": 500})
    record = dataset.manifest.tokenizer
    assert (record.file, record.library, record.version) == ("tokenizer.json", "tokenizers", tokenizers.__version__)
    tokenizer = Dataset(dataset.directory).tokenizer()
    tokens = dataset.window("train", 0, dataset.num_tokens("train"))
    assert (tokens == tokenizer.end_of_text).sum() == dataset.manifest.splits["train"].documents
    assert tokens[-1] == tokenizer.end_of_text


@pytest.mark.parametrize(
    ("specials", "names"), [("bert", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]), ("t5", ["<pad>", "</s>"])]
)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_sentencepiece_model_may_hold_specials_too(kind: Kind, specials: str, names: list[str]) -> None:
    trained = train_tokenizer(TEXTS, kind, 500, specials)  # type: ignore[arg-type]
    ids = [trained.id_of(name) for name in names]
    assert None not in ids
    assert len({*ids, trained.end_of_text}) == len(names) + 1
    for name in names:
        assert trained.decode(trained.encode(name)) == name
        assert not set(trained.encode(name)) & set(ids)
    assert train_tokenizer(TEXTS, kind, 500).id_of(names[0]) is None


def test_a_begin_that_a_file_puts_before_each_text_is_known() -> None:
    """And [CLS] is none, which goes with a [SEP] behind."""
    trained = tokenizers.Tokenizer.from_str(train_tokenizer(TEXTS, "byte_bpe", 400).to_json())

    def with_marks(single: list[str]) -> Tokenizer:
        marks = [(piece, trained.token_to_id(piece)) for piece in ("<s>", "</s>")]
        trained.post_processor = tokenizers.processors.TemplateProcessing(single=single, special_tokens=marks)
        return module.JsonTokenizer(trained.to_str().encode(), "here")

    begun, around, plain = with_marks(["<s>", "$A"]), with_marks(["<s>", "$A", "</s>"]), with_marks(["$A"])
    assert (begun.begin_of_text, around.begin_of_text, plain.begin_of_text) == (trained.token_to_id("<s>"), None, None)
    ids = plain.encode("The end!")
    assert begun.encode("The end!") == ids
    assert begun.opened(ids) == [begun.before_text, *ids]
    assert plain.opened(ids) == ids
    assert plain.before_text == plain.end_of_text
