"""Min-wise hashes estimate Jaccard similarity, and keys are shared by exactly those who should."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from data_pipeline.common.hashing import mix64
from data_pipeline.dedup.minhash import SKETCH_HASHES, MinHash, _functions, min_hashes, similarity
from data_pipeline.text.words import Words

HASHES = 112


def _pairs(shared: int, apart: int, count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """[HASHES, count] of pairs of sets with `shared` features and `apart` of its own each."""
    union = shared + 2 * apart
    features = mix64(np.arange(1, count * union + 1, dtype=np.uint64)).reshape(count, union)
    starts = np.arange(0, count * (shared + apart), shared + apart)
    one = min_hashes(features[:, : shared + apart].ravel(), starts, HASHES)
    return one, min_hashes(features[:, apart:].ravel() if apart else features.ravel(), starts, HASHES)


def test_equal_to_plain_arithmetic() -> None:
    features = mix64(np.arange(50, dtype=np.uint64))
    sets = [features[:7], features[7:8], features[8:]]
    found = min_hashes(features, np.array([0, 7, 8]), 30)
    functions = _functions(30).tolist()
    assert found.T.tolist() == [
        [min((int(f >> np.uint64(32)) * a + b) % 2**32 for f in one) for a, b in functions] for one in sets
    ]


@pytest.mark.parametrize(("shared", "apart"), [(100, 400), (300, 150), (400, 50), (640, 8)])
def test_estimate_is_unbiased_and_hashes_are_independent(shared: int, apart: int) -> None:
    count = 600
    one, other = _pairs(shared, apart, count)
    estimates = (one == other).mean(axis=0)
    jaccard = shared / (shared + 2 * apart)
    variance = jaccard * (1 - jaccard) / HASHES
    assert abs(estimates.mean() - jaccard) < 3 * np.sqrt(variance / count)
    assert estimates.var() == pytest.approx(variance, rel=3 * np.sqrt(2 / count))  # larger if hashes went together


def _texts(words_apart: int, count: int) -> list[str]:
    """Pairs of texts of 200 words, one after the other, that differ in so many."""
    texts = []
    for number in range(count):
        words = [f"w{number}x{place}" for place in range(200)]
        texts += [" ".join(words), " ".join([*words[words_apart:], *(f"v{number}x{n}" for n in range(words_apart))])]
    return texts


def test_sketches_are_unbiased() -> None:
    count, apart = 400, 20
    _, _, sketches = MinHash(1, 10, 1, sketches=True).of(_texts(apart, count))
    assert sketches.shape == (2 * count, SKETCH_HASHES)
    jaccard = (200 - apart) / (200 + apart)
    error = np.sqrt(jaccard * (1 - jaccard) / SKETCH_HASHES / count)
    assert abs(similarity(sketches[::2], sketches[1::2]).mean() - jaccard) < 3 * error


@pytest.mark.parametrize("method", [MinHash(5, 14, 8), MinHash(1, 10, 1, 8), MinHash(2, 6, 3, 2)])
def test_a_key_is_shared_if_enough_bands_are_equal(method: MinHash) -> None:
    texts = _texts(8, 100) + _texts(60, 100)
    which, keys, _ = method.of(texts)
    assert which.tolist() == list(range(len(texts)))
    # The signatures, the plain way: by the set of runs of words of each text.
    every = [_signature(text, method) for text in texts]
    shared = equal = 0
    for a, b in [(n, n + 1) for n in range(0, len(texts), 2)] + list(itertools.combinations(range(40), 2)):
        bands = sum(x == y for x, y in zip(every[a], every[b], strict=True))
        assert bool(set(keys[a].tolist()) & set(keys[b].tolist())) == (bands >= method.least)
        shared, equal = shared + (bands >= method.least), equal + 1
    assert 0 < shared < equal


def _signature(text: str, method: MinHash) -> list[tuple[int, ...]]:
    hashes, _ = Words.of([text]).grams(method.ngram)
    values = min_hashes(hashes[::-1].copy(), np.array([0]), method.bands * method.rows)[:, 0].tolist()
    return [tuple(values[band * method.rows : (band + 1) * method.rows]) for band in range(method.bands)]


def test_chance_is_what_is_seen() -> None:
    method, count = MinHash(1, 10, 1, 8), 600
    _, keys, _ = method.of(_texts(20, count))
    seen = np.mean([bool(set(a) & set(b)) for a, b in zip(keys[::2].tolist(), keys[1::2].tolist(), strict=True)])
    expected = method.chance((200 - 20) / (200 + 20))
    assert abs(seen - expected) < 3 * np.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize(("shared", "apart"), [(40, 30), (60, 20), (80, 10)])
def test_bands_are_equal_as_often_as_the_curve_says(shared: int, apart: int) -> None:
    method, count = MinHash(5, 14, 8), 4000
    one, other = (method._keys(values) for values in _pairs(shared, apart, count))
    seen = (one == other).any(axis=1).mean()
    expected = method.chance(shared / (shared + 2 * apart))
    assert abs(seen - expected) < 3 * np.sqrt(expected * (1 - expected) / count)


def test_chance_of_fineweb_s_setting_is_the_published_one() -> None:
    # Penedo et al. 2024: documents of similarity 0.7, 0.75, 0.8 and 0.85 are found with probability 56%,
    # 77%, 92% and 98.8%.
    found = [MinHash(5, 14, 8).chance(similarity) for similarity in (0.7, 0.75, 0.8, 0.85)]
    assert [round(chance, 3) for chance in found] == pytest.approx([0.56, 0.77, 0.92, 0.988], abs=0.006)


def test_short_texts_have_no_keys() -> None:
    which, keys, sketches = MinHash(5, 14, 8).of(["", "four words are few", "but five are enough indeed", "!"])
    assert which.tolist() == [2]
    assert keys.shape == (1, 14)
    assert sketches.shape == (1, 0)


def test_keys_are_the_same_in_every_version() -> None:
    _, keys, sketches = MinHash(2, 3, 2, 2, sketches=True).of(["The quick brown fox, and so on."])
    assert keys.tolist() == [[9686071248542137892, 15830850079944865691, 1650131630287652858]]
    assert sketches[0, :4].tolist() == [23, 141, 35, 8]


def test_an_estimate_leaves_out_bytes_that_are_equal_by_chance() -> None:
    one, byte = np.zeros((1, 256), np.uint8), np.arange(256, dtype=np.uint8)[None]
    assert similarity(one, one) == 1
    assert similarity(one, byte) == 0, "as many as unrelated documents have"
    assert similarity(one, np.where(byte < 128, 0, 1).astype(np.uint8)) == pytest.approx((0.5 - 1 / 256) / (255 / 256))
