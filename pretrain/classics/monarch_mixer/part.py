"""Settings that go with long convolutions and block-diagonal matrices."""

from collections.abc import Mapping
from math import lcm
from typing import Any

from pretrain.classics.monarch_mixer.key import BLOCKS_KEY, MIXER_KEY, Mixer
from pretrain.config.attention import Dense
from pretrain.config.model_values import ModelValues
from pretrain.config.parallel import Parallel
from pretrain.config.part import ModelPart, RunSettings, SmallSizes
from pretrain.layout.divisors import indivisible


def _check_family(part: ModelPart[Any], model: ModelValues) -> None:
    """Raises ValueError for a family that can't have the settings."""
    if part.of(model) is not None and part.key.name not in model.capabilities.parts:
        raise ValueError(
            f"model.mixer and model.ffn_blocks are for the {part.families} family: leave them out for {model.family}"
        )


class MixerPart(ModelPart[Mixer]):
    """See `Mixer`. What goes with them is checked with the blocks, which every model of the family has."""

    key = MIXER_KEY

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        _check_family(self, model)


class BlocksPart(ModelPart[int]):
    """Layers of the family, of whose feed-forward matrices there are so many blocks."""

    key = BLOCKS_KEY

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        _check_family(self, model)
        if self.key.name not in model.capabilities.parts:
            return
        if not all(isinstance(kind, Dense) for kind in model.attention.kinds):
            raise ValueError(
                f"model.attention.pattern does nothing in the {model.family} family, whose layers have no attention: "
                "leave it out"
            )
        if model.heads != 1:
            raise ValueError(
                f"model.heads={model.heads} counts heads of attention, which the {model.family} family has not: set "
                "model.heads=1"
            )
        blocks = self.of(model)
        if blocks is None or blocks % 2:
            raise ValueError(
                f"model.ffn_blocks={blocks or 1}: half of the blocks make gates and half values, so use an even number"
            )
        for name, size in (("hidden", model.hidden), ("ffn", model.ffn_dim)):
            if size % blocks:
                raise ValueError(f"model.{name}={size} is not a multiple of model.ffn_blocks={blocks}: use one that is")

    def check_run(self, config: RunSettings) -> None:
        """See `ModelPart`."""
        super().check_run(config)
        model, finetune = config.model, config.finetune
        if self.of(model) is None:
            return
        if finetune.adapters is not None or finetune.lora is not None:
            raise ValueError(
                f"finetune.adapters and finetune.lora are beside attention and full matrices, which the {model.family} "
                "family has not: leave them out"
            )
        if config.precision == "fp8":
            raise ValueError(
                f"precision=fp8 multiplies full matrices, and the {model.family} family has block-diagonal ones and "
                "convolutions: use bf16"
            )

    def refuses(self, model: ModelValues, parallel: Parallel) -> str | None:
        """See `ModelPart`. Tensor ranks share channels and blocks in place of heads."""
        blocks = self.of(model)
        if blocks is None:
            return None
        for name, size in (("ffn_blocks", blocks), ("hidden", model.hidden)):
            if (reason := indivisible("parallel.tensor", parallel.tensor, f"model.{name}", size)) is not None:
                return reason
        for name, given, value in (("context", parallel.context > 1, 1), ("sequence", parallel.sequence, "false")):
            if given:
                return (
                    f"parallel.{name} splits sequences, and a long convolution of the {model.family} family reads each "
                    f"channel of a full one: set parallel.{name}={value} and share channels by parallel.tensor"
                )
        if parallel.recompute == "selective":
            return (
                f"parallel.recompute=selective recomputes attention, which the {model.family} family has not: use full "
                "or none"
            )
        return None

    def shrunk(self, model: ModelValues, sizes: SmallSizes) -> Mapping[str, Any]:
        """See `ModelPart`."""
        blocks = self.of(model)
        if blocks is None:
            return {}
        hidden = -(-sizes.hidden // blocks) * blocks
        features = lcm(sizes.ffn // sizes.hidden * hidden, sizes.share, blocks)
        return {"model": {"heads": 1, "hidden": hidden, "ffn": features}}


MIXER = MixerPart()
FFN_BLOCKS = BlocksPart()
