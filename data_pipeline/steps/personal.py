"""Masks what points at persons: e-mail addresses, public IP addresses, telephone numbers.

Precision comes first: what may as well be a date, an ISBN, an identifier or a number in a table stays, and so do
telephone numbers as they are written within most countries. Four low numbers are an address only where the words
before say so, since sections, versions and enzymes have similar numbers. IP addresses of private, reserved and
documentation ranges identify nobody. Each expression looks at a bounded number of characters from its beginning, so no
text takes long, and begins with a character before it looks back, which lets the search skip quickly to it.

Letters hide an address only where they could be a part of it: Latin ones. Those of other scripts beside it, which may
be written without a space between, stay as they are. A name of a mailbox in such letters is taken as a whole, so where
it is written behind others of its script without a sign between, they go with it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Literal

import regex
from pydantic import Field

from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep
from data_pipeline.writing.scripts import LATIN, UNSPACED

_LATIN = rf"[{LATIN}[\p{{M}}&&\p{{Inherited}}]]"
_LETTER = rf"[{_LATIN}0-9]"  # what an address in Latin letters is made of, besides signs
_ANY = r"[\p{L}\p{M}\p{Nd}]"  # one in any letters
_OTHER = rf"[[\p{{L}}\p{{M}}]--{LATIN}]"
_ATTACHED = rf"[{UNSPACED}\p{{Hangul}}]"  # letters that are written right before an address
_SPACED = rf"[{_OTHER}--{_ATTACHED}]"


def _compiled(expression: str) -> regex.Pattern[str]:
    return regex.compile(expression, regex.VERSION1)


def _labels(letter: str) -> str:
    return rf"(?:{letter}(?:[{letter}_-]{{0,61}}{letter})?\.){{1,8}}"


def _local(letter: str) -> str:
    return rf"(?<![[{letter}--\p{{M}}]_+%-])_*+(?!\p{{M}})([{letter}+%-][{letter}_.+%'-]{{0,{_MOST_LOCAL - 1}}})"


# A local part has at most 64 characters, a label 63 (RFC 5321). Each kind of letters ends an address of another, and
# underscores around it are emphasis.
_MOST_LOCAL = 64
_AT = r"[@\uff20\ufe6b]"  # wide and small, as East Asia writes it, also to hide addresses from machines
_TOP = rf"(?:(?i:xn--[a-z0-9-]{{1,59}})|{_LATIN}{{2,24}})(?!_*{_LETTER})"
_DOMAIN = _compiled(
    rf"{_AT}(?:(?P<latin>{_labels(_LETTER)}{_TOP})"
    rf"|{_labels(_ANY)}(?:{_TOP}|{_OTHER}{{2,24}}(?!_*[{_OTHER}\p{{Nd}}])))"
)
_IN_LATIN, _IN_OTHER, _IN_SPACED, _IN_ATTACHED = (
    _local(letter) for letter in (_LETTER, rf"[{_OTHER}\p{{Nd}}]", rf"[{_SPACED}\p{{Nd}}]", rf"[{_ATTACHED}\p{{Nd}}]")
)
_LOCAL_IN_ANY = _compiled(rf"(?|{_IN_LATIN}|{_IN_OTHER})\Z")
# Digits behind letters are the name's in иван2020@, and the address's in 邮箱2020@.
_LOCAL = _compiled(rf"(?|{_IN_LATIN}|{_IN_SPACED}|{_IN_ATTACHED}(?<={_ATTACHED}))\Z")

_W = rf"[{LATIN}\p{{Nd}}]"  # continues a number or an identifier, as letters of other scripts do not
_IPV4 = _compiled(rf"[0-9](?<![{_W}.]_*.)(?<!ersion .)[0-9]{{0,2}}(?:\.[0-9]{{1,3}}){{3}}(?!_*{_W}|\.[0-9])")
_LOW_FIRST, _LOW = 24, 100  # of an address that looks like a number of sections, versions or enzymes
_CONTEXT = 32  # characters on each side
_BEGIN = r"(?<![0-9A-Za-z_])"
_WORD = r"(?<![^\W\d_])"
_BEFORE_NUMBERS = re.compile(
    rf"(?:{_BEGIN}(?:E\.?\s?C\.?|sections?|sect?\.|chapters?|clauses?|paragraphs?|tables?|figures?|appendix|versions?"
    r"|releases?|revision|v\.?|ver\.?|rev\.?|kernels?|OID|enzymes?)"
    r"|\xa7|[<>=]=|(?<!\w)[<>]"
    r"|版本?[号號]?|第|章[节節]|[条條]款|附[录錄]|[内內]核|核心|[ヴバ](?:ァ)?ージョン|リリース|カーネル"
    r"|버전|릴리[스즈]|커널|제"
    rf"|{_WORD}(?:верси|релиз|ядр|раздел|глав|пункт|параграф|стать|таблиц|рисун|приложени|редакци)\w{{0,4}}"
    rf"|{_WORD}(?:п|гл|ст|разд|табл|рис|ред)\."
    r"|(?:[إا]صدار|نسخة|نواة|قسم|فصل|مادة|بند|جدول|شكل))"
    r"[\s:\uff1a(\uff08#\uff03]{0,3}$",
    re.IGNORECASE,
)
_AFTER_NUMBERS = re.compile(r"\s?(?:版|章|[节節条條款項]|バージョン|버전|[절장조항](?!\w))")
_BEFORE_ADDRESS = re.compile(
    rf"(?:{_BEGIN}(?:IP(?:v4)?(?:[- ]?(?:address(?:es)?|numbers?))?|address(?:es)?|(?:name)?servers?|hosts?|hostname"
    r"|gateway|DNS|ping|telnet|ssh|traceroute|peer|router|client)|://|@|inet|addr"
    r"|[地位]址|[服伺][务服]器|主[机機]|[网網][关關]|閘道|路由器|客[户戶]端"
    r"|アドレス|サーバー?|ホスト|ゲートウェイ|ルーター?|クライアント"
    r"|주소|서버|호스트|게이트웨이|라우터|클라이언트"
    rf"|{_WORD}(?:адрес|сервер|хост|шлюз|маршрутизатор|клиент|узел|узл)\w{{0,4}}"
    r"|(?:عنوان|خادم|مضيف|بوابة|موجه))"
    r"(?:\s(?:is|was|has|been|of|at|on)|\s?(?:[是为為在はがの은는이가의]|هو)){0,3}[\s:\uff1a=\[(\uff08「\"']{0,3}$",
    re.IGNORECASE,
)
_AFTER_ADDRESS = _compiled(rf":[0-9]{{2,5}}(?!{_W}|_)|/(?:[89]|[12][0-9]|3[0-2])(?!{_W}|_)(?![./])")
_IPV6 = _compiled(
    # Only 2000::/3 is given out, which also tells addresses from times and names of C++.
    rf"[23](?<![{_W}:.]_*.)[0-9A-Fa-f]{{3}}(?::[0-9A-Fa-f]{{0,4}}){{1,6}}:(?:[0-9A-Fa-f]{{1,4}}|(?<=::))"
    rf"(?!_*{_W}|:[{_W}:])"
)
_COUNTRY = (
    # Of one digit but North America's, of two, of three (ITU-T E.164).
    r"(?:7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]"
    r"|(?:2[1-689]|3[578]|42|5[09]|6[7-9]|8[05789]|9[679])[0-9])"
)
_FURTHER = r"(?:[ .()/-]{0,2}[0-9])"
_AMOUNT = rf"{_FURTHER}*+ ?[元圆圓円원万萬亿億만억]"
# North America's area and exchange codes begin with 2 to 9.
_AREA = _EXCHANGE = r"[2-9][0-9]{2}"
_AFTER_BRACKET = rf"{_AREA}\)[ -]?{_EXCHANGE}[ .-][0-9]{{4}}"
_AFTER_DIGIT = rf"[0-9]{{2}}(?:[ -]{_EXCHANGE}-|\.{_EXCHANGE}\.)[0-9]{{4}}"
_ANY_AMERICAN = rf"1[ .-]?\(?{_AREA}\)?[ .-]?{_EXCHANGE}[ .-]?[0-9]{{4}}"
_PHONES = (
    # +1 (212) 555-0199, +442079460958, +49 (0)30 901820; 15 digits at most
    _compiled(rf"\+(?<![{_W}+/-]_*.)(?:{_ANY_AMERICAN}|{_COUNTRY}{_FURTHER}{{6,12}})(?!_*{_W}|{_AMOUNT})"),
    # 0044 20 7946 0958: the blank tells it from identifiers
    _compiled(rf"00(?<![{_W}+:./-]_*..)(?:(?=1 ){_ANY_AMERICAN}|{_COUNTRY} \(?[0-9]{_FURTHER}{{5,11}})(?!_*{_W})"),
    # (212) 555-0199, 212-555-0199, 212.555.0199, each also after a 1
    _compiled(
        rf"[(1-9](?<![{_W}+/-]_*.)(?<![0-9]\..)"
        rf"(?:(?<=\(){_AFTER_BRACKET}|(?<=[2-9]){_AFTER_DIGIT}"
        rf"|(?<=1)[ .-](?:\({_AFTER_BRACKET}|[2-9]{_AFTER_DIGIT}))(?!_*{_W}|[-/][0-9]|\.[0-9])"
    ),
)

_Meant = Callable[[regex.Match[str]], bool]


class Personal(LocalStep):
    """Replaces each address and number by a mask."""

    takes_pairs: ClassVar[bool] = True
    version: ClassVar[int] = 4

    name: Literal["personal"] = "personal"
    email: str | None = Field(default="<EMAIL>", description="replacement for e-mail addresses; null: keep them")
    ip: str | None = Field(default="<IP>", description="replacement for public IPv4 and IPv6 addresses; null: keep")
    phone: str | None = Field(
        default="<PHONE>",
        description="replacement for telephone numbers, international (+49 30 901820) or North American "
        "((212) 555-0199); null: keep them",
    )

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Drops nothing; counts the masks by kind."""
        for document in documents:
            texts = tuple(self.mask(text, stats.changed) for text in document.texts)
            yield document if texts == document.texts else replace(document, texts=texts)

    def mask(self, text: str, changed: Counter[str]) -> str:
        """`text` with masks, which `changed` counts by kind."""

        def put(
            kind: str, mask: str | None, expression: regex.Pattern[str], meant: _Meant = lambda found: True
        ) -> None:
            nonlocal text
            if mask is None:
                return

            def masked(match: regex.Match[str]) -> str:
                if not meant(match):
                    return str(match[0])
                changed[kind] += 1
                return mask

            text = str(expression.sub(masked, text))

        if self.email is not None and any(sign in text for sign in "@\uff20\ufe6b"):
            text, found = _without_emails(text, self.email)
            if found:
                changed["email"] += found
        put("ip", self.ip, _IPV4, lambda match: _public(match[0]) and _is_address(match))
        put("ip", self.ip, _IPV6, lambda match: _public(match[0]))
        for expression in _PHONES:
            put("phone", self.phone, expression)
        return text


