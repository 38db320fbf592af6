"""What Unicode says of writing: scripts, as sets of the `regex` package (its version 1)."""

from __future__ import annotations

LATIN = r"[\p{Latin}--[\uff21-\uff3a\uff41-\uff5a]]"
"""Letters of the Latin script, but the full-width ones, which are written among Han and kana."""
UNSPACED = (
    r"[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}\p{scx=Yi}\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}"
    r"\p{scx=Myanmar}\p{scx=Tibetan}]"
)
"""Characters of scripts that are written without spaces between words."""
