"""Runs that train a part of their model."""

from pretrain.config.finetune import LORA_TARGETS, Finetune, Lora
from pretrain.config.model import Model
from pretrain.config.run_sections import RunSections


def check_trained(config: RunSections) -> None:
    """Raises ValueError for parts that the model does not have, or that exclude each other."""
    model, finetune = config.model, config.finetune
    layers = sum(model.stacks)
    if finetune.layers is not None and finetune.train != "top":
        raise ValueError("finetune.layers is the number of layers of finetune.train=top: leave it out, or set that")
    if finetune.train == "top":
        if finetune.layers is None:
            raise ValueError("finetune.train=top trains the last finetune.layers layers: set it")
        if finetune.layers > layers:
            raise ValueError(f"finetune.layers={finetune.layers} is more than the {layers} layers of the model")
        if model.shared_layers or model.tie_encoder_decoder:
            raise ValueError(
                "finetune.train=top chooses among layers, and the model's have weights in common: set "
                "finetune.train=all or head"
            )
    if finetune.train == "head" and model.task_head is None:
        raise ValueError(
            f"finetune.train=head trains a task head, and objective.name={config.objective.name} has none: choose "
            "classification, or another objective with a head, or set finetune.train"
        )
    if finetune.rate_decay != 1 and (model.shared_layers or model.tie_encoder_decoder):
        raise ValueError(
            "finetune.rate_decay gives each layer a learning rate, and the model's have weights in common: leave it out"
        )
    if finetune.unfreeze_steps and finetune.train == "head":
        raise ValueError(
            "finetune.unfreeze_steps lets the layers below the head join, which finetune.train=head freezes: leave "
            "one of them out"
        )
    if finetune.adapters is not None:
        if finetune.train != "all" or finetune.lora is not None:
            chosen = "finetune.lora" if finetune.lora is not None else f"finetune.train={finetune.train}"
            raise ValueError(
                f"finetune.adapters and {chosen} each choose what is trained of the layers: leave one of them out"
            )
        if config.precision == "fp8":
            raise ValueError("finetune.adapters is for fp32, bf16 and fp16: set precision")
    if finetune.lora is not None:
        if finetune.train != "all":
            raise ValueError(
                f"finetune.lora freezes the model's own layers, which finetune.train={finetune.train} trains: "
                "leave one of them out"
            )
        if config.precision == "fp8":
            raise ValueError("finetune.lora is for fp32, bf16 and fp16: set precision")
        having = [
            name
            for name, (path, *_) in LORA_TARGETS.items()
            if model.is_encoder_decoder or not path.startswith("cross_attention.")
        ]
        for target in finetune.lora.targets:
            if target not in having:
                raise ValueError(
                    f"finetune.lora.targets={target} matches no linear layer of this model: use {', '.join(having)}"
                )
        _check_modules_to_save(model, finetune, finetune.lora)


def _check_modules_to_save(model: Model, finetune: Finetune, lora: Lora) -> None:
    """Raises ValueError for modules that are no other ones, and for rates that no parameter has."""
    saved = lora.modules_to_save
    if len(set(saved)) < len(saved):
        raise ValueError(f"finetune.lora.modules_to_save=[{', '.join(saved)}] has a module twice: name it once")
    if "head" in saved and model.task_head is not None:
        raise ValueError(
            "finetune.lora.modules_to_save: head is the output layer of tokens, and a task head is trained in any "
            "case: leave it out"
        )
    if "head" in saved and "embedding" not in saved and model.tie_word_embeddings:
        raise ValueError(
            "finetune.lora.modules_to_save=[head]: model.tie_word_embeddings makes the output layer the token "
            "embeddings, so that both are trained: name embedding too"
        )
    has_own_head = model.capabilities.masked_head or model.capabilities.head_bias or not model.tie_word_embeddings
    for key, rate, has in (
        ("embedding", lora.embedding_rate, "embedding" in saved),
        ("head", lora.head_rate, "head" in saved and has_own_head),
    ):
        if rate != 1 and not has:
            why = (
                "the output layer is tied to the token embeddings and has their rate"
                if key in saved
                else f"finetune.lora.modules_to_save does not name {key}"
            )
            raise ValueError(f"finetune.lora.{key}_rate={rate} is the rate of no parameter, as {why}: leave it out")
        if rate != 1 and finetune.rate_decay != 1:
            raise ValueError(
                f"finetune.lora.{key}_rate and finetune.rate_decay each give the {key} a learning rate: leave one of "
                "them out"
            )
