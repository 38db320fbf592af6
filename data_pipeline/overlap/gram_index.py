"""The n-grams of evaluation examples, to find them in training text (Brown et al. 2020, appendix C).

One index serves two ends. Decontamination removes from training text the grams of `ngram` words that any example holds.
The overlap report says which examples occurred there, and looks for grams of as many words as fit each set: N is the
5th percentile of its examples' lengths, at least 8 (less for synthetic tasks) and at most 13. An example is dirty when
any of its N-grams is found. Texts and examples are compared in one Unicode form (`comparable`), and an example also as
the build reads it: what was repaired in the text would not be found otherwise. In scripts without spaces a gram has as
many letters as so many words have: 13 letters of Thai would be a name. Examples of fewer words than that least
are not looked for, as in the paper; about those between it and N words the paper says nothing: the whole example is
their one gram here.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.overlap.examples import MOST_WORDS, EvaluationSet
from data_pipeline.text.normal_form import comparable
from data_pipeline.text.words import Words
from data_pipeline.writing.words import count_words

Reading = Callable[[str], str]
"""An example as it would be in the text that is searched."""
REPORT = "overlap.json"
"""File of `overlap_report`, in the folder of the step that decontaminates."""
_FORMAT = 3
_ARRAYS = ("hashes", "removable", "firsts", "holders", "examples")
_PERCENTILE = 5
_BATCH = 1024  # examples
_LETTERS_PER_WORD = np.array([1, 1.5, 2, 3, 4])  # few, as each makes lengths to look for
_FILTER_BITS_PER_GRAM = 32  # at least; twice that at most
_MOST_FILTER_BITS = 33  # logarithm: a GiB


@dataclass(frozen=True)
class SetFacts:
    """Facts of the report about an evaluation set that do not depend on any training text."""

    name: str
    ngram: int
    """N, the words of its grams."""
    examples: int
    short: int
    """Examples of fewer words than a gram may have: never dirty."""


@dataclass(frozen=True, kw_only=True)
class GramIndex:
    """The grams of all sets. About 17 bytes of memory for each, 4 for each example that it makes dirty, and 4 to 8
    of a filter."""

    sets: tuple[SetFacts, ...]
    ngram: int
    """Words of the grams to be removed from training text."""
    hashes: NDArray[np.uint64]
    """[grams] of `Words.grams`, sorted; a gram's number is its index here."""
    removable: NDArray[np.bool_]
    """[grams] whether it has `ngram` words, all in one example."""
    firsts: NDArray[np.int64]
    """[grams + 1] where each gram's examples begin in `holders`."""
    holders: NDArray[np.int32]
    """Examples that a gram makes dirty, numbered consecutively over all sets."""
    lengths: tuple[int, ...]
    """Words, or letters of scripts without spaces, that grams have, rising."""
    removable_lengths: tuple[int, ...]
    """Words or letters of the removable grams, rising."""
    examples: NDArray[np.uint64]
    """[examples of all sets] `example_hashes` of each; 0 for the short ones."""

    @classmethod
    def of(cls, against: Sequence[EvaluationSet], ngram: int, readings: Sequence[Reading] = (str,)) -> Self:
        """Reads the examples, and takes each in all of the readings. Raises DataError for what can't be read, or two
        sets of one name."""
        sets = ((name, texts, one.least_words) for one in against for name, texts in one.sets())
        return cls.from_texts(sets, ngram, readings)

    @classmethod
    def from_texts(
        cls, sets: Iterable[tuple[str, Sequence[str], int]], ngram: int, readings: Sequence[Reading] = (str,)
    ) -> Self:
        """Makes the index of sets given as (name, text of each example, least words of a gram). N is that of the first
        reading. Raises DataError for two sets of one name."""
        facts: list[SetFacts] = []
        removable: list[NDArray[np.uint64]] = []
        hashes, holders = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        lengths, removable_lengths = {ngram}, {ngram}
        examples = [np.zeros(0, np.uint64)]
        total = 0
        for name, texts, least in sets:
            if any(name == other.name for other in facts):
                raise DataError(f"Two evaluation sets are called {name}; give each a different name.")
            read = [_batches(texts, reading) for reading in readings]
            counts = [np.concatenate([np.zeros(0, np.int64), *(batch.counts for batch in its)]) for its in read]
            n, short = report_ngram(counts[0], least), np.max(counts, axis=0) < least
            facts.append(SetFacts(name, n, len(texts), int(short.sum())))
            examples.append(np.where(short, np.uint64(0), example_hashes(texts)))
            for batches in read:
                first = total
                for batch in batches:
                    for length, gram, _ in _grams(batch, ngram, ngram):
                        removable_lengths.add(length)
                        removable.append(gram)
                    for length, gram, example in _grams(batch, least, n):
                        lengths.add(length)
                        hashes.append(gram)
                        holders.append(example + first)
                    first += len(batch.counts)
            total += len(texts)
        return cls._sorted(
            tuple(facts),
            ngram,
            removable=removable,
            hashes=np.concatenate(hashes),
            holders=np.concatenate(holders),
            lengths=lengths | removable_lengths,
            removable_lengths=removable_lengths,
            examples=np.concatenate(examples),
        )

    @classmethod
    def _sorted(
        cls,
        sets: tuple[SetFacts, ...],
        ngram: int,
        *,
        removable: list[NDArray[np.uint64]],
        hashes: NDArray[np.uint64],
        holders: NDArray[np.int64],
        lengths: set[int],
        removable_lengths: set[int],
        examples: NDArray[np.uint64],
    ) -> Self:
        grams = np.unique(np.concatenate([hashes, *removable]))
        removed = np.zeros(len(grams), np.bool_)
        removed[np.searchsorted(grams, np.concatenate([hashes[:0], *removable]))] = True
        total = max(1, sum(one.examples for one in sets))
        number, holder = np.divmod(np.unique(np.searchsorted(grams, hashes) * total + holders), total)
        firsts = np.searchsorted(number, np.arange(len(grams) + 1))
        return cls(
            sets=sets,
            ngram=ngram,
            hashes=grams,
            removable=removed,
            firsts=firsts,
            holders=holder.astype(np.int32),
            lengths=tuple(sorted(lengths)),
            removable_lengths=tuple(sorted(removable_lengths)),
            examples=examples,
        )

    def lookup(self, words: Words, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(number of the gram [found], number of its first word [found]) of each of its grams of `length` words that
        is here, in the order of the text.

        Almost all grams of a text are foreign, and a bitmap that the caches hold tells that of all but one in thirty:
        to search for each would take many times as long.
        """
        hashes, first = words.grams(length)
        bitmap, shift = self._filter
        byte, bit = _filter_bit(hashes, shift)
        near = np.flatnonzero(bitmap[byte] & bit)
        number = np.minimum(np.searchsorted(self.hashes, hashes[near]), len(self.hashes) - 1)
        found = np.flatnonzero(self.hashes[number] == hashes[near])
        return number[found], first[near[found]]

    def report(self, found: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """Entry of `overlap_report` for each set when `found` ([grams]) tells which grams the training text holds."""
        dirty = np.unique(self.holders[np.repeat(found, np.diff(self.firsts))])
        report: list[dict[str, Any]] = []
        first = 0
        for one in self.sets:
            its = dirty[(dirty >= first) & (dirty < first + one.examples)] - first
            hashes = self.examples[first : first + one.examples].astype("<u8").tobytes()
            first += one.examples
            values = {"dirty": len(its), "dirty_fraction": len(its) / max(1, one.examples)}
            names = {"dirty_examples": its.tolist(), "hashes": base64.b64encode(hashes).decode()}
            report.append({**asdict(one), **values, **names})
        return report

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the sets' facts and the grams."""
        digest = hashlib.sha256(self._header().tobytes())
        for array in self._arrays().values():
            digest.update(array.tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Writes one .npz; equal indices give equal files."""
        with path.open("wb") as file:
            np.savez(file, header=self._header(), digest=np.array(self.digest), **self._arrays())

    @classmethod
    def load(cls, path: Path) -> Self:
        """The inverse. Raises DataError when `path` is missing, of another format or damaged."""
        try:
            with np.load(path, allow_pickle=False) as file:
                header, digest = json.loads(file["header"].tobytes()), str(file["digest"])
                if header.pop("format") != _FORMAT:
                    raise ValueError("another format")
                arrays = {name: file[name] for name in _ARRAYS}
            sets = tuple(SetFacts(**one) for one in header["sets"])
            kinds: dict[str, Any] = {name: tuple(header[name]) for name in ("lengths", "removable_lengths")}
            index = cls(sets=sets, ngram=header["ngram"], **kinds, **arrays)
        except (OSError, EOFError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is no index of grams of format {_FORMAT} ({error}); make it again.") from error
        if index.digest != digest:
            raise DataError(f"{path} is not what was written; make the index of grams again.")
        return index

    def _arrays(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _ARRAYS}

    def _header(self) -> NDArray[np.uint8]:
        sets = [asdict(one) for one in self.sets]
        lengths = {"lengths": self.lengths, "removable_lengths": self.removable_lengths}
        values = {"format": _FORMAT, "ngram": self.ngram, **lengths, "sets": sets}
        return np.frombuffer(json.dumps(values).encode(), np.uint8)

    @functools.cached_property
    def _filter(self) -> tuple[NDArray[np.uint8], np.uint64]:
        """(a bit for each way in which a hash can begin, set where one here does so; what to shift a hash by)."""
        bits = min(_MOST_FILTER_BITS, max(3, (_FILTER_BITS_PER_GRAM * len(self.hashes)).bit_length()))
        bitmap, shift = np.zeros(2 ** (bits - 3), np.uint8), np.uint64(64 - bits)
        np.bitwise_or.at(bitmap, *_filter_bit(self.hashes, shift))
        return bitmap, shift


def _filter_bit(hashes: NDArray[np.uint64], shift: np.uint64) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(byte, bit in it) that the first bits of each hash name."""
    prefix = hashes >> shift
    return (prefix >> np.uint64(3)).view(np.int64), np.uint8(1) << (prefix & np.uint64(7)).astype(np.uint8)


def gram_words(texts: Sequence[str]) -> Words:
    """The words that grams are made of; their bounds are those in `comparable` of each text."""
    return Words.of([comparable(text) for text in texts])


class _Examples(NamedTuple):
    """Some examples."""

    words: Words
    letters: NDArray[np.float64]
    """[examples] letters that make up a word of each, 1 in scripts with spaces."""
    counts: NDArray[np.int64]
    """[examples] words of each."""


def _batches(texts: Sequence[str], reading: Reading) -> list[_Examples]:
    return [_examples([reading(text) for text in texts[i : i + _BATCH]]) for i in range(0, len(texts), _BATCH)]


def _examples(texts: Sequence[str]) -> _Examples:
    words = gram_words(texts)
    pieces = np.diff(words.firsts)
    each = pieces / np.maximum(1, [count_words(text) for text in texts])
    letters = _LETTERS_PER_WORD[np.abs(each[:, None] - _LETTERS_PER_WORD).argmin(axis=1)]
    return _Examples(words, letters, (pieces / letters).astype(np.int64))


def _grams(examples: _Examples, least: int, n: int) -> Iterator[tuple[int, NDArray[np.uint64], NDArray[np.int64]]]:
    """(words or letters in a gram, hash [grams], example that holds it [grams]): N-grams, and shorter examples of at
    least so many words as a whole."""
    for letters in np.unique(examples.letters).tolist():
        for words in range(least, n + 1):
            length = round(words * letters)
            gram, first = examples.words.grams(length)
            example = np.searchsorted(examples.words.firsts, first, side="right") - 1
            chosen = (examples.counts[example] == words) | (words == n)
            chosen &= examples.letters[example] == letters
            if chosen.any():
                yield length, gram[chosen], example[chosen]


def example_hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    """[texts] 64 bits of each one's words, which are all that overlap goes by: two examples of equal words are both
    dirty or both clean, however their spaces, cases and punctuation differ, and their Unicode forms (NFC or NFD)."""
    forms = [unicodedata.normalize("NFC", text) for text in texts]  # reports of earlier versions: as they were
    batches = (Words.of(forms[first : first + _BATCH], "listed") for first in range(0, len(forms), _BATCH))
    return np.concatenate([np.zeros(0, np.uint64), *(batch.text_hashes() for batch in batches)])


def overlap_report(folder: Path) -> dict[str, Any]:
    """Report on how much of each evaluation set the training text held before decontamination, from the folder of that
    step.

    index: digest of the index of grams. training_documents: how many were searched. removed: what the step then did, as
    its settings, with `grams`, the distinct ones that were removed from training files, and `ignored_grams`, those that
    were not as too many documents hold them. sets: for each, `name`, `ngram` (N), `examples`, `short` (those of too few
    words to be looked for: never dirty), `dirty` and `dirty_fraction` (of all examples), `dirty_examples`:
    their numbers, from 0, in the order of the files and of their lines that are not blank, and `hashes`, by which an
    evaluation finds its examples again (`contamination.py`): `example_hashes` of all of them, in that order, 0 for the
    short ones, of which nothing is known; as 8 bytes each, lowest first, in base64.
    Raises DataError when no such step ended there.
    """
    try:
        report: dict[str, Any] = json.loads((folder / REPORT).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder / REPORT} can't be read ({error}); run the build with decontaminate first."
        ) from error
    return report


def report_ngram(words: NDArray[np.int64], least: int) -> int:
    """N of a set whose examples have so many `words` ([examples])."""
    if not len(words):
        return least
    return int(np.clip(np.percentile(words, _PERCENTILE, method="lower"), least, MOST_WORDS))
