"""The tokenizer of an export: what transformers' AutoTokenizer makes of the folder gives the ids that the model was
trained on, or nothing is exported.

`tokenizer.json` is ours in that format, with the special ids that the objective appended, and with what its samples put
around a text ([CLS] and [SEP], say), or with what the folder puts around it that the model was imported from. The
tokenizer's own file lies in `original/`, for `pretrain import`.
"""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors
from transformers import AutoTokenizer

from data_pipeline.errors import DataError
from data_pipeline.recipes.input_format import LAST_SEGMENT
from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.permuted import Permuted
from data_pipeline.recipes.tagging import Tagging
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.named_tokens import NamedTokens
from data_pipeline.tokenizers.specials import Specials, names
from pretrain.config.model import Model
from pretrain.errors import ConfigError, RunError
from pretrain.interop.hf import hostile
from pretrain.interop.hf.conventions import Conventions
from pretrain.interop.hf.heads import decoder_padding
from pretrain.interop.hf.source_model import PROBE

ORIGINAL, SENTINEL_IDS = "original", "sentinel_ids"
_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_OWN = Conventions()


def write(
    tokenizer: Tokenizer,
    objective: Objective,
    model: Model,
    directory: Path,
    conventions: Conventions = _OWN,
) -> None:
    """Writes the tokenizer into `directory`, which has the model's config.json and chat template, and checks it. Raises
    ConfigError where it cannot be expressed, or the model lacks ids for it; RunError where transformers makes other ids
    of it."""
    specials = objective.specials(tokenizer)
    if isinstance(tokenizer, CharacterTokenizer):  # of which transformers has a class that needs no file
        described = {"tokenizer_class": "CanineTokenizer", "model_max_length": model.sequence_length}
        (directory / _CONFIG).write_text(json.dumps(described, indent=2) + "\n")
        _write_original(tokenizer, directory)
        check(tokenizer, objective, directory, specials.vocabulary)
        return
    if specials.vocabulary > model.vocab_size and not _no_text_goes_beyond(tokenizer, specials, model):
        raise ConfigError(
            f"not exported: the tokenizer and {objective.name} need {specials.vocabulary} ids, and the model has "
            f"model.vocabulary={model.vocabulary}"
        )
    try:
        hf_tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    except DataError as error:
        raise ConfigError(f"not exported: {error}") from None
    pad = decoder_padding(model, objective, tokenizer)
    padding = {} if pad is None or pad < tokenizer.vocabulary_size else {pad: "<pad>"}
    for index, name in (names(tokenizer, specials) | padding).items():
        hf_tokenizer.add_special_tokens([AddedToken(name, normalized=False)])
        if hf_tokenizer.token_to_id(name) != index:
            raise ConfigError(
                f"not exported: {name} is id {index} of the model, and {hf_tokenizer.token_to_id(name)} in {_FILE}"
            )
    hf_tokenizer = _with_space_before(hf_tokenizer, _taking_space(tokenizer, specials, conventions))
    before, after = conventions.around(tokenizer) or around(objective, specials, tokenizer)
    if (theirs := _as_imported(hf_tokenizer, conventions.post_processor(), before, after)) is not None:
        hf_tokenizer = theirs
    elif before or after:
        marks = [(hf_tokenizer.id_to_token(index), index) for index in (*before, *after)]
        first, last = ([f"{hf_tokenizer.id_to_token(index)}:0" for index in ids] for ids in (before, after))
        between, segment = _pairs(objective)
        answers = []
        if _ends_with_cls(objective):
            answers = [last.pop().replace(":0", f":{LAST_SEGMENT if model.segments else 0}")]
        second = [mark.replace(":0", f":{segment}") for mark in last]
        hf_tokenizer.post_processor = processors.TemplateProcessing(
            single=[*first, "$A:0", *last, *answers],
            pair=[*first, "$A:0", *last * between, f"$B:{segment}", *second, *answers],
            special_tokens=marks,
        )
    hf_tokenizer.save(str(directory / _FILE))
    described = conventions.tokenizer_config(_config(tokenizer, objective, model, hf_tokenizer), tokenizer, model)
    (directory / _CONFIG).write_text(json.dumps(described, indent=2) + "\n")
    conventions.write_more(tokenizer, directory)
    _write_original(tokenizer, directory)
    check(tokenizer, objective, directory, specials.vocabulary + len(padding), conventions)


