"""Where documents begin and end, by the files beside a released tokenizer; on record, and part of the identity."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import accepted_identities, build_identity, find_sources
from data_pipeline.config import TokenizerConfig
from data_pipeline.errors import DataError
from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.tokenizers.recorded import RecordedTokenizer
from data_pipeline.tokenizers.released import DocumentBounds, load_released
from tests.helpers.datasets import build_dataset
from tests.helpers.released import WORDS, byte_level, identities, sentencepiece_model, write

LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]  # ids 300 to 303
DEEPSEEK = ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
COHERE = ["<PAD>", "<BOS_TOKEN>", "<EOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"]
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
TOKEN = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
BEGINS = ["<|begin_of_text|>"], list[str]()

CASES: dict[str, tuple[list[str], Any, tuple[Any, Any, Any], str, str | None, bool]] = {
    "Llama 3": (
        LLAMA, BEGINS,
        ({"bos_token": LLAMA[0], "eos_token": "<|end_of_text|>", "tokenizer_class": "PreTrainedTokenizerFast"},
         {"bos_token_id": 300, "eos_token_id": 301}, {"bos_token_id": 300, "eos_token_id": 301, "do_sample": True}),
        "<|end_of_text|>", "<|begin_of_text|>", False,
    ),
    "Llama 3.1 Instruct": (
        LLAMA, BEGINS,
        ({"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "tokenizer_class": "PreTrainedTokenizerFast"},
         {"bos_token_id": 300, "eos_token_id": [301, 302, 303]}, {"eos_token_id": [301, 302, 303]}),
        "<|end_of_text|>", "<|begin_of_text|>", True,
    ),
    "Llama 3 whose files name turns alone": (
        LLAMA, BEGINS, ({"eos_token": "<|eot_id|>"}, {"eos_token_id": 303}, None),
        "<|end_of_text|>", "<|begin_of_text|>", True,
    ),
    "DeepSeek, whose post-processor adds nothing": (
        DEEPSEEK, None,
        ({"add_bos_token": True, "add_eos_token": False, "bos_token": TOKEN | {"content": DEEPSEEK[0]},
          "eos_token": TOKEN | {"content": DEEPSEEK[1]}, "pad_token": TOKEN | {"content": DEEPSEEK[1]},
          "unk_token": None, "tokenizer_class": "LlamaTokenizerFast"},
         {"bos_token_id": 300, "eos_token_id": 301}, None),
        DEEPSEEK[1], DEEPSEEK[0], False,
    ),
    "Qwen2.5 Instruct": (
        QWEN, None,
        ({"add_bos_token": False, "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>",
          "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer", "unk_token": None},
         {"bos_token_id": 300, "eos_token_id": 302}, {"bos_token_id": 300, "eos_token_id": [302, 300]}),
        "<|endoftext|>", None, True,
    ),
    "SmolLM2 Instruct": (
        QWEN, None, ({"add_prefix_space": False, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
                     {"bos_token_id": 301, "eos_token_id": 302}, None), "<|endoftext|>", None, True,
    ),
    "GPT-2, whose begin is only named": (
        ["<|endoftext|>"], None, ({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
                                  {"bos_token_id": 300, "eos_token_id": 300}, None), "<|endoftext|>", None, False,
    ),
    "Cohere, which has a turn's end alone": (
        COHERE, (["<BOS_TOKEN>"], []),
        ({"add_bos_token": True, "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
         {"bos_token_id": 301, "eos_token_id": 304}, {"bos_token_id": 301, "eos_token_id": 304}),
        "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", False,
    ),
    "Gemma 3": (
        GEMMA, (["<bos>"], []), ({"add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>",
                                  "eos_token": "<eos>"}, {"eos_token_id": [301, 306]}, {"eos_token_id": [301, 306]}),
        "<eos>", "<bos>", True,
    ),
    "a begin and an end": (
        ["<s>", "</s>"], (["<s>"], ["</s>"]), ({"bos_token": "<s>", "eos_token": "</s>"}, None, None),
        "</s>", "<s>", False,
    ),
    "a begin twice": (
        ["<s>", "</s>"], (["<s>", "<s>"], []), ({"bos_token": "<s>", "eos_token": "</s>"}, None, None),
        "</s>", "<s>", False,
    ),
    "RoBERTa, whose <s> is for classes": (
        ["<s>", "</s>", "<mask>"], (["<s>"], ["</s>"]), ({"model_max_length": 512}, {"eos_token_id": 301}, None),
        "</s>", None, False,
    ),
    "a begin that is switched off": (
        ["<s>", "</s>"], (["<s>"], []), ({"add_bos_token": False, "bos_token": "<s>"}, None, None), "</s>", None, True,
    ),
    "pictures beside text": (
        GEMMA, (["<bos>"], []), ({}, {"text_config": {"eos_token_id": 306}}, {"eos_token_id": [301, 306]}),
        "<eos>", "<bos>", True,
    ),
    "an unknown name": (
        ["<doc>", "</doc>"], None, ({"eos_token": "</doc>"}, {"eos_token_id": 5}, None), "</doc>", None, False,
    ),
    "OLMoE, of which two files name two": (
        ["|||IP_ADDRESS|||", "<|endoftext|>"], None, ({"eos_token": "|||IP_ADDRESS|||"}, {"eos_token_id": 301}, None),
        "<|endoftext|>", None, True,
    ),
}  # fmt: skip


def _beside(files: tuple[Any, Any, Any]) -> dict[str, Any]:
    names = ("tokenizer_config.json", "config.json", "generation_config.json")
    return {name: tree for name, tree in zip(names, files, strict=True) if tree is not None}


@pytest.mark.parametrize("name", CASES)
def test_the_files_beside_a_tokenizer_say_where_documents_begin_and_end(name: str, tmp_path: Path) -> None:
    specials, around, files, end, begin, said = CASES[name]
    content = byte_level(specials, around or ([], []))
    folder = write(tmp_path / "folder", content, _beside(files))
    found = load_released(folder)
    tokenizer = found.tokenizer
    assert tokenizer.end_of_text == tokenizer.id_of(end)
    assert tokenizer.begin_of_text == (None if begin is None else tokenizer.id_of(begin))
    assert bool(found.notes) == said
    (tmp_path / "tokenizer.model").write_bytes(found.content)  # as a checkpoint holds it
    again = load_tokenizer(tmp_path / "tokenizer.model")
    assert (again.begin_of_text, again.end_of_text) == (tokenizer.begin_of_text, tokenizer.end_of_text)
    assert again.identity == tokenizer.identity
    assert again.encode("The end <|eot_id|>") == tokenizer.encode("The end <|eot_id|>")


def test_two_files_of_one_model_have_the_same_begin(tmp_path: Path) -> None:
    model = sentencepiece_model(model_type="bpe", byte_fallback=True)
    settings = {"add_bos_token": True, "bos_token": TOKEN | {"content": "<s>"}, "eos_token": "</s>"}
    from_model = load_released(
        write(tmp_path / "a", model, {"tokenizer_config.json": settings}, "tokenizer.model")
    ).tokenizer
    plain = tokenizers.Tokenizer.from_str(load_tokenizer(tmp_path / "a" / "tokenizer.model").to_json())
    plain.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    from_json = load_released(write(tmp_path / "b", plain.to_str(), {"tokenizer_config.json": settings})).tokenizer
    assert from_model.begin_of_text == from_json.begin_of_text == 1
    assert from_model.end_of_text == from_json.end_of_text == 2
    assert load_tokenizer(tmp_path / "a" / "tokenizer.model").begin_of_text is None
    silent = load_released(
        write(tmp_path / "c", model, {"tokenizer_config.json": {"bos_token": "<s>"}}, "spiece.model")
    )
    assert silent.tokenizer.begin_of_text is None, "as transformers' LlamaTokenizer has it"


def test_names_that_are_given_go_first_and_belong_to_the_identity(tmp_path: Path) -> None:
    specials, around, files, *_ = CASES["Llama 3.1 Instruct"]
    folder = write(tmp_path / "folder", byte_level(specials, around), _beside(files))
    asked = DocumentBounds(begin="off", end="<|eot_id|>")
    found = load_released(folder, asked).tokenizer
    assert (found.begin_of_text, found.end_of_text) == (None, 303)
    bare = load_released(folder).tokenizer
    half = load_released(folder, replace(asked, begin=None)).tokenizer
    assert len({found.identity, bare.identity, half.identity}) == 3
    found.save(tmp_path / found.file_name)
    assert load_released(tmp_path / found.file_name).tokenizer.identity == found.identity
    back = load_released(tmp_path / found.file_name, DocumentBounds("<|begin_of_text|>", "<|end_of_text|>")).tokenizer
    assert back.identity == bare.identity
    with pytest.raises(
        DataError, match="'The' can't end texts: the tokenizer has no special piece of that name; it has"
    ):
        load_released(folder, DocumentBounds(end="The"))
    with pytest.raises(DataError, match="'<s>' can't begin texts"):
        load_released(folder, DocumentBounds(begin="<s>"))


def test_a_record_holds_a_file_of_any_kind(tmp_path: Path) -> None:
    model = sentencepiece_model(model_type="bpe", byte_fallback=True)
    found = load_released(write(tmp_path, model, {}, "tokenizer.model"), DocumentBounds(begin="<s>")).tokenizer
    assert isinstance(found, RecordedTokenizer)
    found.save(tmp_path / "again")
    again = load_tokenizer(tmp_path / "again")
    assert isinstance(again, RecordedTokenizer)
    assert again.bare_content == model
    assert again.texts() == found.texts()
    assert again.decode(again.encode("a b")) == "a b"
    assert again.encode_with_offsets("The")[0].tolist() == again.encode("The")
    assert again.library == "sentencepiece"
    (tmp_path / "again").write_text(json.dumps({"tokenizer": "recorded", "version": 2, "text": ""}))
    with pytest.raises(DataError, match="record is damaged, or of a newer version"):
        load_tokenizer(tmp_path / "again")


def test_no_name_of_an_end_is_a_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", byte_level(["<doc>"]), {"config.json": {"eos_token_id": 99_999}})
    with pytest.raises(DataError, match=r"no file beside it names another end .* tokenizer\.end_of_text"):
        load_released(folder)
    assert load_released(folder, DocumentBounds(end="<doc>")).tokenizer.end_of_text == 300
    (folder / "config.json").write_text("[")
    with pytest.raises(DataError, match=r"config\.json cannot be read as a JSON object"):
        load_released(folder)


def test_special_pieces_beyond_the_model_s_rows_are_left_out_and_others_are_not(tmp_path: Path) -> None:
    """Gemma 3 has 262,144 rows and 262,145 ids, the last of which is of pictures."""
    content = byte_level([*GEMMA, "<image_soft_token>"], (["<bos>"], []))
    bare = load_released(write(tmp_path / "a", content, {"config.json": {"vocab_size": 308}})).tokenizer
    found = load_released(write(tmp_path / "b", content, {"config.json": {"text_config": {"vocab_size": 307}}}))
    assert (bare.vocabulary_size, found.tokenizer.vocabulary_size) == (308, 307)
    assert found.notes == ("config.json has 307 rows, and none for <image_soft_token>: left out",)
    assert found.tokenizer.id_of("<image_soft_token>") is None
    assert found.tokenizer.encode("The end <image_soft_token>") == bare.encode("The end <image_soft_token>")
    assert (found.tokenizer.begin_of_text, found.tokenizer.end_of_text) == (bare.begin_of_text, bare.end_of_text)
    spelled = byte_level(GEMMA, (["<bos>"], []), plain=("<text>",))
    assert load_released(write(tmp_path / "c", spelled, {"config.json": {"vocab_size": 307}})).tokenizer.encode(
        "<text>"
    ) == [307]


TEXTS = [f"{text}{number}" for number, text in enumerate(WORDS)]
RECORDED = {
    "bpe": ("b8faab0ebb9ce6a5c56649769ed436b3238a723b0fdafbb08cd8d08f8a99bd25", None, 1),
    "byte_bpe": ("eae4cf9b2a4fcd5f4fc7999261227a480ff2dc21b7ea7c123639c3d14e655c5b", None, 2),
    "wordpiece": ("9bd48e39bb5c19352fcfee0e203cb14a09b84195957012f4980fa79b2c9ba736", None, 3),
    "gemma": ("babe031340f4b05da2691042e69f9ee33a2c9a16851b000175185ea8e96bbc49", 302, 301),
    "around": ("fdbda506de2a13dc19e8b6815064728404e919f49a57c78ff38a309590de031e", None, 301),
    "llama": ("3adcd93967a7f26da38eef06479122d758a1166aceae34c9ed93b19d8d769408", None, 2),
}
"""Identity, begin and end of files at commit 62e58d60, with tokenizers 0.23.3 and sentencepiece 0.2.3, on which
identities depend."""


def test_bare_files_keep_their_meaning_and_identity(tmp_path: Path) -> None:
    for kind, tokenizer in identities().items():
        tokenizer.save(tmp_path / kind)
    (tmp_path / "gemma").write_text(byte_level(["<pad>", "<eos>", "<bos>"], (["<bos>"], [])))
    (tmp_path / "around").write_text(byte_level(["<bos>", "<eos>"], (["<bos>"], ["<eos>"])))
    (tmp_path / "llama").write_bytes(sentencepiece_model(model_type="bpe", byte_fallback=True))
    for kind, expected in RECORDED.items():
        for found in (load_tokenizer(tmp_path / kind), load_released(tmp_path / kind).tokenizer):
            assert (found.identity, found.begin_of_text, found.end_of_text) == expected
        assert load_released(tmp_path / kind).content == (tmp_path / kind).read_bytes()


def test_a_dataset_has_the_begin_and_end_on_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    specials, around, files, *_ = CASES["a begin twice"]
    folder = write(tmp_path / "folder", byte_level(specials, around), _beside(files))
    built = build_dataset(TEXTS, tmp_path, "released", tokenizer={"path": folder})
    assert (built.tokenizer().begin_of_text, built.manifest.tokenizer.file) == (300, RecordedTokenizer.file_name)
    assert built.manifest.tokenizer.identity == load_released(folder).tokenizer.identity
    assert load_released(built.directory).tokenizer.identity == built.manifest.tokenizer.identity
    named = {"type": "byte_bpe", "vocabulary": 300, "begin_of_text": "<s>", "end_of_text": "<mask>"}
    trained = build_dataset(TEXTS, tmp_path, "trained", tokenizer=named).tokenizer()
    assert (trained.begin_of_text, trained.end_of_text) == (trained.id_of("<s>"), trained.id_of("<mask>"))
    with pytest.raises(ValueError, match="do not apply to bytes"):
        TokenizerConfig(type="bytes", begin_of_text="</s>")
    instruct = write(tmp_path / "chat", byte_level(LLAMA), _beside(CASES["Llama 3.1 Instruct"][2]))
    assert build_dataset(TEXTS, tmp_path, "chat-set", tokenizer={"path": instruct}).tokenizer().end_of_text == 301
    assert "documents end with <|end_of_text|> (tokenizer_config.json names <|eot_id|>; config.json" in caplog.text


BUILT = "ce3247a0c851a9aff25bf5d9735863173defe8e15e034251d8a8ef8beac91e87"
"""Build identity of the dataset below at commit 62e58d60, which read the file alone."""


def test_a_dataset_built_of_the_bare_file_is_left_as_it_is(tmp_path: Path) -> None:
    settings = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    folder = write(tmp_path / "folder", byte_level(["<s>", "</s>"]), {"tokenizer_config.json": settings})
    write(tmp_path, "{}", {}, "in.jsonl")
    given = {"input": str(tmp_path / "in.jsonl"), "output": tmp_path / "out", "tokenizer": {"path": folder}}
    config = BuildConfig.model_validate(given)
    sources, sha256 = find_sources(config), {tmp_path / "in.jsonl": "0" * 64}
    assert BUILT in accepted_identities(config, sources, sha256)
    assert build_identity(config, sources, sha256) != BUILT
    asked = BuildConfig.model_validate(given | {"tokenizer": {"path": folder, "begin_of_text": "<s>"}})
    assert BUILT not in accepted_identities(asked, sources, sha256), "that version knew no such key"
