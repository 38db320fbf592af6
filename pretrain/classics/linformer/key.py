"""The settings of Linformer's pattern. No torch."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from pretrain.config.patterns.base import MaskRule, PatternSettings, width


class Linformer(PatternSettings):
    """Keys and values are projected along the sequence (Wang et al. 2020, arXiv 2006.04768, section 4)."""

    projects_keys: ClassVar[bool] = True
    name: Literal["linformer"] = "linformer"
    projected_length: int = Field(gt=0, description="keys and values that are left of a sequence (k; paper: 128, 256)")
    sharing: Literal["headwise", "key_value", "layerwise"] = Field(
        "headwise",
        description="which projections are one. headwise: those of all heads of a layer, keys and values apart; "
        "key_value: of keys and values too; layerwise: of all layers too",
    )

    @property
    def shares_values(self) -> bool:
        """Whether keys and values have one projection."""
        return self.sharing != "headwise"

    @property
    def layers_share_by(self) -> str | None:
        """See `PatternSettings`."""
        return "sharing=layerwise" if self.sharing == "layerwise" else None

    def head(self, layer: int, head: int, length: int | None) -> MaskRule:
        return self

    def attends(self, query: Any, key: Any) -> Any:
        return True

    def mean_keys(self, length: int, causal: bool) -> float:
        """Twice the projected length: projecting a position's key and value costs as much as attending to them."""
        return 2.0 * self.projected_length

    @property
    def key_copies(self) -> float:
        return 0.0

    def check(self, length: int, encoder: bool, decoder: bool) -> None:
        if decoder:
            raise ValueError("it is for encoders alone, as a projected key is made of later positions too")
        if self.projected_length > length:
            raise ValueError(
                f"projected_length={self.projected_length} is more than model.sequence_length={length}: all keys would "
                "cost less"
            )

    def scaled(self, length: int, of: int) -> Self:
        return self.model_copy(update={"projected_length": width(self.projected_length, length, of)})
