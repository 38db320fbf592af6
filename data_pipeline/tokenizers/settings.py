"""Settings of a released tokenizer whose file does not hold them: BERT's vocab.txt, ALBERT's and XLNet's .model.

tokenizer_config.json says whether a text becomes lower case or loses its accents before it is cut. What it leaves out
is as in transformers' class of the tokenizer; a setting that is not known here is refused. The result is a
tokenizer.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.hf_json import JsonTokenizer, from_bert_vocabulary, is_bert_vocabulary
from data_pipeline.tokenizers.sentencepiece_json import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, hiding_cuts, parse

_SPACE = "\u2581"
_BERTS = (
    *("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer", "ConvBertTokenizer", "MobileBertTokenizer"),
    *("SqueezeBertTokenizer", "LxmertTokenizer", "LayoutLMTokenizer", "RetriBertTokenizer"),
)
"""transformers' classes that cut a text as BERT's does."""
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
"""Classes that say nothing of a vocabulary, without the ending Fast."""
_CLASSES = {
    "albert": "AlbertTokenizer",
    "yoso": "AlbertTokenizer",
    "xlnet": "XLNetTokenizer",
    "bert-japanese": "BertJapaneseTokenizer",
    "roc_bert": "RoCBertTokenizer",
    "roformer": "RoFormerTokenizer",
    "splinter": "SplinterTokenizer",
}
"""transformers' class by the model_type of a config.json, where no class is named; other vocabularies of words are
BERT's."""
_LOWER = {"AlbertTokenizer": True, "XLNetTokenizer": False}
"""Default of do_lower_case by class."""

_NO_EFFECT = frozenset(
    (
        *("add_bos_token", "add_eos_token", "added_tokens_decoder", "additional_special_tokens"),
        *("auto_map", "backend", "chat_template", "clean_up_tokenization_spaces", "device_map", "errors"),
        *("extra_ids", "extra_special_tokens", "from_slow", "init_inputs", "is_local", "legacy"),
        *("local_files_only", "max_len", "max_length", "max_model_input_sizes", "merges_file"),
        *("model_input_names", "model_max_length", "name_or_path", "offset", "pad_to_multiple_of"),
        *("pad_token_type_id", "padding", "padding_side", "processor_class", "return_token_type_ids"),
        *("spaces_between_special_tokens", "special_tokens_map_file", "split_special_tokens"),
        *("stride", "tokenizer_class", "tokenizer_file", "transformers_version", "trim_offsets"),
        *("truncation", "truncation_side", "truncation_strategy", "unk_id"),
        *("use_default_system_prompt", "use_fast", "vocab_file", "vocab_size"),
    )
)
"""Keys that change no id of a text."""
_ONLY: dict[str, tuple[Any, ...]] = {
    "clean_text": (True,),
    "do_basic_tokenize": (True,),
    "never_split": (None, []),
    "remove_space": (True,),
    "sp_model_kwargs": (None, {}),
    "split_by_punct": (False,),
    "vocab_type": ("spm",),
    "wordpieces_prefix": ("##",),
}
"""Values that change no id of a text."""
_KINDS = {True: "a vocabulary of words", False: "a sentencepiece model"}
_WAY_OUT = "put the tokenizer.json beside it that AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes."