def _taking_space(tokenizer: Tokenizer, specials: Specials, conventions: Conventions) -> set[int]:
    """Ids of masks and sentinels that white space before them is part of: those that a prompt names, wherever the
    tokenizer has tokens for such space (BERT's has none). An imported folder's tokens stay as the folder has them."""
    ids = set(NamedTokens(tokenizer, specials).names)
    if conventions.is_imported:
        ids = {index for index in ids if index >= tokenizer.vocabulary_size}
    drops_space = all(tokenizer.encode(f"a{space}") == tokenizer.encode("a") for space in hostile.WHITE_SPACE)
    return ids if tokenizer.spaces_begin_words and not drops_space else set()


def _with_space_before(hf_tokenizer: tokenizers.Tokenizer, ids: set[int]) -> tokenizers.Tokenizer:
    tree = json.loads(hf_tokenizer.to_str())
    for token in tree["added_tokens"]:
        token["lstrip"] |= token["id"] in ids
    return tokenizers.Tokenizer.from_str(json.dumps(tree))


def _no_text_goes_beyond(tokenizer: Tokenizer, specials: Specials, model: Model) -> bool:
    """Whether all ids that the model has no row for are special pieces of the tokenizer (Gemma 3's of pictures)."""
    beyond = tokenizer.is_special()[model.vocab_size :]
    return specials.vocabulary == tokenizer.vocabulary_size and bool(beyond.all())


def _as_imported(
    hf_tokenizer: tokenizers.Tokenizer, post_processor: dict[str, Any] | None, before: list[int], after: list[int]
) -> tokenizers.Tokenizer | None:  # fmt: skip
    """The tokenizer with the `post_processor` of an imported folder. None: it has none, or another one than puts
    `before` and `after` around a text."""
    if post_processor is None:
        return None
    tree = json.loads(hf_tokenizer.to_str()) | {"post_processor": post_processor}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tree))
    plain, whole = (theirs.encode(PROBE, add_special_tokens=added).ids for added in (False, True))
    return theirs if whole == [*before, *plain, *after] else None


def _write_original(tokenizer: Tokenizer, directory: Path) -> None:
    (directory / ORIGINAL).mkdir()
    tokenizer.save(directory / ORIGINAL / tokenizer.file_name)


def around(objective: Objective, specials: Specials, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the objective's samples have before a text, and after it."""
    needs = objective.needs
    if needs.end == "end_of_text":  # whose texts have an end where their last token answers for them
        return tokenizer.opened([]), [] if objective.task_head is None else [specials.end]
    if _ends_with_cls(objective):
        return [], [specials.sep, specials.cls]
    before = [specials.cls] if "cls" in needs.roles else []
    return before, [specials.sep if "sep" in needs.roles else specials.end]


def _ends_with_cls(objective: Objective) -> bool:
    """Whether what answers for a text comes after it, of a segment of its own (XLNet)."""
    return isinstance(objective, Permuted) or getattr(objective, "format", None) == "xlnet"


def _pairs(objective: Objective) -> tuple[int, int]:
    """Number of ids that follow the first text of a pair, and the segment of the second."""
    between = 2 if getattr(objective, "format", None) in ("roberta", "bart") else 1
    return between, int(not objective.labelled or "segments" in objective.columns)


def found_in_text(specials: Specials) -> bool:
    """Whether a prompt can name special tokens: of a model that fills in masks, or sentinels, it has to."""
    return specials.mask >= 0 or bool(specials.sentinels)


def _config(
    tokenizer: Tokenizer, objective: Objective, model: Model, hf_tokenizer: tokenizers.Tokenizer
) -> dict[str, Any]:
    specials, pad = objective.specials(tokenizer), decoder_padding(model, objective, tokenizer)
    unknown = next((i for i in map(tokenizer.id_of, ("<unk>", "[UNK]")) if i is not None), -1)
    begin = tokenizer.begin_of_text
    roles = {
        "bos": specials.cls if specials.cls >= 0 else specials.end if begin is None else begin,
        "eos": specials.sep if specials.sep >= 0 else specials.end,
        "unk": unknown,
        "pad": specials.pad if pad is None else pad,
        "cls": specials.cls,
        "sep": specials.sep,
        "mask": specials.mask,
    }
    more = {"token_type_ids"} if model.segments else set()
    is_special = [*tokenizer.is_special(), *[True] * (specials.vocabulary - tokenizer.vocabulary_size)]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": hf_tokenizer.id_to_token(index) for role, index in roles.items() if index >= 0},
        "extra_special_tokens": [hf_tokenizer.id_to_token(index) for index in specials.sentinels if is_special[index]],
        "split_special_tokens": not found_in_text(specials),
        "clean_up_tokenization_spaces": False,
        **({"padding_side": "left"} if _ends_with_cls(objective) else {}),
        "model_max_length": model.sequence_length,
        "model_input_names": sorted({"input_ids", "attention_mask"} | more),
        **({SENTINEL_IDS: "last"} if objective.needs.sentinel_ids == "last" else {}),  # for `pretrain import`
    }


