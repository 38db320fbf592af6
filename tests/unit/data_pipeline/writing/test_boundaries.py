"""Boundaries of words and sentences in the writing of many languages."""

import numpy as np
import pytest

from data_pipeline.writing.boundaries import Boundaries

# | before each word but the first; ‖ behind each sentence.
WRITTEN = {
    "en": 'He| said| "It| is| 3.5."‖| Then| e.g.‖| left.‖| Why?!‖| Yes| (no).‖| OK',
    "de": "„Schön“,| sagte| er.‖| Ähm| …| ja!‖",
    "vi": "Tôi| là| ai?‖| Không| biết.‖",
    "tr": "İyi| günler.‖| Nasılsın?‖",
    "ru": "Это| «да».‖| Нет!‖",
    "ar": "هل| أنت| بخير؟‖| نعم.‖| انتهى",
    "fa": "می\u200cروم.‖| خوبی؟‖",
    "ur": "یہ| ہے۔‖| نہیں",
    "hi": 'यह| है।‖| वह| नहीं।‖| "ठीक।"‖| और',
    "ml": "ഇത്| ശരി.‖| അതെ",
    "am": "ሰላም።‖| እሺ",
    "th": "ฉั|น|รั|ก|เ|ธ|อ| |ก็|ดี| |น้ำ",
    "my": "ကော|င်း။‖|ဟု|တ်",
    "zh": "请|联|系|我|们。‖|「|你|好！」‖|他|说|OK!‖|然|后| ABC|公|司|，|好|吗？‖",
    "zh, of digits": "共|１２．５|元|，|即|3.5|元",
    "ja": "コ|ン|ピ|ュー|タ|は|人々|の。‖|カー|ド",
    "ko": "안녕하세요.‖| 반갑습니다!‖| 네",
    "lines": "a|\n|\n‖|b|\n‖| c",
    "an address": "https://a.b/c?d=e.f!g",
}


@pytest.mark.parametrize("language", WRITTEN)
def test_words_begin_and_sentences_end_as_they_are_written(language: str) -> None:
    marked = WRITTEN[language]
    text = marked.replace("|", "").replace("‖", "")
    found = Boundaries.of(np.array([ord(character) for character in text]))
    shown = "".join(
        ("|" if begins and place else "") + character + ("‖" if ends else "")
        for place, (character, begins, ends) in enumerate(
            zip(text, found.begins_word, found.ends_sentence, strict=True)
        )
    )
    assert shown == marked.replace("‖|", "‖|")