def with_settings(content: bytes, file: Path, settings: dict[str, Any], model: dict[str, Any]) -> JsonTokenizer | None:
    """The tokenizer of a vocab.txt's or a .model's bytes as `settings`, those of a tokenizer_config.json, have it;
    `model` is the config.json. None: they change nothing. Raises DataError for a setting that is not known here, or
    that can't be applied."""
    kind = _class_of(content, file, settings, model)
    known = {"do_lower_case", "strip_accents", "tokenize_chinese_chars"} if kind in _BERTS else set[str]()
    if kind in _LOWER:
        known = {"do_lower_case", "keep_accents"}
    if not known:
        prefix = bool(parse(content).normalizer_spec.add_dummy_prefix)
        allowed = {"do_lower_case": (False,), "add_prefix_space": (None, prefix)}
    else:
        allowed = {"add_prefix_space": (None, True)}
    _refuse_unknown(file, settings, known, _ONLY | allowed)
    if kind in _BERTS:
        return from_bert_vocabulary(
            content,
            str(file),
            normalizers.BertNormalizer(
                lowercase=_flag(file, settings, "do_lower_case", True),
                strip_accents=_flag(file, settings, "strip_accents", True)
                if settings.get("strip_accents") is not None
                else None,
                handle_chinese_chars=_flag(file, settings, "tokenize_chinese_chars", True),
            ),
        )
    if kind in _LOWER:
        lower = _flag(file, settings, "do_lower_case", _LOWER[kind])
        return _unigram(content, lower, _flag(file, settings, "keep_accents", False), str(file))
    return None


def _class_of(content: bytes, file: Path, settings: dict[str, Any], model: dict[str, Any]) -> str:
    """transformers' class of the tokenizer, without the ending Fast, or "" where none is known. The content says which
    classes are possible, whatever the file is called: BERT's read a vocabulary of words. Raises DataError for a class
    that reads another kind, or words in another way than BERT's."""
    name = settings.get("tokenizer_class") or model.get("tokenizer_class")
    named = "" if name is None else str(name).removesuffix("Fast")
    named = "" if named in _GENERIC else named
    of_model, words = _CLASSES.get(str(model.get("model_type")), ""), is_bert_vocabulary(content)
    if words:
        kind = named or ("" if of_model in _LOWER else of_model) or "BertTokenizer"
    else:
        kind = named or (of_model if of_model in _LOWER else "")
    if words != (kind in _BERTS):
        raise DataError(f"{file} belongs to the class {kind}, which is not read here from {_KINDS[words]}: {_WAY_OUT}")
    return kind


def _refuse_unknown(file: Path, settings: dict[str, Any], known: set[str], only: dict[str, tuple[Any, ...]]) -> None:
    for key, value in settings.items():
        if key in known or key in _NO_EFFECT or key.endswith(("_token", "_token_id")) or value in only.get(key, ()):
            continue
        raise DataError(
            f"{file.parent / 'tokenizer_config.json'} has {key}: {value!r}, which can't be applied to {file.name}: "
            f"{_WAY_OUT}"
        )


def _flag(file: Path, settings: dict[str, Any], key: str, default: bool) -> bool:
    value = settings.get(key, default)
    if not isinstance(value, bool):
        raise DataError(f"{file.parent / 'tokenizer_config.json'} has {key}: {value!r}; give true or false.")
    return value


def _unigram(content: bytes, lower: bool, keeps_accents: bool, origin: str) -> JsonTokenizer:
    """Tokenizer that transformers' AlbertTokenizer and XLNetTokenizer make of a .model."""
    proto = parse(content)
    marks = [p.piece for p in proto.pieces if p.type == CONTROL or (p.type == USER_DEFINED and p.piece == "<eop>")]
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keeps_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lower:
        steps.append(normalizers.Lowercase())
    if proto.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap))
    unknown = [p.piece for p in proto.pieces if p.type == UNKNOWN]
    hidden = [[name] for name in (*marks, *unknown) if not lower or name == name.lower()]
    ordinary = {p.piece: p.score for p in proto.pieces if p.type == NORMAL}
    built = tokenizers.Tokenizer(
        models.Unigram([(p.piece, p.score) for p in proto.pieces], int(proto.trainer_spec.unk_id), False)
    )
    built.normalizer = normalizers.Sequence(steps)
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always"),
            *hiding_cuts(hidden, ordinary, True, origin),
        ]
    )
    built.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    built.add_special_tokens([AddedToken(name, normalized=False) for name in marks])
    found = [p.piece for p in proto.pieces if p.type == USER_DEFINED and p.piece not in marks]
    built.add_tokens([AddedToken(name, normalized=False) for name in found])
    return JsonTokenizer(built.to_str().encode(), origin, needs_end=False)
