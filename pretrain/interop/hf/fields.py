"""Fields of a config.json by their effect on what its model computes: those that are read here, those that change
nothing, and all others of the class, which are refused by name where they have another value than the class's
default."""

from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

from pretrain.errors import ConfigError

_CHANGE_NOTHING = {
    # ids, which are the tokenizer's, and settings of generation
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "mask_token_id", "decoder_start_token_id",
    "forced_eos_token_id", "forced_bos_token_id", "lang_id", "mask_index", "unk_index",
    # how it is computed, kept and returned
    "use_cache", "output_router_logits", "pretraining_tp", "slow_but_exact", "reorder_and_upcast_attn", "onnx_export",
    "reuse_len", "mem_len", "use_mems_eval", "use_mems_train",
    # initial weights, and those that files have in place of them
    "initializer_range", "initializer_factor", "init_std", "embed_init_std", "sinusoidal_pos_embds",
    # coefficients of a loss, which a run sets itself
    "router_aux_loss_coef", "aux_loss_alpha", "seq_aux",
    # heads of fine-tuned models, which `heads.py` and the gate judge
    "classifier_dropout", "classifier_dropout_prob", "qa_dropout", "seq_classif_dropout", "pooler_dropout",
    "pooler_hidden_act", "start_n_top", "end_n_top", "summary_activation", "summary_first_dropout",
    "summary_last_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "legacy",
    # said in another way: by layer_types, by tensors, by d_model and n_head
    "sliding_window", "sliding_window_pattern", "use_sliding_window", "max_window_layers", "type_vocab_size",
    "num_mtp_layers", "num_nextn_predict_layers", "layer_types", "d_head",
}  # fmt: skip
_OF_TRAINING = {
    "embd_pdrop": "resid_pdrop", "embed_dropout": "resid_dropout", "hidden_dropout": None, "activation_dropout": None,
    "encoder_layerdrop": None, "decoder_layerdrop": None, "router_jitter_noise": None,
}  # fmt: skip
"""field about training -> the field whose value further training takes for it here; None: it is done without"""
_SAME = {
    "decoder_attention_heads": "encoder_attention_heads",
    "decoder_ffn_dim": "encoder_ffn_dim",
}
"""fields of a second stack, whose sizes are the first's here"""
_OLDER = {
    # which transformers translates
    "rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor", "torch_dtype", "tie_word_embeddings",
    "model_type", "num_labels", "architectures", "name_or_path", "n_ctx", "n_positions", "head_dim", "_name_or_path",
    # which its releases wrote, and it does not read any more
    "task_specific_params", "output_past", "predict_special_tokens", "gradient_checkpointing", "directionality",
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    "ep_size", "attn_implementation", "position_embedding_type", "finetuning_task", "tokenizer_class", "pruned_heads",
    "prefix", "torchscript", "use_bfloat16", "cross_attention_hidden_size",
    "add_bias_logits", "add_final_layer_norm", "normalize_before", "normalize_embedding", "static_position_embeddings",
    "extra_pos_embeddings", "num_hidden_layers", "classif_dropout", "max_relative_positions", "transformers.js_config",
    "mm_tokens_per_image", "unsloth_fixed", "unsloth_version",
}  # fmt: skip


class NotedTree(dict[str, Any]):
    """A config.json that notes which of its keys are looked up."""

    def __init__(self, tree: dict[str, Any]) -> None:
        super().__init__(tree)
        self.read = set[str]()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


class NotedConfig:
    """A config of transformers that notes which of its fields are read."""

    def __init__(self, config: PretrainedConfig) -> None:
        self._config, self.noted = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._config, name)
        self.noted |= {name, self._config.attribute_map.get(name, name)}
        return value


def check(tree: dict[str, Any], kind: type[PretrainedConfig], read: Collection[str]) -> list[str]:
    """Sentences on what of `tree`, which class `kind` reads, is not continued or not read at all. Raises ConfigError
    for a field that would change what the model computes, and is not one of `read`."""
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)
    }
    of_every_class = {field.name for field in fields(PretrainedConfig)}
    own_name = {alias: name for alias, name in kind.attribute_map.items() if name in defaults}
    known = _OLDER | set(GenerationConfig().to_dict()) | set(kind().to_dict())
    other, unread = list[str](), list[str]()
    for key, value in tree.items():
        name = own_name.get(key, key)
        if {key, name} & (set(read) | _CHANGE_NOTHING | of_every_class) or value is None or key.startswith("_"):
            continue
        if name not in defaults:
            unread += [key] if value and key not in known else []
        elif name in _SAME:
            if value != tree.get(_SAME[name], defaults[_SAME[name]]):
                raise ConfigError(f"{key} {value} is not known here where it is not {_SAME[name]}")
        elif name in _OF_TRAINING:
            usual = _OF_TRAINING[name]
            if value != (tree.get(usual, defaults[usual]) if usual else 0):
                other.append(f"{key} {value}")
        elif value != defaults[name]:
            raise ConfigError(f"{key} {value} is not known here: it is {defaults[name]}")
    notes = [f"has {', '.join(other)} of training, which is not continued"] if other else []
    if unread:
        notes.append(f"has {', '.join(unread)}, which transformers' {kind.__name__} does not read: ignored")
    return notes
