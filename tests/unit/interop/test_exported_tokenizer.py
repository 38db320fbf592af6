"""Exported tokenizers: AutoTokenizer gives the ids that the model was trained on, or nothing is exported."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import Kind, load_tokenizer, train_tokenizer
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.interop.hf.conventions import Conventions
from tests.helpers.datasets import make_documents
from tests.helpers.families import family_config
from tests.helpers.tiny import tiny_config
from tests.unit.data_pipeline.tokenizers.test_tokenizer_bytes import write_gpt2

OWN = Conventions()
GPT = tiny_config(model={"vocabulary": 900})
KINDS: tuple[Kind, ...] = ("bpe", "unigram", "byte_bpe", "wordpiece", "bytes")


def _tokenizer(kind: str, directory: Path) -> Tokenizer:
    if kind == "gpt2":
        return load_tokenizer(write_gpt2(directory))
    return train_tokenizer(make_documents(0, 100), kind, 259 if kind == "bytes" else 450)  # type: ignore[arg-type]


def _written(tokenizer: Tokenizer, config: Any, directory: Path, conventions: Conventions = OWN) -> Any:
    from transformers import AutoTokenizer

    from pretrain.interop.hf.registry import hf_family_of
    from pretrain.interop.hf.tokenizer import write

    directory.mkdir()
    described = hf_family_of(config.model).hf_config(config.model, config.objective.specials(tokenizer))
    described.save_pretrained(
        directory
    )  # AutoTokenizer reads it, and goes by its model_type where nothing else is said
    write(tokenizer, config.objective, config.model, directory, conventions)
    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("kind", [*KINDS, "gpt2"])
def test_every_kind_gives_its_ids_in_transformers(kind: str, tmp_path: Path) -> None:
    tokenizer = _tokenizer(kind, tmp_path)
    theirs = _written(tokenizer, GPT, tmp_path / "hf")
    for text in ("Two  spaces, \u2581 and\n\ttabs.", " <|endoftext|></s>", "\U0001f600e\u0301 123", "<0x41>", ""):
        assert theirs(text)["input_ids"] == tokenizer.encode(text)
    assert len(theirs) == tokenizer.vocabulary_size, "no id that the model has not"
    assert theirs.eos_token_id == tokenizer.end_of_text
    assert theirs.model_max_length == GPT.model.sequence_length
    assert load_tokenizer(tmp_path / "hf" / "original").identity == tokenizer.identity


@pytest.mark.parametrize("family", ["bert", "t5", "bart"])
def test_appended_ids_have_names_and_samples_their_marks(family: str, tmp_path: Path) -> None:
    tokenizer = _tokenizer("bpe", tmp_path)
    config = family_config(family, model={"vocabulary": 900})
    specials = config.objective.specials(tokenizer)
    theirs, text = _written(tokenizer, config, tmp_path / "hf"), "Some text."
    ids = tokenizer.encode(text)
    assert theirs.pad_token_id == specials.pad >= tokenizer.vocabulary_size
    if family == "t5":
        assert theirs(text)["input_ids"] == [*ids, specials.end]
        assert theirs.encode("<extra_id_0>", add_special_tokens=False) == [specials.sentinels[0]]
    else:
        last = specials.sep if family == "bert" else specials.end
        assert theirs(text)["input_ids"] == [specials.cls, *ids, last]
        assert theirs.encode("<mask>", add_special_tokens=False) == [specials.mask]
    if family == "bert":
        pair = theirs(text, text)
        assert pair["input_ids"] == [specials.cls, *ids, specials.sep, *ids, specials.sep]
        assert pair["token_type_ids"] == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)


@pytest.mark.parametrize(
    ("kind", "family"),
    [("byte_bpe", "roberta"), ("bpe", "bart"), ("unigram", "t5"), ("wordpiece", "bert"), ("bytes", "t5")],
)
def test_the_space_before_a_name_is_part_of_it_as_in_released_tokenizers(
    kind: str, family: str, tmp_path: Path
) -> None:
    """transformers read it as a token of its own, which no sample has. Bytes are: ByT5's tokenizer keeps it."""
    tokenizer, config = _tokenizer(kind, tmp_path), family_config(family, model={"vocabulary": 900})
    specials, theirs = config.objective.specials(tokenizer), _written(tokenizer, config, tmp_path / "hf")
    index = specials.sentinels[0] if family == "t5" else specials.mask
    name, before = theirs.convert_ids_to_tokens(index), "The value of " if kind == "bytes" else "The value of"
    expected = [*tokenizer.encode(before), index, *tokenizer.encode(" class")]
    assert theirs.encode(f"The value of {name} class", add_special_tokens=False) == expected
    assert theirs.added_tokens_decoder[index].lstrip == (kind not in ("wordpiece", "bytes"))
    if kind != "byte_bpe":
        return
    reference = Prompts(config, tokenizer)
    for text in ("The value of {} class", "a{}b", "a  {}\n{} b", "a\u00a0\t{}\u2003", "a\x1f{}"):
        prompt = text.replace("{}", name)
        assert theirs.encode(prompt, add_special_tokens=False) == reference.encode(prompt)