def _without_emails(text: str, mask: str) -> tuple[str, int]:
    """(`text` with a mask for each e-mail address, their number). Domains are found first: few texts have many."""
    parts, end = [], 0
    for domain in _DOMAIN.finditer(text):
        local = _LOCAL if domain["latin"] is not None else _LOCAL_IN_ANY
        if found := local.search(text, max(end, domain.start() - _MOST_LOCAL), domain.start()):
            parts += [text[end : found.start(1)], mask]
            end = domain.end()
    return "".join([*parts, text[end:]]), len(parts) // 2


def _is_address(match: regex.Match[str]) -> bool:
    """Whether four numbers with dots between are an address and no number of a section, a version or an enzyme.

    Low numbers need an address's context, and others none of a section's. Of all public addresses 1.2% are so low that
    they need one.
    """
    numbers = [int(number) for number in match[0].split(".")]
    text, begin, end = match.string, match.start(), match.end()
    before = text[max(0, begin - _CONTEXT) : begin]
    after = text[end : end + _CONTEXT]
    if _BEFORE_NUMBERS.search(before) or _AFTER_NUMBERS.match(after):
        return False
    if numbers[0] >= _LOW_FIRST or max(numbers[1:3]) >= _LOW:
        return True
    return bool(_BEFORE_ADDRESS.search(before) or _AFTER_ADDRESS.match(after))


def _public(found: str) -> bool:
    try:
        return ip_address(found).is_global
    except ValueError:
        return False
