"""Words that prose of a language is never without, as Rae et al. 2021 list them for English."""

from __future__ import annotations

STOP_WORDS = {
    code: tuple(words.split())
    for code, words in {
        "en": "the be to of and that have with",
        "ar": "في من على أن إلى عن أو هذا ما لا كل التي مع هو",
        "bn": "এবং ও এই করে থেকে একটি না বা জন্য কোন সকল",
        "cs": "a se v na je že o s z do pro nebo jako",
        "de": "der die und in den von zu das mit sich auf ist nicht ein",
        "el": "και το του η της να με από για την που στην",
        "es": "de la que el en y los se del las por con para",
        "fa": "و در به از که این را با است برای هر یا آن",
        "fi": "ja on ei se että oli hän tai myös joka sekä ovat",
        "fr": "de la le et les des en un une est que pour dans",
        "he": "של את על לא עם זה הוא היא או כי גם כל",
        "hi": "के में है की और से का को पर या यह किसी",
        "hu": "a az és hogy nem is egy volt van vagy minden",
        "id": "yang dan di dari dengan untuk pada ini dalam atau tidak",
        "it": "di che e la il un in per una del non con",
        "ja": "の に は を た が で て と も",
        "km": "និង នៃ ដែល ក្នុង ជា ការ មាន បាន",
        "ko": "이 그 수 및 등 있는 있다 또는 한 모든 그리고 대한 위해 할 것이다",
        "lo": "ແລະ ໃນ ຂອງ ທີ່ ເປັນ ມີ ໄດ້ ການ",
        "ml": "ഒരു ഈ എന്ന എന്ന് ആണ് അത് ഇത് മറ്റു എല്ലാ എന്നാൽ വേണ്ടി പോലെ തന്റെ ഏതെങ്കിലും അഥവാ",
        "my": "သည် ကို များ နှင့် တွင် သော ဖြစ်",
        "nl": "de van het een en in is dat op te zijn met voor",
        "pl": "w i z na do się nie jest to że od o jako lub",
        "pt": "de a que o e do da em um para com não uma",
        "ru": "и в не на что с по к как из это для",
        "sv": "och i att det som en på är av för med till",
        "ta": "ஒரு மற்றும் இந்த என்று இது உள்ள என அல்லது எந்த ஒவ்வொரு",
        "th": "ที่ และ ของ ใน เป็น การ มี ได้ ไม่ จะ",
        "tr": "ve bir bu da de için ile olarak çok daha gibi her",
        "uk": "і в на не що з до та як за для від або",
        "ur": "کے میں کی ہے اور سے کا کو کہ یا اس ہر",
        "vi": "và là của có được trong cho không các một những người",
        "zh": "的 是 在 了 和 不 有 这 這 人 为 為 与 與",
    }.items()
}
"""Stop words by ISO 639 code, in lower case."""
