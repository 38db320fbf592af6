"""Runs of a generator and a model that finds what it replaced."""

from pretrain.config.families import CAPABILITIES
from pretrain.config.finetune import Finetune
from pretrain.config.run_sections import RunSections


def check_generator(config: RunSections) -> None:
    """Raises ValueError for a generator, or for a run without one, that do not suit the objective."""
    if (config.generator is None) != (config.objective.loss != "replaced_tokens"):
        raise ValueError(
            "generator and objective.name=replaced_tokens go together: one model replaces tokens, and the other "
            "finds them: set both, or none"
        )
    if config.generator is None:
        return
    model = config.model
    if not model.capabilities.generator:
        having = " or ".join(name for name, can in CAPABILITIES.items() if can.generator)
        raise ValueError(f"generator is for model.family={having}: set it in place of {model.family}")
    if "embedding_size" in model.capabilities.only and config.generator.hidden != model.hidden:
        raise ValueError(
            f"generator.hidden={config.generator.hidden} needs a projection of embeddings, which the {model.family} "
            f"family does not have: set generator.hidden={model.hidden}"
        )
    if not model.tie_word_embeddings or model.shared_layers:
        raise ValueError(
            "generator shares embeddings with the model: set model.tie_word_embeddings=true and "
            "model.shared_layers=false"
        )
    if config.finetune != Finetune() or config.distillation.teacher is not None:
        raise ValueError("generator is trained with the model: leave out finetune and distillation")
    if config.precision == "fp8":
        raise ValueError("generator is for fp32, bf16 and fp16: set precision")
    if config.evaluate.tasks:
        raise ValueError("evaluate.tasks scores language models, and the model of generator finds tokens: leave it out")
    config.generator.of(model)
