"""Masks what points at persons: e-mail addresses, public IP addresses, telephone numbers.

Precision comes first: what may as well be a date, an ISBN, an identifier or a number in a table stays, and so do
telephone numbers as they are written within most countries. Four low numbers are an address only where the words
before say so, since sections, versions and enzymes have similar numbers. IP addresses of private, reserved and
documentation ranges identify nobody. Each expression looks at a bounded number of characters from its beginning, so no
text takes long, and begins with a character before it looks back, which lets the search skip quickly to it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep

_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_EMAIL = re.compile(
    # A local part has at most 64 characters, a label 63 (RFC 5321).
    rf"(?<![\w+%-])[\w+%-][\w.+%'-]{{0,63}}@(?:{_LABEL}\.){{1,8}}[^\W\d_]{{2,24}}(?!\w)"
)
_IPV4 = re.compile(r"[0-9](?<![\w.].)(?<!ersion .)[0-9]{0,2}(?:\.[0-9]{1,3}){3}(?!\w|\.[0-9])")
_LOW_FIRST, _LOW = 24, 100  # of an address that looks like a number of sections, versions or enzymes
_BEFORE_NUMBERS = re.compile(
    r"(?:\bE\.?\s?C\.?|\bsections?|\bsect?\.|\xa7|\bchapters?|\bclauses?|\bparagraphs?|\btables?|\bfigures?"
    r"|\bappendix|\bversions?|\breleases?|\brevision|\bv\.?|\bver\.?|\brev\.?|\bkernels?|\bOID|\benzymes?|[<>=]=|(?<!\w)[<>])[\s:(#]{0,3}$",
    re.IGNORECASE,
)
_BEFORE_ADDRESS = re.compile(
    r"(?:\bIP(?:v4)?(?:[- ]?(?:address(?:es)?|numbers?))?|\baddress(?:es)?|\b(?:name)?servers?|\bhosts?|\bhostname"
    r"|\bgateway|\bDNS|\bping|\btelnet|\bssh|\btraceroute|\bpeer|\brouter|\bclient|://|@|inet|addr)"
    r"(?:\s(?:is|was|has|been|of|at|on)){0,3}[\s:=\[(\"']{0,3}$",
    re.IGNORECASE,
)
_AFTER_ADDRESS = re.compile(r":[0-9]{2,5}\b|/(?:[89]|[12][0-9]|3[0-2])\b(?![./])")
_CONTEXT = 32  # characters on each side
_IPV6 = re.compile(
    # Only 2000::/3 is given out, which also tells addresses from times and names of C++.
    r"[23](?<![\w:.].)[0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){1,6}:(?:[0-9A-Fa-f]{1,4}|(?<=::))(?!\w|:[\w:])"
)
_COUNTRY = (
    # Of one digit but North America's, of two, of three (ITU-T E.164).
    r"(?:7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]"
    r"|(?:2[1-689]|3[578]|42|5[09]|6[7-9]|8[05789]|9[679])[0-9])"
)
_FURTHER = r"(?:[ .()/-]{0,2}[0-9])"
# North America's area and exchange codes begin with 2 to 9.
_AREA = _EXCHANGE = r"[2-9][0-9]{2}"
_AFTER_BRACKET = rf"{_AREA}\)[ -]?{_EXCHANGE}[ .-][0-9]{{4}}"
_AFTER_DIGIT = rf"[0-9]{{2}}(?:[ -]{_EXCHANGE}-|\.{_EXCHANGE}\.)[0-9]{{4}}"
_ANY_AMERICAN = rf"1[ .-]?\(?{_AREA}\)?[ .-]?{_EXCHANGE}[ .-]?[0-9]{{4}}"
_PHONES = (
    # +1 (212) 555-0199, +442079460958, +49 (0)30 901820; 15 digits at most
    re.compile(rf"\+(?<![\w+/-].)(?:{_ANY_AMERICAN}|{_COUNTRY}{_FURTHER}{{6,12}})(?!\w)"),
    # 0044 20 7946 0958: the blank tells it from identifiers
    re.compile(rf"00(?<![\w+:./-]..)(?:(?=1 ){_ANY_AMERICAN}|{_COUNTRY} \(?[0-9]{_FURTHER}{{5,11}})(?!\w)"),
    # (212) 555-0199, 212-555-0199, 212.555.0199, each also after a 1
    re.compile(
        r"[(1-9](?<![\w+/-].)(?<![0-9]\..)"
        rf"(?:(?<=\(){_AFTER_BRACKET}|(?<=[2-9]){_AFTER_DIGIT}"
        rf"|(?<=1)[ .-](?:\({_AFTER_BRACKET}|[2-9]{_AFTER_DIGIT}))(?!\w|[-/][0-9]|\.[0-9])"
    ),
)


class Personal(LocalStep):
    """Replaces each address and number by a mask."""

    takes_pairs: ClassVar[bool] = True
    version: ClassVar[int] = 2

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
            kind: str, mask: str | None, expression: re.Pattern[str], meant: Callable[[re.Match[str]], bool]
        ) -> None:
            nonlocal text
            if mask is None:
                return

            def masked(match: re.Match[str]) -> str:
                if not meant(match):
                    return match[0]
                changed[kind] += 1
                return mask

            text = expression.sub(masked, text)

        if "@" in text:
            put("email", self.email, _EMAIL, lambda found: True)
        put("ip", self.ip, _IPV4, lambda match: _public(match[0]) and _is_address(match))
        put("ip", self.ip, _IPV6, lambda match: _public(match[0]))
        for expression in _PHONES:
            put("phone", self.phone, expression, lambda found: True)
        return text


def _is_address(match: re.Match[str]) -> bool:
    """Whether four numbers with dots between are an address and no number of a section, a version or an enzyme.

    Low numbers need an address's context, and others none of a section's. Of all public addresses 1.2% are so low that
    they need one.
    """
    numbers = [int(number) for number in match[0].split(".")]
    text, begin, end = match.string, match.start(), match.end()
    before = text[max(0, begin - _CONTEXT) : begin]
    if _BEFORE_NUMBERS.search(before):
        return False
    if numbers[0] >= _LOW_FIRST or max(numbers[1:3]) >= _LOW:
        return True
    after = text[end : end + _CONTEXT]
    return bool(_BEFORE_ADDRESS.search(before) or _AFTER_ADDRESS.match(after))


def _public(found: str) -> bool:
    try:
        return ip_address(found).is_global
    except ValueError:
        return False
