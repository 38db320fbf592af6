"""Words in the writing of many languages, and ICU's where its library is installed."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import regex

from data_pipeline.text.words import Words
from data_pipeline.writing.words import ALL, SPACE, UNSPACED, caseless, count_words, kinds_and_folds
from tests.helpers.icu import icu_pieces

# What ICU 72 finds in the first article of the Declaration of Human Rights (parts of it), words that white space
# separates or graphemes: | before each but the first.
WRITTEN = {
    "en": "All| human| beings| are| born| free| and| equal| in| dignity| and| rights.",
    "de": "Alle| Menschen| sind| frei| und| gleich| an| Würde| und| Rechten| geboren.",
    "vi": "Tất| cả| mọi| người| sinh| ra| đều| được| tự| do| và| bình| đẳng",
    "tr": "Bütün| insanlar| hür,| haysiyet| ve| haklar| bakımından| eşit| doğarlar.",
    "ru": "Все| люди| рождаются| свободными| и| равными| в| своем| достоинстве",
    "ar": "يولد| جميع| الناس| أحرارًا| متساوين| في| الكرامة| والحقوق.",
    "fa": "تمام| افراد| بشر| آزاد| به| دنیا| می\u200cآیند| و| حقوق",
    "hi": "सभी| मनुष्यों| को| गौरव| और| अधिकारों| के| मामले| में| स्वतन्त्रता",
    "ml": "മനുഷ്യരെല്ലാവരും| തുല്യാവകാശങ്ങളോടും| അന്തസ്സോടും| സ്വാതന്ത്ര്യത്തോടുംകൂടി| ജനിച്ചിട്ടുള്ളവരാണ്",
    "ko": "모든| 인간은| 태어날| 때부터| 자유로우며| 그| 존엄과| 권리에| 있어| 동등하다.",
    "th": "ม|นุ|ษ|ย์|ทั้|ง|ห|ล|า|ย|เ|กิ|ด|ม|า|มี|อิ|ส|ร|ะ|แ|ล|ะ|เ|ส|ม|อ|ภ|า|ค|กั|น",
    "lo": "ມ|ະ|ນຸ|ດ|ທຸ|ກ|ຄົ|ນ|ເ|ກີ|ດ|ມ|າ|ມີ|ກ|ຽ|ດ|ສັ|ກ|ສີ",
    "km": "ម|នុ|ស្|ស|ទាំ|ង|អ|ស់|កើ|ត|ម|ក|មា|ន|សេ|រី|ភា|ព",
    "zh": "人|人|生|而|自|由,|在|尊|严|和|权|利|上|一|律|平|等。",
    "ja": "す|べ|て|の|人|間|は、|生|ま|れ|な|が|ら|に|し|て|自|由|で|あ|り",
}
SPACED = ("en", "de", "vi", "tr", "ru", "ar", "fa", "hi", "ml", "ko")
# Beyond ICU's graphemes: what follows a letter belongs to it, and syllables and words have signs between them.
OTHERS = {
    "a kana with its mark, and signs that repeat": ("カードが人々、か\u3099", "カー|ド|が|人々|か\u3099"),
    "half-width": ("ﾊﾟｰﾄ", "ﾊﾟｰ|ﾄ"),
    "Bopomofo": ("ㄓㄨˋ", "ㄓ|ㄨˋ"),
    "Burmese": ("မြန်မာ", "မြ|န်|မာ"),
    "Tibetan's syllables": ("བོད་ཡིག་ནི། །", "བོད|ཡིག|ནི"),
    "Ethiopic with its space": ("ሰላም፡ለዓለም።እሺ", "ሰላም|ለዓለም።እሺ"),
    "dandas without a space": ("यह है।वह नहीं॥और", "यह|है|वह|नहीं|और"),
    "Javanese": ("ꦲꦏ꧀ꦱꦫ", "ꦲ|ꦏ꧀|ꦱ|ꦫ"),
    "letters of Korean by themselves": ("안녕ㅋㅋㅋ", "안녕ㅋㅋㅋ"),
    "two scripts": ("请联系john@example.com谢谢", "请|联|系|john@example.com|谢|谢"),
}


def found(text: str) -> list[str]:
    words = Words.of([text])
    return [text[begin:end] for begin, end in zip(words.begins.tolist(), words.ends.tolist(), strict=True)]


@pytest.mark.parametrize("language", WRITTEN)
def test_words_are_as_they_are_written(language: str) -> None:
    text = WRITTEN[language].replace("|", "")
    written = [word.strip(" .,、。") for word in WRITTEN[language].split("|")]
    assert found(text) == written
    composed = unicodedata.normalize("NFD", text)
    assert len(found(composed)) == len(written), "in any Unicode form"
    pieces = icu_pieces(text, "word" if language in SPACED else "character", language)
    assert [piece for piece in pieces if regex.search(r"\p{L}", piece)] == written


@pytest.mark.parametrize("kind", OTHERS)
def test_signs_belong_to_words_or_part_them(kind: str) -> None:
    text, written = OTHERS[kind]
    assert found(text) == written.split("|")


def test_texts_of_one_meaning_have_about_as_many_words_in_any_script() -> None:
    counted = {language: count_words(text.replace("|", "")) for language, text in WRITTEN.items()}
    for language in SPACED:
        assert counted[language] == len(WRITTEN[language].split("|"))
    assert (counted["zh"], counted["ja"], counted["th"]) == (12, 9, 8)
    assert count_words("我爱NLP和GPT4。 the end … ก็ทำ") == 8, "2 + 2 + 1/2, rounded up, and 3"
    assert count_words("བོད་ཡིག་ནི། a") == 4
    assert count_words(" ") == count_words("") == count_words("\u3000") == 0


def test_case_makes_no_difference_in_any_language() -> None:
    alike = [("İSTANBUL", "istanbul"), ("IRMAK", "ırmak"), ("ΟΔΟΣ", "οδος"), ("ẞ", "ß"), ("ДА", "да"), ("Ⅳ", "ⅳ")]
    for one, other in alike:
        assert caseless(one) == caseless(other)
        first, second = Words.of([one, other]).hashes.tolist()
        assert first == second


def test_all_white_space_parts_words_and_letters_are_of_one_kind_in_any_form() -> None:
    kinds, _ = kinds_and_folds(ALL)
    assert {code for code in range(ALL) if chr(code).isspace()} <= set(np.flatnonzero(kinds == SPACE).tolist())
    alone = set(np.flatnonzero(kinds == UNSPACED).tolist())
    assert all(set(range(first, last)) <= alone for first, last in pairwise([0x4E00, 0x9FFF]))
    assert not any("HANGUL" in unicodedata.name(chr(code), "") for code in alone)
