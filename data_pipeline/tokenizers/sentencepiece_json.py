"""A sentencepiece model as a tokenizer.json, with the same ids for any text, for libraries that read no other kind.

The `tokenizers` library joins pieces as sentencepiece does, by rank or by probability. What differs is what text is
taken for. A space is a space in the pieces here, not U+2581, so that U+2581 in a text is itself. Pieces that
sentencepiece finds in no text (controls, bytes, the unknown one) lie in the library's list of all pieces: unigram would
find "<0x0A>" in a text that spells it. There the text is cut inside such a name, where no other piece reaches over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from data_pipeline.errors import DataError

_SPACE = "\u2581"
_UNIGRAM, _BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
"""Numbers of ModelProto.SentencePiece.Type."""


def parse(model: bytes) -> Any:
    """The ModelProto of a model file's bytes: pieces, and how they were trained and text is normalized."""
    return sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]  # made when imported


@dataclass(frozen=True)
class BpePieces:
    """Pieces of a sentencepiece model of the kind bpe, by id, with U+2581 for spaces."""

    names: list[str]
    scores: list[float]
    types: list[int]
    """Numbers of ModelProto.SentencePiece.Type: 1 normal, 2 unknown, 3 control, 6 byte."""
    unknown: int
    """Id of the unknown piece."""
    begins_with_space: bool
    """Whether a space is put before each text."""


def bpe_pieces(model: bytes) -> BpePieces | None:
    """Pieces of a model file's bytes; None: it is not of the kind bpe, or changes characters of the text."""
    proto = parse(model)
    if proto.trainer_spec.model_type != _BPE or proto.normalizer_spec.precompiled_charsmap:
        return None
    return BpePieces(
        [piece.piece for piece in proto.pieces],
        [float(piece.score) for piece in proto.pieces],
        [int(piece.type) for piece in proto.pieces],
        int(proto.trainer_spec.unk_id),
        bool(proto.normalizer_spec.add_dummy_prefix),
    )


def convert(model: bytes, origin: str) -> tokenizers.Tokenizer:
    """The tokenizer of a model file's bytes, `origin` in errors. Control symbols are special tokens there, and found in
    no text while `encode_special_tokens` is set.

    Raises DataError for what the format has no word for: other kinds of models, and pieces that a user defined.
    """
    proto = parse(model)
    trained, normal = proto.trainer_spec, proto.normalizer_spec
    if trained.model_type not in (_UNIGRAM, _BPE) or trained.treat_whitespace_as_suffix:
        raise DataError(
            f"{origin} can't be written as a tokenizer.json: it is neither bpe nor unigram with spaces first."
        )
    if other := [p.piece for p in proto.pieces if p.type not in (NORMAL, UNKNOWN, CONTROL, _BYTE)]:
        raise DataError(f"{origin} can't be written as a tokenizer.json: {other[0]!r} is neither learnt nor a control.")
    ordinary = {p.piece.replace(_SPACE, " "): p.score for p in proto.pieces if p.type == NORMAL}
    names = [p.piece.replace(_SPACE, " ") if p.type == NORMAL else p.piece for p in proto.pieces]
    if len(set(names)) < len(names):
        raise DataError(f"{origin} can't be written as a tokenizer.json: two of its pieces differ in U+2581 only.")
    if trained.model_type == _BPE:
        built = tokenizers.Tokenizer(_bpe(names, ordinary, trained))
    else:
        scores = [p.score if p.type == NORMAL else 0.0 for p in proto.pieces]
        unknown = next(i for i, p in enumerate(proto.pieces) if p.type == UNKNOWN)
        built = tokenizers.Tokenizer(
            models.Unigram(list(zip(names, scores, strict=True)), unknown, trained.byte_fallback)
        )
        hidden = [[p.piece] for p in proto.pieces if p.type in (CONTROL, UNKNOWN)]
        spelled = [p.piece for p in proto.pieces if p.type == _BYTE]
        rows = [*hidden, spelled] if spelled else hidden
        built.pre_tokenizer = pre_tokenizers.Sequence(list(hiding_cuts(rows, ordinary, trained.byte_fallback, origin)))
    if steps := list(_normalizers(normal, trained.byte_fallback)):
        built.normalizer = normalizers.Sequence(steps)
    built.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), *([decoders.Strip(" ", 1, 0)] if normal.add_dummy_prefix else [])]
    )
    built.add_special_tokens([AddedToken(p.piece, normalized=False) for p in proto.pieces if p.type == CONTROL])
    return built


def _bpe(names: list[str], ordinary: dict[str, float], trained: Any) -> models.BPE:
    """sentencepiece joins the two neighbours that make the piece of the best score; here each way to make a piece is a
    merge, the piece of the best score first."""
    ways = sorted(
        (-score, cut, piece[:cut], piece[cut:])
        for piece, score in ordinary.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ordinary and piece[cut:] in ordinary
    )
    return models.BPE(
        {name: index for index, name in enumerate(names)},
        [(left, right) for *_, left, right in ways],
        unk_token=trained.unk_piece,
        fuse_unk=True,
        byte_fallback=trained.byte_fallback,
    )


def _normalizers(spec: Any, spells: bool) -> Iterable[normalizers.Normalizer]:
    """Normalizers that a text passes first, in order. Where a model `spells` in bytes, U+2581 is spelled, and the texts
    on both sides of it are texts of their own; else it is a space."""
    if spec.precompiled_charsmap:
        yield normalizers.Precompiled(spec.precompiled_charsmap)
    if spec.remove_extra_whitespaces:
        sides = f"(?<=\\A|{_SPACE}) +| +(?=\\z|{_SPACE})" if spells else f"\\A +|[ {_SPACE}]+\\z"
        yield normalizers.Replace(Regex(sides), "")
        yield normalizers.Replace(Regex(" {2,}"), " ")
    if spec.add_dummy_prefix:
        yield normalizers.Prepend(" ")
        if spells:
            yield normalizers.Replace(Regex(f"\\A (?={_SPACE})"), "")
            yield normalizers.Replace(Regex(f"(?<={_SPACE})(?=[^{_SPACE}])"), " ")
    if not spells:
        yield normalizers.Replace(_SPACE, " ")


def hiding_cuts(
    hidden: list[list[str]], ordinary: dict[str, float], spells: bool, origin: str
) -> Iterable[pre_tokenizers.PreTokenizer]:
    """Cuts of the text inside names that no text may be taken for; those of a row are cut at one place. Raises
    DataError where a piece reaches over every place."""
    for names in hidden:
        for cut in range(1, len(names[0])):
            around = {name[cut - 1 : cut + 1] for name in names}
            near = [piece for piece in ordinary if any(both in piece for both in around)]
            known = spells or all(
                {name[cut - 1], name[cut]} & ordinary.keys() for name in names
            )  # else two unknown are one
            if known and not any(_reaches_over(piece, name, cut) for piece in near for name in names):
                ends = "|".join(re.escape(name[cut:]) for name in names)
                pattern = f"{re.escape(names[0][:cut])}(?={ends})"
                yield pre_tokenizers.Split(Regex(pattern), "merged_with_previous")
                break
        else:
            raise DataError(f"{origin} can't be written as a tokenizer.json: its pieces spell {names[0]!r}.")


def _reaches_over(piece: str, name: str, cut: int) -> bool:
    """Whether `piece` can match text across `cut` where a text contains `name`."""
    before, after = name[:cut], name[cut:]
    return any(
        (piece[:i].endswith(before) or before.endswith(piece[:i]))
        and (piece[i:].startswith(after) or after.startswith(piece[i:]))
        for i in range(1, len(piece))
    )
