"""Every tokenizer on text of all kinds, and every tokenizer file damaged."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import Kind, load_tokenizer, train_tokenizer
from tests.helpers.datasets import make_documents
from tests.unit.data_pipeline.reading.test_hostile_input import mutated
from tests.unit.data_pipeline.tokenizers.test_tokenizer_bytes import write_gpt2

REVERSIBLE = ("bpe", "unigram", "byte_bpe", "bytes", "gpt2")
TRAINED: tuple[Kind, ...] = ("bpe", "unigram", "byte_bpe", "wordpiece")
PLANES = [(0, 0x80), (0, 0x800), (0x800, 0xD800), (0xE000, 0x10000), *((p << 16, (p + 1) << 16) for p in range(1, 17))]
ODD_PARTS = [
    "\u2581", " \u2581", "\n", "\r\n", "\r", "\u0085", "\u2028", "\u2029", "\v", "\f", "\x1c", "\0", "\x7f", "\ufeff",
    "e\u0301\u0323", "\u0301", "שלום", "مرحبا", "\u202e", "\u200d", "👩\u200d👩\u200d👧\u200d👦", "🇩🇪", "ß",
    "🏳️\u200d🌈", "ﷺ", "\u0131",
    "<s>", "</s>", "<|endoftext|>", "<0x0A>", "[MASK]", "##", "Ġ", "Ċ", "    ", "\t", "the ", "aaaaaa", "1234567890",
]  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    given: dict[str, Tokenizer] = {kind: train_tokenizer(make_documents(0, 200), kind, 500) for kind in TRAINED}
    return {**given, "bytes": train_tokenizer([], "bytes", 259), "gpt2": load_tokenizer(write_gpt2(folder))}


def random_text(draw: random.Random) -> str:
    def part() -> str:
        how = draw.randrange(4)
        if how == 0:
            return draw.choice(ODD_PARTS) * draw.choice([1, 1, 1, 7])
        first, last = draw.choice(PLANES)
        return "".join(chr(draw.randrange(first, last)) for _ in range(draw.randrange(8)))

    return "".join(part() for _ in range(draw.randrange(12)))


@pytest.mark.parametrize("kind", REVERSIBLE)
def test_random_text_of_all_planes_comes_back(kind: str, loaded: dict[str, Tokenizer]) -> None:
    tokenizer, draw = loaded[kind], random.Random(kind)
    texts = [random_text(draw) for _ in range(600)]
    encoded = tokenizer.encode_batch(texts, threads=1)
    special = tokenizer.is_special()
    for text, ids in zip(texts, encoded, strict=True):
        assert not text or ids.min() >= 0
        assert not special[ids].any(), text
        assert tokenizer.decode(ids) == text


def test_wordpiece_takes_any_text(loaded: dict[str, Tokenizer]) -> None:
    tokenizer, draw = loaded["wordpiece"], random.Random(0)
    for ids in tokenizer.encode_batch([random_text(draw) for _ in range(600)], threads=1):
        assert np.all((ids >= 0) & (ids < tokenizer.vocabulary_size))
        tokenizer.decode(ids)


@pytest.mark.parametrize("size", [3 * 10**5, pytest.param(10**6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [*REVERSIBLE, "wordpiece"])
def test_long_runs_take_time_in_proportion(kind: str, size: int, loaded: dict[str, Tokenizer]) -> None:
    draw = random.Random(0)
    runs = {
        "one letter": "a" * size,
        "letters": "".join(draw.choices("abdeéiklmnoprstuü", k=size)),
        "spaces": " " * (size // 5),
        "line ends": "\n" * (size // 5),
        "combining marks": "e" + "\u0301" * (size // 5),
        "space signs": "\u2581" * (size // 20),
    }
    for name, text in runs.items():
        began = time.process_time()
        ids = loaded[kind].encode(text)
        took = time.process_time() - began
        if kind != "wordpiece":
            assert loaded[kind].decode(ids) == text
        assert took < 15, f"{name}: {took:.1f} s"  # some 1 s on an idle machine; quadratic would be hours


@pytest.mark.parametrize("kind", TRAINED)
def test_a_damaged_tokenizer_is_refused_or_works(kind: Kind, loaded: dict[str, Tokenizer], tmp_path: Path) -> None:
    path, draw, refused = tmp_path / "tokenizer.model", random.Random(kind), 0
    loaded[kind].save(path)
    whole = path.read_bytes()
    for _ in range(120):
        path.write_bytes(mutated(whole, draw))
        try:
            damaged = load_tokenizer(path)
        except DataError:
            refused += 1
            continue
        for text in ("Hello wörld, 中文 x\n", "a" * 300, "\u2581"):
            ids = damaged.encode(text)
            assert all(0 <= index < damaged.vocabulary_size for index in ids)
            damaged.decode(ids)
        assert len(damaged.texts()) == damaged.vocabulary_size
    assert refused > 60


@pytest.mark.parametrize("name", ["encoder.json", "vocab.bpe", "vocab.txt"])
def test_a_damaged_vocabulary_is_refused_or_works(name: str, tmp_path: Path) -> None:
    write_gpt2(tmp_path)
    if name == "vocab.txt":
        path = tmp_path / name
        path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##n\n" + "\n".join("abcdefgh") + "\n")
    else:
        path = tmp_path / "encoder.json"
    draw, refused = random.Random(name), 0
    whole = (tmp_path / name).read_bytes()
    for _ in range(120):
        (tmp_path / name).write_bytes(mutated(whole, draw))
        try:
            damaged = load_tokenizer(path)
        except DataError:
            refused += 1
        else:
            ids = damaged.encode("Hello wörld, 中文 x\n")
            assert all(0 <= index < damaged.vocabulary_size for index in ids)
            damaged.decode(ids)
    assert refused > 10


def test_absurd_tokenizer_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(DataError, match="larger than"):
        load_tokenizer(path)
    with pytest.raises(DataError, match="is no regular file"):
        load_tokenizer(Path("/dev/zero"))
    absurd = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 2**32 - 2}, "merges": []}}
    for content in (b"{" * 10**8, b'{"a":' * 10**6, b"\0" * 10**7, b"{}", json.dumps(absurd).encode()):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"tokenizer\.json"):
            load_tokenizer(path)
    path.unlink()
    with pytest.raises(DataError, match="can't be read"):
        load_tokenizer(tmp_path)
