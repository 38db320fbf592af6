"""Imported tokenizers: the ids of texts are those that transformers gives them, by the settings beside a file, or
nothing is imported."""

import base64
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.tokenizers.released import AS_RELEASED, DocumentBounds, load_released
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from tests.helpers.families import family_config
from tests.helpers.released import byte_level, sentencepiece_model, write
from tests.helpers.tiny import tiny_config

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyzäö!.,'-", "schon", "schön"]
CASED = [*BERT, *"SMÅ", "##on", "##ön"]
KOREAN = [*BERT, *"한국어문장은이렇다中文", "##국", "##어", "##장", "##은"]
BERTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "uncased": (BERT, {"do_lower_case": True}),
    "defaults": (CASED, {"model_max_length": 512}),
    "cased": (CASED, {"do_lower_case": False, "model_max_length": 512}),
    "accents kept": (BERT, {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": True}),
    "accents stripped": (CASED, {"do_lower_case": False, "strip_accents": True}),
    "Korean": (KOREAN, {"do_lower_case": False, "strip_accents": None, "never_split": None, "do_basic_tokenize": True}),
    "Han in words": (KOREAN, {"do_lower_case": False, "tokenize_chinese_chars": False}),
}
ALBERT = functools.partial(
    sentencepiece_model, model_type="unigram", pad_id=0, unk_id=1, bos_id=2, eos_id=3, bos_piece="[CLS]",
    eos_piece="[SEP]", control_symbols="[MASK]", user_defined_symbols="(,),.",
)  # fmt: skip
XLNET = functools.partial(
    sentencepiece_model, model_type="unigram", unk_id=0, bos_id=1, eos_id=2,
    control_symbols="<cls>,<sep>,<pad>,<mask>,<eod>", user_defined_symbols="<eop>,.",
)  # fmt: skip
LLAMA = functools.partial(
    sentencepiece_model, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
    remove_extra_whitespaces=False,
)  # fmt: skip
GEMMA = functools.partial(
    LLAMA, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>",
    bos_piece="<bos>",
)  # fmt: skip
T5 = functools.partial(sentencepiece_model, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
OF_LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>",
            "eos_token": "</s>", "legacy": False, "sp_model_kwargs": {}, "model_max_length": 4096}  # fmt: skip
MODELS: dict[str, tuple[Callable[[], bytes], str, dict[str, Any] | None, str]] = {
    "ALBERT": (ALBERT, "albert", {}, "spiece.model"),
    "ALBERT with accents": (ALBERT, "albert", {"keep_accents": True, "remove_space": True}, "spiece.model"),
    "ALBERT with both": (ALBERT, "albert", {"do_lower_case": False, "keep_accents": True}, "spiece.model"),
    "XLNet": (XLNET, "xlnet", {}, "spiece.model"),
    "XLNet in lower case": (XLNET, "xlnet", {"do_lower_case": True, "tokenizer_class": "XLNetTokenizer"},
                            "spiece.model"),
    "Llama 2": (LLAMA, "llama", OF_LLAMA, "tokenizer.model"),
    "Llama without settings": (LLAMA, "llama", None, "tokenizer.model"),
    "Gemma": (GEMMA, "gemma2", {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}, "tokenizer.model"),
    "T5": (T5, "t5", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}, "spiece.model"),
}  # fmt: skip


def _passes(
    folder: Path, bounds: DocumentBounds = AS_RELEASED, content: bytes | None = None, config: RunConfig | None = None
) -> list[str]:  # fmt: skip
    """The gate's warnings."""
    from pretrain.interop.hf.tokenizer_gate import check

    warnings: list[str] = []
    released = content or load_released(folder, bounds).content
    check(folder, released, config or tiny_config(), bounds, warnings.append)
    return warnings


