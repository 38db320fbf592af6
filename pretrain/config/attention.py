"""`model.attention`: who sees whom."""

from typing import Literal

from pydantic import Field

from pretrain.config.section import Section


class Attention(Section):
    pattern: list[Literal["dense", "banded"]] = Field(
        ["dense"], min_length=1, description="attention of layer i is pattern[i mod length]"
    )
    window: int = Field(256, gt=0, description="keys a banded query sees, itself included")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Each pattern once."""
        return tuple(dict.fromkeys(self.pattern))
