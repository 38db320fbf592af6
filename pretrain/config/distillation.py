"""`distillation`: a teacher whose predictions a model learns, besides those of its own objective."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from data_pipeline.config import PathText
from pretrain.config.model import Model
from pretrain.config.section import Section


class Distillation(Section):
    """The loss is label_weight times the loss of the labels, plus kl_weight times the divergence from the teacher
    (Hinton et al. 2015, arXiv 1503.02531), plus cosine_weight times the cosine distance of hidden states (DistilBERT:
    Sanh et al. 2019, arXiv 1910.01108), plus distances of hidden states and of attention scores of all layers
    (TinyBERT: Jiao et al. 2019, arXiv 1909.10351)."""

    written_by_runs: ClassVar[tuple[str, ...]] = ("teacher_digest", "teacher_model")

    teacher: PathText | None = Field(
        None, description="run or checkpoint of the teacher, which is never updated; default: no distillation"
    )
    temperature: float = Field(
        1.0, gt=0, description="logits of both models are divided by this before the softmax (DistilBERT: 2)"
    )
    kl_weight: float = Field(
        1.0,
        ge=0,
        description="weight of the mean KL divergence of the model from the teacher times temperature^2 (DistilBERT: "
        "5); at all tokens of an encoder, at the labels of a decoder",
    )
    cosine_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the mean of 1 - cosine of both models' last hidden states, at the same positions "
        "(DistilBERT: 1); requires a teacher of the same hidden size",
    )
    label_weight: float = Field(1.0, ge=0, description="weight of the objective's own loss (DistilBERT: 2)")
    hidden_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the mean square difference of hidden states, summed over the embeddings and each of the "
        "model's layers, through a projection to the teacher's hidden size that is learned with the model (TinyBERT: "
        "1); for encoders on one pipeline stage",
    )
    attention_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the mean square difference of attention scores before the softmax, summed over the "
        "model's layers (TinyBERT: 1); requires a teacher with as many heads",
    )
    match_layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None,
        description="layers of the teacher that the model's layers are compared with, one for each, from 0, with "
        "hidden_weight or attention_weight; default: the last of every n, evenly (TinyBERT: [2, 5, 8, 11])",
    )
    start_layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None,
        description="layers of the teacher whose weights the model's layers begin with, one for each, from 0; all else "
        "begins with the teacher's too (DistilBERT: [0, 2, 4, 7, 9, 11]); default: weights are drawn",
    )
    teacher_digest: str | None = Field(
        None, description="digest of the teacher's checkpoint; written by the run, not by hand"
    )
    teacher_model: dict[str, Any] | None = Field(
        None, description="model of the teacher; written by the run, not by hand"
    )

    @model_validator(mode="after")
    def _weights_do_something(self) -> "Distillation":
        if self.teacher is None:
            for name in sorted(self.model_fields_set - {"teacher"}):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"distillation.{name} does nothing without distillation.teacher: leave it out")
        elif not (self.kl_weight or self.cosine_weight or self.compares_layers):
            raise ValueError(
                "distillation.kl_weight, cosine_weight, hidden_weight and attention_weight are 0, so that nothing is "
                "learned from distillation.teacher: set one of them"
            )
        elif self.match_layers is not None and not self.compares_layers:
            raise ValueError(
                "distillation.match_layers does nothing without distillation.hidden_weight or "
                "distillation.attention_weight: leave it out, or set one of them"
            )
        return self

    @property
    def compares_layers(self) -> bool:
        """Whether layers of both models are compared."""
        return bool(self.hidden_weight or self.attention_weight)

    def matched_layers(self, layers: int) -> tuple[int, ...]:
        """The teacher's layer for each of the `layers` of a model; none where layers are not compared."""
        if not self.compares_layers:
            return ()
        if self.match_layers is not None:
            return self.match_layers
        assert self.model is not None, "the teacher is resolved before it is used"
        every = self.model.layers // layers
        return tuple(every * number + every - 1 for number in range(layers))

    @property
    def model(self) -> Model | None:
        """The teacher's model; None without a teacher, or before its checkpoint was read (`data/resolve.py`)."""
        return None if self.teacher_model is None else Model.model_validate(self.teacher_model)
