"""Characters and white space are repaired, and nothing else is touched."""

from __future__ import annotations

import json
import random
import unicodedata
from collections import Counter
from pathlib import Path

import ftfy
import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES, is_bad

from data_pipeline.reading.documents import Document, Tally
from data_pipeline.steps.repair import _MOJIBAKE_NEEDS, Repair, _readable
from tests.helpers.steps import run_local


@pytest.mark.parametrize(
    ("broken", "good", "kind"),
    [
        ("cafÃ© au lait", "café au lait", "mojibake"),
        ("he said â€œnoâ€\x9d", "he said “no”", "mojibake"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour", "line ends"),
        ("a\x00b\u200bc\ufeffd\u202ee\x07", "abcde", "unseen characters"),
        ("cafe\u0301", "café", "normal form"),
        ("one  two\t\tthree\u00a0four  \n  five", "one two three four\nfive", "white space"),
        ("one\n\n\n\ntwo\n\n", "one\n\ntwo", "white space"),
        ("half \ud83d of one, \ud83d\ude00 whole", "half of one, 😀 whole", "surrogates"),
    ],
)
def test_each_repair_does_its_part_and_is_counted(tmp_path: Path, broken: str, good: str, kind: str) -> None:
    texts, tally = run_local(Repair(), [broken], tmp_path)
    assert texts == [good]
    assert tally.changed[kind] == 1


def test_good_text_goes_through_as_it_is(tmp_path: Path) -> None:
    good = ["Plain text.\n\nOf two paragraphs.", "Ça va, Zoë? 中文 русский", "می‌خواهم", "👩‍👩‍👧 naïve œuvre"]
    texts, tally = run_local(Repair(), good, tmp_path)
    assert texts == good
    assert not tally.changed


def test_joiners_beside_ascii_are_left_overs(tmp_path: Path) -> None:
    assert run_local(Repair(), ["a\u200cb \u200dc"], tmp_path)[0] == ["ab c"]


def test_documents_without_text_are_dropped_with_a_sample_that_can_be_written(tmp_path: Path) -> None:
    texts, tally = run_local(Repair(), ["\u200b \n\t", "\ud800", "x"], tmp_path)
    assert texts == ["x"]
    assert tally.dropped == Counter(empty=2)
    json.dumps(tally.to_dict()).encode()
    assert not tally.changed


def test_settings_turn_repairs_off(tmp_path: Path) -> None:
    loose = Repair(mojibake=False, normal_form="none", indentation=True, blank_lines=3)
    text = "cafÃ©\n\n\n\n    e\u0301 x"
    assert run_local(loose, [text + "  "], tmp_path)[0] == [text]
    assert run_local(Repair(normal_form="nfkc"), ["ﬁne x²"], tmp_path)[0] == ["fine x2"]


def test_both_texts_of_a_pair_are_repaired(tmp_path: Path) -> None:
    tally = Tally()
    pairs = [Document(("a  b", "c\r\nd"), "f", 0), Document(("a", " "), "f", 1)]
    assert [d.texts for d in Repair().run(pairs, tally, tmp_path)] == [("a b", "c\nd")]
    assert tally.dropped == Counter(empty=1)


def _mojibake_like(seed: int, lines: int) -> list[str]:
    """Lines of the characters that ftfy looks at, of ASCII, and of good text read in a wrong encoding."""
    random_ = random.Random(seed)
    signs = [c for c in map(chr, range(0x80, 0x2600)) if ftfy.badness.BADNESS_RE.search(c + "¤") or is_bad("¤" + c)]
    signs += sorted(set("".join(MOJIBAKE_CATEGORIES.values())) - {"-"})
    found = []
    for _ in range(lines):
        found.append(
            "".join(random_.choice(random_.choice(["az AZ.,", signs])) for _ in range(random_.randrange(1, 7)))
        )
        good = "".join(random_.choice("aéß “”—œÂ€ñжЖλ中😀 ") for _ in range(random_.randrange(1, 12)))
        found.append(good.encode().decode(random_.choice(["latin-1", "cp437", "macroman"])))
        found.append(good)
    return found


def test_mojibake_is_looked_for_wherever_ftfy_would_find_it() -> None:
    lines = _mojibake_like(0, 6_000)
    bad = [line for line in lines if is_bad(line)]
    assert len(bad) > 3_000
    assert all(_MOJIBAKE_NEEDS.search(line) for line in bad)
    assert [_readable(line) for line in lines[:3000]] == [ftfy.fix_encoding(line) for line in lines[:3000]]


def test_single_characters_beside_ascii_that_ftfy_takes_for_signs_are_all_known() -> None:
    for code in [*range(0x80, 0xD800), *range(0xE000, 0x10000)]:
        for line in (chr(code), f"a{chr(code)} b", f"{chr(code)} ", f"A {chr(code)}1"):
            assert _MOJIBAKE_NEEDS.search(line) or not is_bad(line), hex(code)


def test_repaired_text_stays_as_it_is(tmp_path: Path) -> None:
    random_ = random.Random(1)
    alphabet = "ab \n\t\r\u00a0\u200b\u200c\u200d\u0301é\u2028\x85\x1f中\ud800\u1100\u1161"
    for form in ("nfc", "nfkc", "none"):
        step = Repair(mojibake=False, normal_form=form)
        texts = ["".join(random_.choices(alphabet, k=20)) for _ in range(500)]
        once = run_local(step, texts, tmp_path)[0]
        assert run_local(step, once, tmp_path)[0] == once
        if form == "nfc":
            assert all(unicodedata.is_normalized("NFC", text) for text in once)
