"""`distillation`: a teacher whose predictions a model learns, besides those of its own objective."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from data_pipeline.config import PathText
from pretrain.config.model import Model
from pretrain.config.section import Section


class Distillation(Section):
    """The loss is label_weight times the loss of the labels, plus kl_weight times the divergence from the teacher
    (Hinton et al. 2015, arXiv 1503.02531), plus cosine_weight times the cosine distance of hidden states (DistilBERT:
    Sanh et al. 2019, arXiv 1910.01108)."""

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
        elif not self.kl_weight and not self.cosine_weight:
            raise ValueError(
                "distillation.kl_weight and distillation.cosine_weight are 0, so that nothing is learned from "
                "distillation.teacher: set one of them"
            )
        return self

    @property
    def model(self) -> Model | None:
        """The teacher's model; None without a teacher, or before its checkpoint was read (`data/resolve.py`)."""
        return None if self.teacher_model is None else Model.model_validate(self.teacher_model)
