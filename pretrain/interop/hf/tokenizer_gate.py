"""The gate of imported tokenizers: a folder's texts get the ids that transformers gives them, or nothing is imported.

Special tokens are never found in a text here: "</s>" in a document is some ordinary pieces. transformers is asked to
read them so too (`split_special_tokens`); where its tokenizer finds one all the same, as models of the kind unigram do,
that text is not compared.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.tokenizers import specials
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.load import open_tokenizer
from data_pipeline.tokenizers.named_tokens import NamedTokens
from data_pipeline.tokenizers.released import SETTINGS, DocumentBounds
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.interop.hf import hostile
from pretrain.interop.hf.folder import read_json
from pretrain.interop.hf.hf_tokenizer import load_tokenizer_of
from pretrain.interop.hf.vocabulary import exported

_JSON = "tokenizer.json"
_NAMING = (SETTINGS, "added_tokens.json", "special_tokens_map.json")
"""files that name special tokens beside a tokenizer's own"""
_SHOWN = 12  # ids of a text in a message


def check(
    directory: Path, content: bytes, config: RunConfig, bounds: DocumentBounds, warn: Callable[[str], None]
) -> None:  # fmt: skip
    """Raises ConfigError unless transformers' tokenizer of `directory` gives the ids of the one in `content`, on texts
    that tell tokenizers apart, has no special tokens besides, and begins a text of a causal model as it does. What a
    user or `add_bos_token` says of the begin goes first, and a difference is warned of, as are a prompt with masks or
    sentinels that is read otherwise, and a folder that transformers has no tokenizer for."""
    ours = open_tokenizer(content, directory)
    if isinstance(ours, CharacterTokenizer) or ours.library == "bytes":  # they have no file, and no two ways
        return
    try:
        theirs = load_tokenizer_of(directory, split_special_tokens=True)
    except Exception as error:  # the library raises whatever a folder leads to
        line = " ".join(str(error).split())[:120]
        warn(f"transformers makes no tokenizer of {directory} ({line}): ids of texts were not compared with it")
        return
    theirs.model_max_length = 10**9  # it would warn of long texts
    texts = hostile.few_texts(ours)
    texts += [f"a {token.content}b" for token in theirs.added_tokens_decoder.values() if not token.special]
    found = theirs(texts, add_special_tokens=False)["input_ids"]
    names, special = {*theirs.all_special_tokens, *ours.special_pieces()}, set(theirs.all_special_ids)
    led = 0
    for text, mine, other in zip(texts, (ids.tolist() for ids in ours.encode_batch(texts, 1)), found, strict=True):
        if mine == other or (any(name in text for name in names) and not special.isdisjoint(other)):
            continue
        if text.startswith(" ") and other == (ours.encode(text[1:]) or mine[1:]):
            led += 1  # LlamaTokenizer's way, which neither sentencepiece nor a tokenizer.json of Llama 2 has
            continue
        raise ConfigError(
            f"{directory}: transformers' {type(theirs).__name__} makes ids {other[:_SHOWN]} of the text {text[:60]!r}, "
            f"and its tokenizer is read here as {mine[:_SHOWN]}: put the tokenizer.json there that "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes, and settings that agree with it"
        )
    if led:
        warn(
            f"transformers' {type(theirs).__name__} drops a space where a text begins with one; here it is kept, as "
            f"the {_JSON if (directory / _JSON).is_file() else 'sentencepiece model'} has it"
        )
    _compare_prompts(directory, ours, theirs, config, warn)
    if exported(directory):  # whose tokenizer.json has what the objective adds, and its own file has not
        return
    _check_special_tokens(directory, ours, theirs, config)
    if config.model.is_causal:
        _check_begin(directory, ours, theirs, bounds, warn)


def _compare_prompts(
    directory: Path, ours: Tokenizer, theirs: Any, config: RunConfig, warn: Callable[[str], None]
) -> None:  # fmt: skip
    of_objective = config.objective.specials(ours)
    named, spaced = (NamedTokens(ours, of_objective, keeps_space=keeps) for keeps in (None, True))
    added = [token.content for token in theirs.added_tokens_decoder.values() if token.content in named.ids]
    for text in hostile.named(added) if added else ():
        mine = named.encode(text)
        other = theirs(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        if mine == other:
            continue
        cure = f": set lstrip of {added[0]} to true in its {_JSON} for the same" if spaced.encode(text) == other else ""
        warn(
            f"{directory}: transformers' {type(theirs).__name__} reads the prompt {text!r} as {other[:_SHOWN]}, and "
            f"`generate` as {mine[:_SHOWN]}, without white space before {added[0]}{cure}"
        )
        return


def _check_special_tokens(
    directory: Path, ours: Tokenizer, theirs: Any, config: RunConfig
) -> None:  # fmt: skip
    """Raises ConfigError where transformers has a special token under an id of the model that is not that token here:
    the folder's settings or its added_tokens.json may add some that a .model or a tokenizer.json lacks."""
    model, appended = config.model, specials.names(ours, config.objective.specials(ours))
    names, texts = {index: name for name, index in ours.special_pieces().items()}, ours.texts()

    def lacks(index: int, name: str) -> bool:
        if index >= len(texts):
            return True
        if name == theirs.unk_token:  # which is no special piece of every kind of file
            return False
        if index in names or not texts[index]:
            return names.get(index) != name
        return model.is_causal and index not in ours.encode(name)  # a piece that no text of its name leads to

    named = json.dumps([read_json(path) for name in _NAMING if (path := directory / name).is_file()])
    lacked = [
        f"{token.content} (id {index})"
        for index, token in sorted(theirs.added_tokens_decoder.items())
        if token.special and index < model.vocab_size and index not in appended and lacks(index, token.content)
        if json.dumps(token.content)[1:-1] in named  # and not one that a class adds to any folder, as GPT-2's does
    ]
    if lacked:
        raise ConfigError(
            f"{directory}: transformers' {type(theirs).__name__} has the special tokens "
            f"{', '.join(lacked[:_SHOWN])}{', ...' if len(lacked) > _SHOWN else ''}, which the tokenizer's file lacks: "
            "put the tokenizer.json there that AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes"
        )


def _check_begin(
    directory: Path, ours: Tokenizer, theirs: Any, bounds: DocumentBounds, warn: Callable[[str], None]
) -> None:  # fmt: skip
    plain, marked = (theirs("a b", add_special_tokens=marks)["input_ids"] for marks in (False, True))
    first = next((k for k in range(len(marked)) if marked[k : k + len(plain)] == plain), 0)
    before = marked[:first]
    if set(before) == {ours.begin_of_text} - {None} or set(before) == {theirs.cls_token_id}:
        return  # a token for classes is no begin, and one that stands twice is the same
    names: dict[int | None, str] = {index: name for name, index in ours.special_pieces().items()}
    said = (
        f"{directory}: transformers' {type(theirs).__name__} puts "
        f"{', '.join(names.get(index, str(index)) for index in before) or 'nothing'} before a text, and "
        f"{names.get(ours.begin_of_text, 'nothing')} begins one here"
    )
    settings = read_json(directory / SETTINGS) if (directory / SETTINGS).is_file() else {}
    if bounds.begin is None and not isinstance(settings.get("add_bos_token"), bool):
        raise ConfigError(f"{said}: say with --begin-of-text which is right")
    warn(said)
