"""Tokens that `pretrain import --add-tokens FILE` adds to a tokenizer: read from a file, and added as transformers'
`add_tokens` adds them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer as OwnTokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.errors import ConfigError

_FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")
_MOST_IDS = 2**22  # of any tokenizer here
_BROKEN = "\ufffd"


@dataclass(frozen=True)
class GrownTokenizer:
    """A tokenizer with added tokens, and what the one before makes of their texts."""

    tokenizer: Tokenizer
    tokens: tuple[AddedToken, ...]
    first_id: int
    """id of the first of `tokens`, which the others follow; the former tokenizer has ids below it"""
    pieces: tuple[tuple[int, ...], ...]
    """ids that the former tokenizer has for the text of each token, without unknown ones; () of unknown text"""


def add_tokens(former: Tokenizer, file: Path, say: Callable[[str], None]) -> GrownTokenizer:
    """`former` with the tokens of `file`: a text with one in each line, or a tokenizer whose new pieces are added. Says
    which are left out. Raises ConfigError for a token that no text would give, or that is no new one."""
    former = Tokenizer.from_str(former.to_str())
    former.no_padding()
    former.no_truncation()
    vocabulary = former.get_vocab()
    first_id = max(vocabulary.values()) + 1
    trained = _trained_tokenizer(file)
    tokens = _listed_tokens(file) if trained is None else _split_pieces(trained, former, file, say)
    if first_id + len(tokens) > _MOST_IDS:
        raise ConfigError(
            f"{file} has {len(tokens):,} tokens, and with {first_id:,} before them they are more than the "
            f"{_MOST_IDS:,} ids of any tokenizer: leave some out"
        )
    unknown = _unknown_ids(former)
    kept, known, pieces = list[AddedToken](), list[str](), list[tuple[int, ...]]()
    for token in tokens:
        ids = former.encode(token.content, add_special_tokens=False).ids
        if vocabulary.get(token.content) in ids or (len(ids) == 1 and ids[0] not in unknown and not token.special):
            known.append(token.content)
            continue
        if token.content in vocabulary:  # as a byte-level tokenizer spells other bytes with it
            raise ConfigError(
                f"{file}: {token.content!r} is the name of piece {vocabulary[token.content]} of the tokenizer, which "
                "is another text, so that it cannot be added: leave it out"
            )
        kept.append(token)
        pieces.append(tuple(index for index in ids if index not in unknown))
    if known:
        say(f"{len(known):,} tokens of {file} are in the vocabulary already: {_some(known)}")
    if not kept:
        raise ConfigError(f"{file} has no token that the tokenizer lacks: leave --add-tokens out")
    grown = Tokenizer.from_str(former.to_str())
    grown.add_tokens(kept)
    _check(former, grown, kept, first_id, file)
    return GrownTokenizer(grown, tuple(kept), first_id, tuple(pieces))


def _check(former: Tokenizer, grown: Tokenizer, tokens: Sequence[AddedToken], first_id: int, file: Path) -> None:
    """Raises ConfigError for a token that has another id than the next, that its own text does not give, or that is
    another text when decoded."""
    for index, token in enumerate(tokens, first_id):
        if grown.token_to_id(token.content) != index:
            raise ConfigError(
                f"{file}: {token.content!r} would be id {grown.token_to_id(token.content)}, where {index} is the next "
                "one: the tokenizer's ids have gaps, so that none can be added"
            )
        ids = grown.encode(token.content, add_special_tokens=False).ids
        if index not in ids:
            made = [grown.id_to_token(other) for other in ids]
            raise ConfigError(
                f"{file}: the tokenizer makes {made} of {token.content!r} even when that is a token of its own, since "
                "it changes the text or finds another token in it: leave it out, or write it as the tokenizer reads it"
            )
        before = former.decode(former.encode(token.content, add_special_tokens=False).ids)
        if not token.special and before == token.content != grown.decode(ids):
            raise ConfigError(
                f"{file}: {token.content!r} as a token is decoded as {grown.decode(ids)!r}: leave it out, or begin it "
                "with a space, with which it is not taken for bytes"
            )


def _unknown_ids(tokenizer: Tokenizer) -> set[int]:
    name = json.loads(tokenizer.to_str())["model"].get("unk_token")
    unigram = json.loads(tokenizer.to_str())["model"].get("unk_id")
    return {index for index in (unigram, name and tokenizer.token_to_id(name)) if isinstance(index, int)}


# A text.


def _listed_tokens(file: Path) -> list[AddedToken]:
    """The tokens of a text, in its order. Raises ConfigError for what is no list of tokens."""
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"--add-tokens {file} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--add-tokens {file} is no text in UTF-8: write one token in each line") from None
    line_of, tokens = dict[str, int](), list[AddedToken]()
    for number, line in enumerate(lines, 1):
        if not (line := line.removesuffix("\r")):
            continue
        token = _token(line, f"{file}, line {number}")
        if (other := line_of.setdefault(token.content, number)) != number:
            raise ConfigError(f"{file}, line {number}: {token.content!r} is in line {other} too: leave one of them out")
        tokens.append(token)
    if not tokens:
        raise ConfigError(f"--add-tokens {file} is empty: write one token in each line")
    return tokens


def _token(line: str, where: str) -> AddedToken:
    """The token that a line is, or with further fields of transformers' AddedToken describes in JSON."""
    fields: Any = None
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None  # a token of its own
    if not isinstance(fields, dict) or "content" not in fields:
        fields = {"content": line}
    content, flags = fields["content"], {key: value for key, value in fields.items() if key != "content"}
    if not isinstance(content, str) or not set(flags) <= set(_FLAGS) or not {type(f) for f in flags.values()} <= {bool}:
        raise ConfigError(
            f"{where}: a token in JSON has content, a text, and may have {', '.join(_FLAGS)}, each true or false"
        )
    if any("\ud800" <= letter <= "\udfff" for letter in content):
        raise ConfigError(f"{where}: {content!r} has half of a surrogate pair, which is no character")
    if not content.strip():
        raise ConfigError(f"{where}: {content!r} is white space alone, which is no token: leave it out")
    return AddedToken(content, **{"normalized": not flags.get("special", False), **flags})