@pytest.mark.parametrize("name", BERTS)
def test_bert_s_settings_are_read_beside_a_vocabulary(name: str, tmp_path: Path) -> None:
    pieces, settings = BERTS[name]
    beside = {"config.json": {"model_type": "bert"}, "tokenizer_config.json": settings}
    folder = write(tmp_path, "\n".join(pieces) + "\n", beside, "vocab.txt")
    assert _passes(folder) == []
    guessed = load_tokenizer(folder)
    if name in ("defaults", "accents kept", "accents stripped", "Korean", "Han in words"):
        with pytest.raises(
            ConfigError, match=r"transformers' BertTokenizer makes ids \[.*\] of the text '.*', and its"
        ):
            _passes(folder, content=(folder / "vocab.txt").read_bytes())
    else:
        assert load_released(folder).tokenizer.identity == guessed.identity, "as it was guessed from the pieces"
        assert load_released(folder).content == (folder / "vocab.txt").read_bytes()


WORDS_OF = {
    "convbert": {"model_type": "convbert"}, "mobilebert": {"model_type": "mobilebert"},
    "squeezebert": {"model_type": "squeezebert"}, "megatron-bert": {"model_type": "megatron-bert"},
    "albert": {"model_type": "albert", "tokenizer_class": "BertTokenizer"}, "no config.json": None,
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS_OF)
def test_any_vocabulary_of_words_has_bert_s_settings_and_defaults(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertTokenizer

    texts = ["Sch\u00f6n, \u00c5M \ud55c\uad6d\uc5b4 MS"]
    model = WORDS_OF[name]
    auto: Any = BertTokenizer if model is None else AutoTokenizer
    for number, settings in enumerate(({"do_lower_case": False}, {"strip_accents": True}, {})):
        beside = {"tokenizer_config.json": settings} | ({} if model is None else {"config.json": model})
        folder = write(tmp_path / str(number), "\n".join([*CASED, *KOREAN[-9:]]) + "\n", beside, "vocab.txt")
        ours = load_released(folder).tokenizer
        assert [ours.encode(text) for text in texts] == auto.from_pretrained(folder)(texts, add_special_tokens=False)[
            "input_ids"
        ]


@pytest.mark.parametrize(
    ("name", "content", "settings", "kind", "said"),
    [
        ("vocabulary", "\n".join(CASED), {"tokenizer_class": "X"}, "bert", "X, .* a vocabulary of words"),
        ("vocab.txt", "\n".join(CASED), {"tokenizer_class": ["BertTokenizer"]}, "bert", "a vocabulary of words"),
        ("vocab.txt", "\n".join(CASED), {}, "roformer", "RoFormerTokenizer, .* a vocabulary of words"),
        ("vocab.txt", "\n".join(CASED), {"tokenizer_class": "XLNetTokenizerFast"}, "", "XLNetTokenizer, .* words"),
        ("tokenizer.model", LLAMA, {"tokenizer_class": "BertTokenizerFast"}, "", "BertTokenizer, .* a sentencepiece"),
    ],
)
def test_a_class_that_does_not_read_the_file_is_refused(
    name: str, content: Any, settings: dict[str, Any], kind: str, said: str, tmp_path: Path
) -> None:
    beside = {"tokenizer_config.json": settings, "config.json": {"model_type": kind}}
    write(tmp_path, content if isinstance(content, str) else content(), beside, name)
    with pytest.raises(DataError, match=f"{name} belongs to the class .*{said}.*: put the tokenizer.json beside it"):
        load_released(tmp_path / name)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    assert load_released(tmp_path / name).tokenizer.vocabulary_size > 0, "what it is called says nothing"


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_with_a_sentencepiece_model_alone_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    model, kind, settings, file = MODELS[name]
    beside = {"config.json": {"model_type": kind}} | ({} if settings is None else {"tokenizer_config.json": settings})
    warnings = _passes(write(tmp_path, model(), beside, file))
    assert all("drops a space where a text begins with one" in line for line in warnings)
    assert bool(warnings) == ("Llama" in name)
    tokenizer = load_released(tmp_path).tokenizer
    assert tokenizer.encode_with_offsets("Sch\u00f6n")[0].tolist() == tokenizer.encode("Sch\u00f6n")
    assert tokenizer.special_pieces().keys() >= {"[CLS]", "[SEP]"} if kind == "albert" else tokenizer.end_of_text > 0


LLAMA_3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
JSONS: dict[str, tuple[list[str], Any, str, dict[str, Any]]] = {
    "Llama 3": (LLAMA_3, ([LLAMA_3[0]], []), "llama", {"tokenizer_class": "PreTrainedTokenizerFast",
                                                       "bos_token": LLAMA_3[0], "eos_token": LLAMA_3[2]}),
    "DeepSeek": (["<b>", "<e>"], ([], []), "deepseek_v3", {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<b>",
                                                           "eos_token": "<e>", "add_bos_token": True}),
    "SmolLM2": (["<|endoftext|>"], ([], []), "llama", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", JSONS)
def test_a_tokenizer_json_is_compared_too(name: str, tmp_path: Path) -> None:
    specials, around, kind, settings = JSONS[name]
    beside = {"config.json": {"model_type": kind}, "tokenizer_config.json": settings}
    warnings = _passes(write(tmp_path, byte_level(specials, around), beside))
    expected = ["TokenizersBackend puts nothing before a text, and <b> begins one here"] if name == "DeepSeek" else []
    assert [line.partition("transformers' ")[2] for line in warnings] == expected, "add_bos_token goes first"


@pytest.mark.parametrize("lstrip", [True, False])
def test_a_mask_that_transformers_reads_with_the_space_before_it_is_warned_of(lstrip: bool, tmp_path: Path) -> None:
    tree = json.loads(byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    tree["added_tokens"][-1]["lstrip"] = lstrip
    beside = {"config.json": {"model_type": "roberta"}, "tokenizer_config.json": {"mask_token": "<mask>"}}
    folder = write(tmp_path, json.dumps(tree), beside)
    warnings = _passes(folder, config=family_config("roberta", model={"vocabulary": 400}))
    assert len(warnings) == (0 if lstrip else 1)
    assert all("reads the prompt 'The value of <mask> class'" in line for line in warnings)
    assert all("set lstrip of <mask> to true" in line for line in warnings)


def test_another_begin_than_transformers_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    specials, around, kind, settings = JSONS["Llama 3"]
    beside = {"config.json": {"model_type": kind}, "tokenizer_config.json": settings}
    folder = write(tmp_path, byte_level(specials, around), beside)
    off = load_released(folder, DocumentBounds(begin="off")).content
    with pytest.raises(ConfigError, match=r"puts <\|begin_of_text\|> before a text, and nothing begins one here: say"):
        _passes(folder, content=off)
    assert len(_passes(folder, DocumentBounds(begin="off"))) == 1


def test_all_that_transformers_puts_before_a_text_is_compared(tmp_path: Path) -> None:
    """GLM puts two tokens there, of which a document here would have one."""
    marks, settings = ["[gMASK]", "<sop>"], {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    beside = {"config.json": {"model_type": "llama"}, "tokenizer_config.json": settings}
    folder = write(tmp_path, byte_level([*marks, "<|endoftext|>"], (marks, [])), beside)
    with pytest.raises(DataError, match=r"puts \[gMASK\], <sop> before a text, and a document begins with one token"):
        load_released(folder)
    first = DocumentBounds(begin="[gMASK]")
    assert ["[gMASK], <sop> before a text, and [gMASK] begins one here" in line for line in _passes(folder, first)] == [
        True
    ]
    write(folder, byte_level([*marks, "<|endoftext|>"], (["<sop>", "<sop>"], [])), beside)
    assert _passes(folder) == [], "twice the same is the same"


def test_the_begin_is_compared_beside_files_of_another_format(tmp_path: Path) -> None:
    """Meta's Llama 3 has some in `original`."""
    specials, around, kind, settings = JSONS["Llama 3"]
    beside = {"config.json": {"model_type": kind}, "tokenizer_config.json": settings}
    folder = write(tmp_path, byte_level(specials, around), beside)
    write(folder / "original", "{}", {}, "params.json")
    off = load_released(folder, DocumentBounds(begin="off")).content
    for name, content in (("params.json", b"{}"), ("tokenizer.model", b"IQ== 0\nIg== 1\n")):
        (folder / "original" / name).write_bytes(content)
        with pytest.raises(ConfigError, match=r"puts <\|begin_of_text\|> before a text, and nothing begins one here"):
            _passes(folder, content=off)
        assert _read(folder).end_of_text == 301
        (folder / "original" / name).unlink()
    (folder / "original" / "more").mkdir()
    assert _read(folder).end_of_text == 301, "a folder is no tokenizer"
    (folder / "original" / "more").rmdir()
    write(folder / "original", byte_level(specials), {})
    assert _passes(folder, content=off) == [], "an export of ours says itself how its texts begin"


TOKEN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


def _added(first: int) -> dict[str, Any]:
    return {str(first + k): TOKEN | {"content": name} for k, name in enumerate(("<|im_start|>", "<|im_end|>"))}


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json"])
def test_special_tokens_that_only_the_settings_have_are_refused(name: str, tmp_path: Path) -> None:
    """The way out is transformers' own file."""
    from transformers import AutoTokenizer

    if name == "tokenizer.model":
        content: str | bytes = LLAMA()
        settings, size = OF_LLAMA | {"added_tokens_decoder": _added(380)}, 382
    else:
        content, size = byte_level(["<|endoftext|>"]), 303
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|endoftext|>"}
        settings["added_tokens_decoder"] = {"300": TOKEN | {"content": "<|endoftext|>"}} | _added(301)
    beside = {"config.json": {"model_type": "llama"}, "tokenizer_config.json": settings}
    folder = write(tmp_path, content, beside, name)
    said = rf"special tokens <\|im_start\|> \(id {size - 2}\), <\|im_end\|> \(id {size - 1}\), which the tokenizer's"
    with pytest.raises(ConfigError, match=said):
        _passes(folder, config=tiny_config(model={"vocabulary": size}))
    assert all(
        "drops a space" in line for line in _passes(folder, config=tiny_config(model={"vocabulary": size - 2}))
    ), "it has no rows of them"
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    assert all("drops a space" in line for line in _passes(folder, config=tiny_config(model={"vocabulary": size})))
    assert load_released(folder).tokenizer.special_pieces()["<|im_end|>"] == size - 1


def test_a_piece_that_transformers_alone_takes_for_special_is_refused(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    tree = json.loads(byte_level(["<|endoftext|>", "<|im_end|>"]))
    tree["model"]["vocab"]["<|im_end|>"] = tree["added_tokens"].pop()["id"]
    folder = write(tmp_path, json.dumps(tree), {"config.json": {"model_type": "llama"}})
    settings["added_tokens_decoder"] = {"301": TOKEN | {"content": "<|im_end|>"}}  # type: ignore[assignment]
    write(folder, json.dumps(tree), {"tokenizer_config.json": settings})
    with pytest.raises(ConfigError, match=r"special tokens <\|im_end\|> \(id 301\), which"):
        _passes(folder, config=tiny_config(model={"vocabulary": 302}))


def test_added_tokens_that_texts_spell_are_compared(tmp_path: Path) -> None:
    """A .model holds none of them, and transformers finds them in a text."""
    added = {"content": "<tool>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    beside = {"config.json": {"model_type": "llama"}, "tokenizer_config.json": OF_LLAMA}
    beside["tokenizer_config.json"] = OF_LLAMA | {"added_tokens_decoder": {"380": added | {"special": False}}}
    with pytest.raises(ConfigError, match="of the text 'a <tool>b'"):
        _passes(write(tmp_path, LLAMA(), beside, "tokenizer.model"))


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"word_tokenizer_type": "mecab"}, "vocab.txt"), ({"do_lower_case": True}, "spiece.model"),
     ({"do_basic_tokenize": False, "tokenizer_class": "BertTokenizer"}, "vocab.txt"),
     ({"remove_space": False, "tokenizer_class": "XLNetTokenizer"}, "spiece.model")],
)  # fmt: skip
def test_settings_that_cannot_be_applied_are_refused(settings: dict[str, Any], name: str, tmp_path: Path) -> None:
    content = "\n".join(BERT) + "\n" if name == "vocab.txt" else LLAMA()
    folder = write(tmp_path, content, {"tokenizer_config.json": settings}, name)
    with pytest.raises(DataError, match=f"has {next(iter(settings))}: .*, which can't be applied to {name}: put the"):
        load_released(folder)


def test_a_folder_that_transformers_cannot_read_is_said(tmp_path: Path) -> None:
    beside = {"config.json": {"model_type": "xlm"}, "tokenizer_config.json": {"tokenizer_class": "XLMTokenizer"}}
    (warning,) = _passes(write(tmp_path, LLAMA(), beside, "tokenizer.model"))
    assert "transformers makes no tokenizer of" in warning
    assert "were not compared" in warning


def _kept(tokenizer: Tokenizer) -> str:
    return tokenizer.decode(tokenizer.encode("Sch\u00f6n, M\u00fcller"))


def test_a_text_keeps_what_the_settings_keep(tmp_path: Path) -> None:
    """The text of the issue: `Schön ... Müller` was read as `schon ... muller`."""
    pieces = [*BERT, *"SM", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyzäöü")]
    content = "\n".join(piece for piece in pieces if piece not in "SM") + "\n"
    write(tmp_path, content, {"tokenizer_config.json": {"do_lower_case": True, "strip_accents": False,
                                                        "tokenizer_class": "BertTokenizer"}}, "vocab.txt")  # fmt: skip
    assert _kept(load_released(tmp_path).tokenizer) == "schön, müller"
    assert _kept(load_tokenizer(tmp_path)) == "schon, muller"


def _read(folder: Path, vocabulary: int = 400) -> Tokenizer:
    from pretrain.interop.hf import vocabulary as module

    content = module.read(folder, tiny_config(model={"vocabulary": vocabulary}))
    path = folder.parent / f"{folder.name}.read"
    path.write_bytes(content)
    return load_tokenizer(path)


def test_a_tokenizer_json_wins_over_other_files_and_original_is_ours_alone(tmp_path: Path) -> None:
    content = byte_level(["<|endoftext|>", "<|im_end|>"])
    pieces = json.loads(content)["model"]["vocab"]
    qwen = write(tmp_path / "qwen", content, {"vocab.json": pieces, "config.json": {"eos_token_id": 301}})
    (qwen / "merges.txt").write_text("".join(f"{' '.join(pair)}\n" for pair in json.loads(content)["model"]["merges"]))
    assert "<|endoftext|>" not in pieces, "Qwen2's vocab.json lacks the added tokens"
    assert _read(qwen).end_of_text == 300
    (qwen / "vocab.json").write_text(json.dumps({piece: len(pieces) - 1 - index for piece, index in pieces.items()}))
    with pytest.raises(ConfigError, match="two vocabularies"):
        _read(qwen)
    llama = write(tmp_path / "llama", byte_level(LLAMA_3, ([LLAMA_3[0]], [])), {})
    tiktoken = "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    write(llama / "original", tiktoken, {}, "tokenizer.model")
    assert _read(llama).end_of_text == 301
    write(llama / "original", "{}", {}, "params.json")
    write(llama / "original", LLAMA(), {}, "tokenizer.model")
    with pytest.raises(ConfigError, match="two vocabularies"):  # as a file beside it would be
        _read(write(llama, LLAMA(), {}, "tokenizer.model"))
    (llama / "tokenizer.model").unlink()
    assert _read(llama).end_of_text == 301, "an export of ours has one file there"


def test_more_ids_than_rows_are_fine_where_no_text_encodes_to_them(tmp_path: Path) -> None:
    beside = {"config.json": {"model_type": "llama", "vocab_size": 302}}
    assert _read(write(tmp_path / "special", byte_level(LLAMA_3), beside), 302).vocabulary_size == 302
    with pytest.raises(ConfigError, match=r"has 303 ids, .* vocab_size 302: they do not belong together"):
        _read(write(tmp_path / "text", byte_level(LLAMA_3[:2], plain=("<text>",)), beside), 302)