def check(
    tokenizer: Tokenizer, objective: Objective, directory: Path, vocabulary: int, conventions: Conventions = _OWN
) -> None:  # fmt: skip
    """Raises RunError unless transformers' tokenizer of `directory` agrees with `tokenizer`: on the ids of hostile text
    with special tokens around it, on prompts that name masks or sentinels, on pairs of texts for a task head, on
    decoding where ours restores the text, on special ids, and on conversations. `vocabulary`: ids that it may have."""
    specials = objective.specials(tokenizer)
    exported = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    if len(exported) > max(vocabulary, conventions.size()):
        raise RunError(
            f"not exported: transformers makes a tokenizer of {len(exported)} ids of it, and it has {vocabulary}"
        )
    exported.model_max_length = 10**9  # it would warn of long texts
    special = tuple(token.content for token in exported.added_tokens_decoder.values() if token.special)
    finds_special_tokens = found_in_text(specials) or conventions.finds_special_tokens
    texts = hostile.texts(tokenizer, special if finds_special_tokens else ())
    before, after = conventions.around(tokenizer) or around(objective, specials, tokenizer)
    with_marks = exported(texts, add_special_tokens=True)["input_ids"]
    for text, token_ids, hf_ids in zip(texts, tokenizer.encode_batch(texts, threads=1), with_marks, strict=True):
        ids = token_ids.tolist()
        if hf_ids != [*before, *ids, *after]:
            raise RunError(
                f"not exported: transformers' {type(exported).__name__} makes {hf_ids[:20]} of {text[:60]!r}, and ours "
                f"{ids[:20]}"
            )
        if (back := tokenizer.decode(ids)) != text:
            continue
        if exported.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) != back:
            raise RunError(f"not exported: transformers' tokenizer does not give {text[:60]!r} back")
    if found_in_text(specials):
        _check_named(tokenizer, specials, exported, conventions)
    if objective.task_head is not None and not isinstance(objective, Tagging):
        (first, second), (between, _) = tokenizer.encode_batch(["a b", "c"], threads=1), _pairs(objective)
        marks = after[:1] if _ends_with_cls(objective) else after
        expected = [*before, *first.tolist(), *marks * between, *second.tolist(), *after]
        if (found := exported("a b", "c")["input_ids"]) != expected:
            raise RunError(f"not exported: transformers makes {found} of a pair of texts, and ours {expected}")
    for role, index in (("pad", specials.pad), ("cls", specials.cls), ("sep", specials.sep), ("mask", specials.mask)):
        if index >= 0 and getattr(exported, f"{role}_token_id") != index:
            raise RunError(f"not exported: transformers takes another id than {index} for {role}")
    conventions.check_turns(exported)


def _check_named(tokenizer: Tokenizer, specials: Specials, exported: Any, conventions: Conventions) -> None:
    """Raises RunError unless a text that names masks or sentinels gets the ids that such a prompt has here, or, where
    an imported file has all these tokens, the ids that this file alone makes of it."""
    named, file = NamedTokens(tokenizer, specials), None
    if conventions.is_imported and max(named.names) < tokenizer.vocabulary_size:
        file = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    names = [token.content for token in exported.added_tokens_decoder.values() if token.content in named.ids]
    for text in hostile.named(names) if names else ():
        ids = named.encode(text) if file is None else file.encode(text, add_special_tokens=False).ids
        found = exported(text, add_special_tokens=False)["input_ids"]
        if found != ids:
            raise RunError(
                f"not exported: transformers' {type(exported).__name__} makes {found[:20]} of the prompt "
                f"{text!r}, and ours {ids[:20]}"
            )
