"""The gate of imported tokenizers: a folder's texts get the ids that transformers gives them, or nothing is imported.

Special tokens are never found in a text here: "</s>" in a document is some ordinary pieces. transformers is asked to
read them so too (`split_special_tokens`); where its tokenizer finds one all the same, as models of the kind unigram do,
that text is not compared.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.load import open_tokenizer
from data_pipeline.tokenizers.named_tokens import NamedTokens
from data_pipeline.tokenizers.released import SETTINGS, DocumentBounds
from pretrain.checkpoint.hf import hostile
from pretrain.checkpoint.hf.folder import read_json
from pretrain.checkpoint.hf.hf_tokenizer import load_tokenizer_of
from pretrain.checkpoint.hf.tokenizer import ORIGINAL
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

_JSON = "tokenizer.json"
_SHOWN = 12  # ids of a text in a message


def check(
    directory: Path, content: bytes, config: RunConfig, bounds: DocumentBounds, warn: Callable[[str], None]
) -> None:  # fmt: skip
    """Raises ConfigError unless transformers' tokenizer of `directory` gives the ids of the one in `content`, on texts
    that tell tokenizers apart, and begins a text of a causal model as it does. What a user or `add_bos_token` says of
    the begin goes first, and a difference is warned of, as are a prompt with masks or sentinels that is read otherwise,
    and a folder that transformers has no tokenizer for."""
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
    if config.model.is_causal and not (directory / ORIGINAL).is_dir():
        _check_begin(directory, ours, theirs, bounds, warn)


def _compare_prompts(
    directory: Path, ours: Tokenizer, theirs: Any, config: RunConfig, warn: Callable[[str], None]
) -> None:  # fmt: skip
    specials = config.objective.specials(ours)
    named, spaced = (NamedTokens(ours, specials, keeps_space=keeps) for keeps in (None, True))
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


def _check_begin(
    directory: Path, ours: Tokenizer, theirs: Any, bounds: DocumentBounds, warn: Callable[[str], None]
) -> None:  # fmt: skip
    plain, marked = (theirs("a b", add_special_tokens=marks)["input_ids"] for marks in (False, True))
    first = next((k for k in range(len(marked)) if marked[k : k + len(plain)] == plain), 0)
    begin = marked[0] if first else None
    if begin == ours.begin_of_text or (begin is not None and begin == theirs.cls_token_id):
        return  # a token for classes is no begin
    names: dict[int | None, str] = {index: name for name, index in ours.special_pieces().items()}
    said = (
        f"{directory}: transformers' {type(theirs).__name__} puts {names.get(begin, begin) or 'nothing'} before a "
        f"text, and {names.get(ours.begin_of_text, 'nothing')} begins one here"
    )
    settings = read_json(directory / SETTINGS) if (directory / SETTINGS).is_file() else {}
    if bounds.begin is None and not isinstance(settings.get("add_bos_token"), bool):
        raise ConfigError(f"{said}: say with --begin-of-text which is right")
    warn(said)
