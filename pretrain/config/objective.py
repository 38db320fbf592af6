"""`objective`: what samples are, and how answers are judged."""

from pydantic import Field, model_validator

from data_pipeline import config as data
from pretrain.config.section import refuse_idle


class Objective(data.Objective):
    """What samples are, which the data pipeline makes, and how answers are judged."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="part of each target's probability that all ids share alike (Transformer)"
    )

    @model_validator(mode="after")
    def _fields_do_something(self) -> "Objective":
        always = {"name", "label_smoothing"}
        refuse_idle(self, "objective", type(self).model_fields.keys() - always - _READ[self.name])
        if not self.next_sentence:
            refuse_idle(self, "objective", ("short_fraction",), "next_sentence")
        return self


# What each objective reads of its section.
_READ = {
    "causal": {"packing"},
    "masked": {"noise_density", "whole_words", "next_sentence", "short_fraction"},
    "span_corruption": {"noise_density", "mean_span", "sentinels"},
    "bert_style": {"noise_density"},
    "mass_style": {"noise_density"},
    "drop": {"noise_density"},
    "prefix_lm": set[str](),
    "deshuffling": set[str](),
    "denoising": {"noise_density", "mean_span", "noise"},
    "pairs": set[str](),
}
