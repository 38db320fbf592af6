"""One shard, as a manifest describes it: a tar of members, each a span of the token stream."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from data_pipeline.dataset.records import Name, StrictRecord

MOST_BYTES, MOST_TOKENS = 2**50, 2**50  # sums of them stay far within 64 bits
MOST_MEMBER_TOKENS = 2**31
TAR_BLOCK_BYTES = 512
"""Size of a tar's blocks."""

Bytes = Annotated[int, Field(ge=0, le=MOST_BYTES)]
Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Member(StrictRecord):
    """One span of the token stream inside a shard."""

    offset: Bytes = Field(description="bytes from the start of the shard to the first token")
    tokens: int = Field(gt=0, le=MOST_MEMBER_TOKENS, description="tokens, which are fetched together")
    # Older manifests have neither: such datasets can be read only where they lie.
    sha256: Sha256 | None = Field(default=None, description="digest of the tokens' bytes")
    head_sha256: Sha256 | None = Field(
        default=None, description="digest of the bytes before the tokens: the documents' records and starts"
    )


class Shard(StrictRecord):
    """One tar file."""

    file: Name
    sha256: Sha256
    bytes: Bytes
    documents: Count
    tokens: Count
    members: tuple[Member, ...] = Field(min_length=1)

    def head(self, number: int, itemsize: int) -> tuple[int, int]:
        """(first, last + 1) byte of the head of member `number`: between its tokens and those of the previous
        member."""
        member = self.members[number]
        if number == 0:
            return 0, member.offset
        before = self.members[number - 1]
        end = before.offset + before.tokens * itemsize
        return -(-end // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES, member.offset

    @model_validator(mode="after")
    def _sums_up(self) -> Self:
        if self.tokens != sum(member.tokens for member in self.members):
            raise ValueError(f"{self.file} has another number of tokens than the sum of its members")
        return self
