"""Patterns of whole blocks of positions: local blocks, and BigBird's window, global and random blocks."""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from pretrain.config.patterns.base import MaskRule, PatternSettings, climb, width

_PRIME = 2**31 - 1  # squares of what is less fit 64 bits


class Blocks(PatternSettings):
    """The query's own block."""

    name: Literal["blocks"] = "blocks"
    block: int = Field(gt=1, description="block size in positions")

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        return query // self.block == key // self.block

    def mean_keys(self, length: int, causal: bool) -> float:
        full_blocks, rest = divmod(length, self.block)
        if causal:
            return (full_blocks * climb(self.block, self.block) + climb(rest, rest)) / length
        return (full_blocks * self.block**2 + rest**2) / length

    def scaled(self, length: int, of: int) -> Self:
        return self.model_copy(update={"block": width(self.block, length, of)})


class BigBird(PatternSettings):
    """Blocks near the query's own, global blocks, which everything sees and which see everything, and blocks drawn at
    random for each block of queries in each head (Zaheer et al. 2020, arXiv 2007.14062, its global blocks "internal").
    In a decoder only what comes before: with neither global nor near blocks, block-random attention."""

    name: Literal["bigbird"] = "bigbird"
    block: int = Field(64, gt=1, description="block size in positions")
    window: int = Field(
        3, gt=0, description="number of neighboring blocks in the window, odd: the query's own block is in the middle"
    )
    first: int = Field(1, ge=0, description="number of global blocks at the beginning")
    last: int = Field(0, ge=0, description="number of global blocks at the end (encoders only)")
    random: int = Field(3, ge=0, description="number of random blocks for each block of queries")
    seed: int = Field(0, ge=0, description="seed of the random blocks, which also depend on the layer and the head")
    first_again: int = Field(
        0,
        ge=0,
        description="extra times that queries outside global blocks count the keys of the first block, as "
        "transformers' BigBird does in evaluation in place of random blocks (encoders only)",
    )

    @model_validator(mode="after")
    def _window_has_a_middle(self) -> "BigBird":
        if self.window % 2 == 0:
            raise ValueError(f"window={self.window} blocks have no middle one: choose an odd number")
        return self

    @model_validator(mode="after")
    def _what_counts_again_is_global(self) -> "BigBird":
        if self.first_again and not self.first:
            raise ValueError(
                f"first_again={self.first_again} counts the first block once more, and with first=0 none is global: "
                "set first=1, or leave first_again out"
            )
        return self

    @property
    def weighs(self) -> bool:
        return self.first_again > 0

    def check(self, length: int, encoder: bool, decoder: bool) -> None:
        if decoder and self.first_again:
            raise ValueError(
                f"first_again={self.first_again} is for encoders, whose first block every query sees: leave it out"
            )
        if decoder and self.last:
            raise ValueError(
                f"last={self.last} global blocks at the end are an encoder's, as a decoder's sequences grow: leave it "
                "out"
            )

    def head(self, layer: int, head: int, length: int | None) -> "BigBirdHead":
        digest = hashlib.sha256(f"{self.seed} {layer} {head}".encode()).digest()
        keys = tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") % _PRIME for i in range(3))
        return BigBirdHead(self, keys, length)

    def mean_keys(self, length: int, causal: bool) -> float:
        """Counted by blocks of queries. What is drawn does not matter, as only whole blocks are."""
        one, total = self.head(0, 0, None if causal else length), 0.0
        for query in range(-(-length // self.block)):
            queries = min(self.block, length - query * self.block)
            keys = sum(min(self.block, length - key * self.block) for key in one.key_blocks(query, length))
            total += queries * keys - (queries * (queries - 1) / 2 if causal else 0)
        return total / length

    def scaled(self, length: int, of: int) -> Self:
        return self.model_copy(update={"block": width(self.block, length, of)})


@dataclass(frozen=True)
class BigBirdHead:
    """Mask rule of one head; its methods take block numbers, which may be arrays."""

    settings: BigBird
    keys: tuple[int, ...]
    """seeds of the random draws"""
    length: int | None
    """positions of a sequence; None: it is causal"""

    def attends(self, query: Any, key: Any) -> Any:
        size = self.settings.block
        query, key = query // size, key // size
        seen = (abs(query - key) <= self.settings.window // 2) | self.is_global(query) | self.is_global(key)
        for number in range(self.settings.random):
            drawn, some = self._draw(query, number)
            seen = seen | ((key == drawn) & some)
        return seen

    def times(self, query: Any, key: Any) -> Any:
        """Number of times that the query counts the key, if it sees it."""
        size = self.settings.block
        return 1 + self.settings.first_again * ((key < size) & ~self.is_global(query // size))

    def is_global(self, block: Any) -> Any:
        of_first = block < self.settings.first
        if self.length is None:
            return of_first
        return of_first | (block >= -(-self.length // self.settings.block) - self.settings.last)

    def key_blocks(self, query: int, length: int) -> list[int]:
        """Blocks that block `query` sees, ascending; if causal, none that come later."""
        count = query + 1 if self.length is None else -(-length // self.settings.block)
        if self.is_global(query):
            return list(range(count))
        near = self.settings.window // 2
        blocks = {*range(max(0, query - near), min(count, query + near + 1)), *range(min(self.settings.first, count))}
        if self.length is not None:
            blocks.update(range(count - self.settings.last, count))
        draws = [self._draw(query, number) for number in range(self.settings.random)]
        return sorted(blocks.union(block for block, some in draws if some))

    def _draw(self, query: Any, number: int) -> tuple[Any, Any]:
        """The block that is the draw of that `number`, and whether there is one. Whole blocks that are neither near nor
        global are cut into as many equal runs as there are draws, and one is drawn from each."""
        near, first, draws = self.settings.window // 2, self.settings.first, self.settings.random
        before = _at_least_0(query - near - first)
        after: Any = 0
        if self.length is not None:
            size, last = self.settings.block, self.settings.last
            end = min(self.length // size, -(-self.length // size) - last)
            after = _at_least_0(end - (query + near + 1))
        begin, end = number * (before + after) // draws, (number + 1) * (before + after) // draws
        choices = end - begin
        x = (query * 48271 + number * 69621 + self.keys[0]) % _PRIME
        for key in self.keys[1:]:
            x = (x * x + key) % _PRIME
            x = (x * 39373 + query) % _PRIME
        place = begin + x % (choices + (choices == 0))
        block = first + place + (place >= before) * (query + near + 1 - first - before)
        return block, choices > 0


def _at_least_0(x: Any) -> Any:
    return x * (x > 0)