def test_an_imported_folder_s_mask_stays_as_the_folder_has_it(tmp_path: Path) -> None:
    tokenizer, config = _tokenizer("byte_bpe", tmp_path), family_config("roberta", model={"vocabulary": 900})
    theirs = _written(tokenizer, config, tmp_path / "hf", Conventions(is_imported=True))
    assert not theirs.added_tokens_decoder[theirs.mask_token_id].lstrip


def test_a_tokenizer_that_reads_a_prompt_otherwise_there_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from pretrain.interop.hf import tokenizer as module

    monkeypatch.setattr(module, "_with_space_before", lambda there, ids: there)
    with pytest.raises(
        RunError, match=r"not exported: .* makes .* of the prompt 'The value of <mask> class', and ours"
    ):
        _written(_tokenizer("bpe", tmp_path), family_config("bart", model={"vocabulary": 900}), tmp_path / "hf")


def test_a_tokenizer_with_other_ids_there_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = _tokenizer("bpe", tmp_path)
    right = type(tokenizer).to_json

    def without_a_merge(self: Any) -> str:
        tree = json.loads(right(self))
        tree["model"]["merges"].pop()
        return json.dumps(tree)

    monkeypatch.setattr(type(tokenizer), "to_json", without_a_merge)
    with pytest.raises(RunError, match="not exported: transformers' TokenizersBackend makes"):
        _written(tokenizer, GPT, tmp_path / "hf")


def test_normalization_that_transformers_does_otherwise_is_refused(tmp_path: Path) -> None:
    """Its form of sentencepiece's rules drops a second combining mark."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in make_documents(0, 100) for line in text.split("\n")),
        model_writer=model, vocab_size=420, hard_vocab_limit=False, byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "foreign.model").write_bytes(model.getvalue())
    with pytest.raises(RunError, match="not exported: transformers' TokenizersBackend makes"):
        _written(load_tokenizer(tmp_path / "foreign.model"), GPT, tmp_path / "hf")


def test_a_model_with_fewer_ids_than_its_tokenizer_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"need 450 ids, and the model has model\.vocabulary=250"):
        _written(_tokenizer("bpe", tmp_path), tiny_config(), tmp_path / "hf")


def test_gpt_neo_is_for_one_width_of_window() -> None:
    from pretrain.interop.hf.registry import hf_family_of

    banded = [{"name": "banded", "window": 4}, {"name": "banded", "window": 8}]
    model = tiny_config(model={"attention": {"pattern": banded}}).model
    specials = GPT.objective.specials(train_tokenizer([], "bytes", 259))
    with pytest.raises(ConfigError, match=r"model\.attention\.pattern with windows of \[4, 8\] cannot be exported"):
        hf_family_of(model).hf_config(model, specials)
