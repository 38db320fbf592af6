"""Tokenizers of the `tokenizers` library, in Hugging Face's tokenizer.json: BERT's wordpiece, GPT-2's byte-level BPE.

wordpiece loses white space and, by default, case and accents, as BERT's does; byte_bpe gives every
text back. Special pieces are never found in text: "[SEP]" in a document is three or more ordinary pieces.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import END_OF_TEXT, NO_END, Tokenizer
from data_pipeline.tokenizers.byte import byte_characters

BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
DOCUMENT_ENDS = (
    END_OF_TEXT,
    "</s>",
    "<eos>",
    "[SEP]",
    "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Pieces to end a document with, by priority: the first that a tokenizer.json has."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_PROBE = "Do you know\tthe Würzburg \u4e2d? \U0001f600\n"
_MAX_IDS = 2**22  # four times the largest vocabulary in use
_INSIDE = "##"  # prefix of a wordpiece that continues a word
_ALPHABET = 1000  # most frequent characters that a trained wordpiece vocabulary has, where it has room for them
_COVERAGE = 0.9995  # of a text that its characters make up, even where these are more; rarer ones make a word unknown
_LEAST_COVERAGE = 0.99  # where the vocabulary is too small for that
_WORD_STARTS = str.maketrans({"Ġ": " ", "Ċ": "\n", "\u2581": " "})  # in byte-level BPE, and in sentencepiece's ways


class JsonTokenizer(Tokenizer):
    """Whatever a tokenizer.json describes."""

    file_name, library = "tokenizer.json", "tokenizers"

    def __init__(self, content: bytes, origin: str, needs_end: bool = True) -> None:
        """`content` is a file's bytes, `origin` what errors call it. Raises DataError when it can't be used, and, where
        it `needs_end`, when it has no known name of an end of text."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
            self._tokenizer.encode(_PROBE)  # some of what a file lacks shows only then
        except Exception as error:  # the library raises nothing narrower
            raise DataError(
                f"{origin} is not a tokenizer.json ({error}); give one of Hugging Face's format."
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # as text, that is
        self.content = content
        self.library_version = tokenizers.__version__
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token.content: index for index, token in added.items() if token.special}
        self._pieces = {index: piece for piece, index in self._tokenizer.get_vocab().items()}
        self.vocabulary_size: int = max(self._pieces) + 1
        if self.vocabulary_size > _MAX_IDS:
            raise DataError(f"{origin} has a token of id {self.vocabulary_size - 1}, above {_MAX_IDS - 1}; repair it.")
        ends = [self._special[name] for name in DOCUMENT_ENDS if name in self._special]
        if not ends and needs_end:
            raise DataError(
                f"{origin} has none of the special tokens {', '.join(DOCUMENT_ENDS)} to end documents with; "
                "name its own with tokenizer.end_of_text, or --end-of-text of an import."
            )
        self.end_of_text: int = ends[0] if ends else NO_END
        self.before, self.after = self._marks()
        if len(self.before) == 1 and not self.after:  # not of [CLS], which goes with a [SEP] behind
            self.begin_of_text = self.before[0]
        self.identity: str = hashlib.sha256(content + tokenizers.__version__.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the tokenizer.json."""
        path.write_bytes(self.content)

    def encode_batch(self, texts: list[str], threads: int | None = None) -> list[NDArray[np.int32]]:
        """Token ids of each text, without an end of text; the library's own threads do it, unless `threads` is 1."""
        encode = self._tokenizer.encode
        if threads == 1:
            encodings = [encode(text, add_special_tokens=False) for text in texts]
        else:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `Tokenizer`."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def encode_marked_batch(
        self, texts: list[str], threads: int | None = None
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """See `Tokenizer`."""
        if threads == 1:
            found = [self._marking.encode(text, add_special_tokens=False) for text in texts]
        else:
            found = self._marking.encode_batch(texts, add_special_tokens=False)
        return [(np.array(one.ids, np.int32), np.array(one.offsets, np.int64).reshape(-1, 2)) for one in found]

    @cached_property
    def _marking(self) -> tokenizers.Tokenizer:
        """One of its own, so that no thread meets a setting of another, and whose offsets nothing trims."""
        found = tokenizers.Tokenizer.from_str(self.to_json())
        found.no_padding()
        found.no_truncation()
        found.encode_special_tokens = False
        return found

    def special_pieces(self) -> dict[str, int]:
        """See `Tokenizer`."""
        return dict(self._special)

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer`."""
        model = self._tokenizer.model
        if isinstance(model, models.Unigram):
            index = json.loads(self.content)["model"].get("unk_id")  # the library's object does not say
        else:
            index = self._tokenizer.token_to_id(model.unk_token or "")
        return None if index is None else int(index)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; bytes that make no character (a window may cut one in two) show as U+FFFD."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))

    def id_of(self, piece: str) -> int | None:
        """The id of a special token; None when the tokenizer has none of this name."""
        return self._special.get(piece)

    def texts(self) -> list[str]:
        """[vocabulary] the text of each piece, with a space before what begins a word; "" of special ones."""
        return [self._text(self._pieces.get(index, "")) for index in range(self.vocabulary_size)]

    def piece_bytes(self) -> list[bytes]:
        """See `Tokenizer`."""
        decoder = json.dumps(json.loads(self._tokenizer.to_str())["decoder"])
        of_bytes = {character: byte for byte, character in enumerate(byte_characters())}
        found = [text.encode() for text in self.texts()]
        for index, piece in self._pieces.items():
            if piece in self._special:
                continue
            if '"ByteLevel"' in decoder and all(character in of_bytes for character in piece):
                found[index] = bytes(of_bytes[character] for character in piece)
            elif '"ByteFallback"' in decoder and (byte := _BYTE.fullmatch(piece)):
                found[index] = bytes([int(byte[1], 16)])
        return found

    def to_json(self) -> str:
        """The tokenizer.json, without what it would add to a text's ids."""
        plain = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        plain.post_processor = None
        return str(plain.to_str())

    def _marks(self) -> tuple[list[int], list[int]]:
        """Ids that the file puts before a text, and after it."""
        plain = self._tokenizer.encode(_PROBE, add_special_tokens=False).ids
        marked = self._tokenizer.encode(_PROBE).ids
        first = next((k for k in range(len(marked)) if marked[k : k + len(plain)] == plain), 0)
        return marked[:first], marked[first + len(plain) :]

    def _text(self, piece: str) -> str:
        if not piece or piece in self._special:
            return ""
        if isinstance(self._tokenizer.model, models.WordPiece):
            inside: str = self._tokenizer.model.continuing_subword_prefix
            return piece.removeprefix(inside) if piece.startswith(inside) else f" {piece}"
        return piece.translate(_WORD_STARTS)


def bert_normalizer(lowercase: bool = True, strip_accents: bool | None = None) -> normalizers.BertNormalizer:
    """Normalizer that BERT's tokenizers apply to a text before they cut it. `strip_accents` takes marks off their
    letters; None: as `lowercase`, which is how BERT was released."""
    return normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)


def train_wordpiece(
    texts: Iterable[str], vocabulary: int, normalizer: normalizers.BertNormalizer | None = None
) -> JsonTokenizer:
    """BERT's kind (Devlin et al. 2019), with its specials first; without a `normalizer`, uncased as it was released.
    Raises DataError as train_tokenizer says.

    The library numbers the pieces that continue a word in the order of its hash table, and breaks ties by number.
    Passed as special tokens, in a fixed order, they get the same numbers in every run.
    """
    tokenizer = _wordpiece({"[UNK]": 0}, normalizer or bert_normalizer())
    kept = list(texts)
    alphabet, inside = _alphabet(tokenizer, kept, room=vocabulary - len(BERT_SPECIALS))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=[*BERT_SPECIALS, *inside],
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        continuing_subword_prefix=_INSIDE,
        show_progress=False,
    )
    known = _known(tokenizer, kept, set(alphabet))  # a list: the trainer would wait for a tokenizer that is in use
    tokenizer.train_from_iterator(known, trainer)
    _check_size(tokenizer, vocabulary, least=len(BERT_SPECIALS) + len(inside) + len(alphabet))
    return _with_specials(_wordpiece(tokenizer.get_vocab(), tokenizer.normalizer), BERT_SPECIALS)


def train_byte_bpe(texts: Iterable[str], vocabulary: int) -> JsonTokenizer:
    """GPT-2's byte-level BPE with RoBERTa's specials first. Raises DataError as train_tokenizer says."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=ROBERTA_SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    _check_size(tokenizer, vocabulary, least=len(ROBERTA_SPECIALS) + len(alphabet))
    return _with_specials(tokenizer, ROBERTA_SPECIALS)


def is_bert_vocabulary(content: bytes) -> bool:
    """Whether a file's bytes are a BERT vocab.txt: a piece in each line, its specials among them."""
    try:
        lines = set(content.decode("utf-8").splitlines())
    except UnicodeDecodeError:
        return False
    return {"[UNK]", "[CLS]", "[SEP]"} <= lines


def from_bert_vocabulary(
    content: bytes, origin: str, normalizer: normalizers.BertNormalizer | None = None
) -> JsonTokenizer:
    """A BERT vocab.txt, with a `normalizer` or else cased when any of its pieces has a capital letter. Raises DataError
    on a repeated piece."""
    pieces = content.decode("utf-8").removesuffix("\n").split("\n")
    vocabulary = {piece.rstrip("\r"): index for index, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        raise DataError(f"{origin} holds a piece twice; give the vocab.txt as it was published.")
    specials = [piece for piece in BERT_SPECIALS if piece in vocabulary]
    # What lower() would change no lower-casing tokenizer has, in any script.
    cased = any(piece != piece.lower() for piece in vocabulary if not (piece[:1] == "[" and piece[-1:] == "]"))
    tokenizer = _wordpiece(vocabulary, normalizer or bert_normalizer(lowercase=not cased))
    return _with_specials(tokenizer, specials)


def _wordpiece(vocabulary: dict[str, int], normalizer: normalizers.BertNormalizer) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=_INSIDE))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=_INSIDE)
    return tokenizer


def _with_specials(tokenizer: tokenizers.Tokenizer, specials: list[str]) -> JsonTokenizer:
    tokenizer.add_special_tokens([tokenizers.AddedToken(piece, special=True, normalized=False) for piece in specials])
    return JsonTokenizer(tokenizer.to_str().encode(), "the trained tokenizer")


def _words(tokenizer: tokenizers.Tokenizer, text: str) -> list[str]:
    """The words that BERT's tokenizer cuts into pieces, which are those of no language: it decides what they are."""
    normal = tokenizer.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]


def _alphabet(tokenizer: tokenizers.Tokenizer, texts: list[str], room: int) -> tuple[list[str], list[str]]:
    """The most frequent characters of the texts as the tokenizer sees them, in the order of their code points, and the
    pieces for those of them that may continue a word: _ALPHABET, or more for _COVERAGE of the texts. Fewer if there is
    no `room` for these pieces, but enough for _LEAST_COVERAGE."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    seen = sorted((character for character in counts if not character.isspace()), key=lambda c: (-counts[c], c))
    inside = {c: f"{_INSIDE}{c}" for c in seen if len(_words(tokenizer, f"a{c}")) == 1}
    covered = np.cumsum([counts[c] for c in seen]) / max(sum(counts[c] for c in seen), 1)
    least, wanted = (int((covered < share).sum()) + 1 for share in (_LEAST_COVERAGE, _COVERAGE))
    fits = int((np.cumsum([1 + (c in inside) for c in seen]) <= room).sum())
    size = max(wanted, min(_ALPHABET, len(seen)))
    if size > fits:
        size = max(min(wanted, fits), least)
    kept = sorted(seen[:size])
    return kept, [inside[c] for c in kept if c in inside]


def _known(tokenizer: tokenizers.Tokenizer, texts: list[str], alphabet: set[str]) -> list[str]:
    """The texts without words that hold a rarer character: no piece can spell those."""
    rare = {c for text in texts for c in set(tokenizer.normalizer.normalize_str(text)) - alphabet if not c.isspace()}
    if not rare:
        return texts
    return [" ".join(word for word in _words(tokenizer, text) if rare.isdisjoint(word)) for text in texts]


def _check_size(tokenizer: tokenizers.Tokenizer, vocabulary: int, least: int) -> None:
    if vocabulary < least:
        raise DataError(
            f"tokenizer.vocabulary={vocabulary} can't hold the text's characters; the smallest possible is {least}."
        )
    if tokenizer.get_vocab_size() < vocabulary:
        raise DataError(
            f"The text is too small for tokenizer.vocabulary={vocabulary}; the largest possible is "
            f"{tokenizer.get_vocab_size()}."
        )
