"""Addresses and numbers of persons are masked; what only looks like them stays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from data_pipeline.reading.documents import Document, Tally
from data_pipeline.steps.personal import Personal
from tests.helpers.steps import run_local


def _masked(text: str) -> str:
    return Personal().mask(text, Counter())


@pytest.mark.parametrize(
    "found",
    [
        "joe@example.com",
        "joe.b.smith+news@mail.some-host.co.uk",
        "j_s%x-1@x.io",
        "jörg@münchen.de",
        "o'brien@a.b.c.museum",
        "JOE@EXAMPLE.COM",
    ],
)
def test_email_addresses_are_masked(found: str) -> None:
    for text in ("{}", "Write to {}.", "<{}>", "mailto:{}?subject=x", "({}, or call)", "a {}/b", "»{}«"):
        assert _masked(text.format(found)) == text.format("<EMAIL>")


@pytest.mark.parametrize(
    "text",
    [
        "@joe said",
        "joe@localhost",
        "left-pad@1.2.3",
        "meet @ 5.30 pm",
        "a @ b.com",
        "joe@",
        "x" * 70 + "@example.com",
        "joe@-x.com",
        "f(@x.y)",
    ],
)
def test_what_is_no_email_address_stays(text: str) -> None:
    assert _masked(text) == text


@pytest.mark.parametrize(
    "found",
    [
        "8.8.8.8",
        "93.184.216.34",
        "2001:4860:4860::8888",
        "2a00:1450:4001:0824:0000:0000:0000:200e",
        "2606:4700::",
        "2A00:1450:4001:824::200E",
    ],
)
def test_public_ip_addresses_are_masked(found: str) -> None:
    for text in ("{}", "at {}.", "({})", "http://{}/x", "[{}]", "from {}, twice", "{}/24"):
        assert _masked(text.format(found)) == text.format("<IP>")


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1 172.16.3.4 192.168.0.1 127.0.0.1 169.254.1.1",
        "0.0.0.0 255.255.255.255 192.0.2.7 198.51.100.7 203.0.113.9 100.64.0.1 240.0.0.1",
        "::1 fe80::1 fd00::1 2001:db8::1 ff02::1",
        "256.1.1.1 1.2.3 1.2.3.4.5 1.2.3.400",
        "v1.2.3.4 and version 1.2.3.4, or Version 8.8.8.8",
        "010.008.008.008",
        "12:30:45 2004:10:11 20:15",
        "std::vector a::b face::add dead::beef 2::3",
        "2001:4860:4860:8888",
        "2001::4860::8888",
    ],
)
def test_addresses_that_point_at_nobody_and_what_is_none_stay(text: str) -> None:
    assert _masked(text) == text


@pytest.mark.parametrize(
    "found",
    [
        "(212) 555-0199",
        "(212)555-0199",
        "(212) 555 0199",
        "212-555-0199",
        "212.555.0199",
        "1-212-555-0199",
        "212 555-0199",
        "1 (800) 555-0199",
        "+1 212 555 0199",
        "+1-212-555-0199",
        "+1.212.555.0199",
        "+12125550199",
        "+1 (212) 555-0199",
        "+44 20 7946 0958",
        "+44 (0)20 7946 0958",
        "+442079460958",
        "+49 30 901820",
        "+49 (0) 30/901820",
        "+33 1 23 45 67 89",
        "+33.1.23.45.67.89",
        "+358 9 1234567",
        "+7 495 123-45-67",
        "+86 10 6552 9988",
        "+972-2-123-4567",
        "0044 20 7946 0958",
        "001 212 555 0199",
    ],
)
def test_telephone_numbers_are_masked(found: str) -> None:
    for text in ("{}", "Call {}.", "tel: {}, or write", "it is {} (work)", "{}\n1 more", "T:\n{}"):
        assert _masked(text.format(found)) == text.format("<PHONE>")


@pytest.mark.parametrize(
    "text",
    [
        "2020-12-31 31.12.2020 12/31/2020 1999-2004 1914-1918 2020-12-31T10:15:30+01:00",
        "ISBN 978-0-306-40615-7 0-306-40615-2 99921-58-10-7 9780306406157 978 0 306 40615 7",
        "2125550199 12125550199 123456789012345 1234 5678 9012 3456 4111-1111-1111-1111",
        "078-05-1120 555-0199 212 555 0199",
        "112-555-0199 212-155-0199 212-555-01999 9212-555-0199 212-555-0199-7 212.555-0199",
        "1,234,567.89 +100 points +1,000,000 +15% 3.14159265358979 10.1145/3292500.3330701",
        "UTC+01:00 x+442079460958 a+12125550199 C++11 2+2=4",
        "100 200 300 4000 200 300 4000",
        "pages 212-555, 400-410; chapters 212.555",
        "0012-3456-7890 00123456789012 12:00 15 20 30 0000 1111 2222",
        "+0 12 345 678 90 +1 123 555 0199 +1 212 155 0199",
        "/item/212-555-0199 sku-212-555-0199 5.212.555.0199",
        "00:10:20:30 1200 44 20 7946 0958",
    ],
)
def test_dates_isbns_years_and_identifiers_stay(text: str) -> None:
    assert _masked(text) == text


def test_masks_are_counted_by_kind_and_can_be_chosen_or_left_out(tmp_path: Path) -> None:
    text = "a@b.com c@d.org 8.8.8.8 (212) 555-0199"
    texts, tally = run_local(Personal(), [text, "nothing here"], tmp_path)
    assert texts == ["<EMAIL> <EMAIL> <IP> <PHONE>", "nothing here"]
    assert tally.changed == Counter(email=2, ip=1, phone=1)
    assert run_local(Personal(email="x@example.com", ip=None, phone=None), [text], tmp_path)[0] == [
        "x@example.com x@example.com 8.8.8.8 (212) 555-0199"
    ]
    assert run_local(Personal(email=None, ip=r"<\1>"), [text], tmp_path)[0] == [r"a@b.com c@d.org <\1> <PHONE>"]


def test_both_texts_of_a_pair_are_masked(tmp_path: Path) -> None:
    pair = Document(("to a@b.com", "an a@b.com"), "f", 0)
    assert [d.texts for d in Personal().run([pair], Tally(), tmp_path)] == [("to <EMAIL>", "an <EMAIL>")]


_PIECES = (
    "a 1 . ( + @ a. a@ @a. a-. @a- 1. 1- 1.1.1.1. 212- (212) +44 +1 00 0044_ 2001: 2001:a: 212-555-01 a@b. +4(4 "
    "a@a-a.a-a."
)


@pytest.mark.timeout(20)
def test_no_text_takes_long() -> None:
    """A quarter of a million characters of each take hours when time grows with their square."""
    for piece in _PIECES.split():
        text = piece.replace("_", " ") * (2**18 // len(piece))
        _masked("@ +" + text + "@")