# A tokenizer.


def _trained_tokenizer(file: Path) -> OwnTokenizer | None:
    """The tokenizer that a file or folder is; None: it is no tokenizer."""
    if not (file.is_dir() or file.suffix in (".json", ".model") or file.name == "vocab.txt"):
        return None
    try:
        return load_tokenizer(file)
    except DataError as error:
        raise ConfigError(f"--add-tokens {file}: {error}") from None


def _split_pieces(
    trained: OwnTokenizer, former: Tokenizer, file: Path, say: Callable[[str], None]
) -> list[AddedToken]:  # fmt: skip
    """Texts of the pieces of a trained tokenizer that `former` makes several of. A piece that continues a word of an
    alphabet with capital letters is none of them: it would be found inside the words that `former` knows."""
    texts, inside = dict[str, None](), 0
    for text in _texts(trained):
        if not text.strip() or _BROKEN in text or len(former.encode(text, add_special_tokens=False).ids) < 2:
            continue
        if text[0].lower() != text[0].upper():
            inside += 1
        else:
            texts[text] = None
    if inside:
        say(f"{inside:,} new pieces of {file} continue a word, and are not added")
    if not texts:
        raise ConfigError(f"--add-tokens {file} has no new piece that begins a word: it adds nothing")
    finds = Tokenizer.from_str(former.to_str())
    first_id = max(finds.get_vocab().values()) + 1
    finds.add_tokens([AddedToken(text) for text in texts])
    # A normalizer that puts a space before each text puts it before a token as well.
    found = {text for text in texts if max(finds.encode(f"a{text}", add_special_tokens=False).ids) >= first_id}
    return [AddedToken(text) for text in dict.fromkeys(t if t in found else t.lstrip(" ") for t in texts)]


def _texts(tokenizer: OwnTokenizer) -> list[str]:
    """The text of each piece, with the space before a word; "" of special ones."""
    texts = tokenizer.texts()
    described = Tokenizer.from_str(tokenizer.to_json()) if tokenizer.library == "tokenizers" else None
    if described is None or "ByteLevel" not in str(described.decoder):
        return texts
    decoder = decoders.ByteLevel()
    return [text and decoder.decode([described.id_to_token(index) or ""]) for index, text in enumerate(texts)]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown}, ..."
