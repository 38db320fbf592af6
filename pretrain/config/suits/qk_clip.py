"""Runs that clip attention scores by their weights (`optimizer.qk_clip_threshold`)."""

from pretrain.config.optimizer import MuonOptimizer
from pretrain.config.run_sections import RunSections

_POSITIONS = ("learned", "sinusoidal", "rotary", "nope")
"""positions that leave a score a product of a query and a key"""


def check_qk_clip(config: RunSections) -> None:
    """Raises ValueError for models whose scores do not follow the weights of queries and keys."""
    model, optimizer, finetune = config.model, config.optimizer, config.finetune
    if not isinstance(optimizer, MuonOptimizer) or optimizer.qk_clip_threshold is None:
        return
    refused = None
    if model.has_encoder or model.recurrence is not None or model.task_head is not None:
        refused = "is for language models that are decoders with attention alone"
    elif model.positions.name not in _POSITIONS:
        refused = f"scales queries and keys, and model.positions={model.positions.name} adds to their products"
    elif model.qk_norm:
        refused = "scales weights, and model.qk_norm gives queries and keys one size whatever these are"
    elif model.attention_logit_softcap is not None:
        refused = "bounds scores, as model.attention_logit_softcap does"
    elif model.mtp is not None:
        refused = "scales the heads of layers, and model.mtp has others behind them"
    elif model.shared_layers:
        refused = "scales the heads of each layer, and with model.shared_layers all layers have the same"
    elif finetune.train != "all" or finetune.lora or finetune.adapters or finetune.unfreeze_steps:
        refused = "scales weights of all layers, and finetune freezes some"
    if refused is not None:
        raise ValueError(f"optimizer.qk_clip_threshold {refused}: leave it out")
