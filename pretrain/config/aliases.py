"""Names of keys in other systems (Megatron-LM, Hugging Face, torchtitan, DeepSpeed) and in common speech. `pretrain
keys` finds keys by these names too; a config has only our own."""

_RATE = ("optimizer.learning_rate", "schedule.name", "schedule.final_fraction")
_WARMUP = ("schedule.warmup_tokens", "schedule.warmup_steps", "schedule.warmup_fraction", "schedule.warmup")
_LENGTH = ("train.steps", "train.tokens")

ALIASES: dict[str, tuple[str, ...]] = {
    "lr min_lr lr_decay_style lr_scheduler lr_scheduler_type": _RATE,
    "warmup lr_warmup_iters lr_warmup_samples lr_warmup_fraction warmup_ratio": _WARMUP,
    "train_iters max_steps num_steps iterations": _LENGTH,
    "epochs num_epochs num_train_epochs": ("train.epochs", *_LENGTH),
    "micro_batch_size local_batch_size per_device_train_batch_size train_micro_batch_size_per_gpu": (
        "batch.micro_sequences",
    ),
    "gradient_accumulation gradient_accumulation_steps grad_accum": ("batch.micro_sequences", "batch.sequences"),
    "global_batch_size batch_size train_batch_size": ("batch.sequences",),
    "rampup_batch_size": ("batch.ramp",),
    "num_layers num_hidden_layers n_layers n_layer": ("model.layers",),
    "mtp_num_layers num_nextn_predict_layers": ("model.mtp.num_layers",),
    "mtp_loss_scaling_factor": ("model.mtp.loss_scaling_factor",),
    "hidden_size dim d_model n_embd emb_dim": ("model.hidden",),
    "num_attention_heads n_heads n_head": ("model.heads",),
    "num_query_groups num_key_value_heads n_kv_heads": ("model.kv_heads",),
    "kv_channels": ("model.head_dim",),
    "ffn_hidden_size intermediate_size d_ff": ("model.ffn",),
    "seq_length seq_len max_position_embeddings context_length n_positions block_size": ("model.sequence_length",),
    "vocab_size": ("model.vocabulary",),
    "make_vocab_size_divisible_by": ("model.vocabulary_multiple",),
    "hidden_dropout": ("model.dropout",),
    "hyena_filter_order hyena_emb_dim hyena_w residual_long_conv": ("model.mixer",),
    "monarch_mlp_nblocks": ("model.ffn_blocks",),
    "conv_act conv_kernel_size": ("model.convolution",),
    "rope rope_theta rotary_base": ("model.positions.name", "model.positions.base"),
    "rope_scaling": ("model.positions.scaling",),
    "sliding_window window_size": ("model.attention.window", "model.attention.pattern"),
    "tie_word_embeddings untie_embeddings_and_output_weights": ("model.tie_word_embeddings",),
    "init_method_std initializer_range": ("model.init.std",),
    "use_mup mup_base_hidden_size": ("model.mup.base_width",),
    "mup_base_head_dim": ("model.mup.base_head_dim",),
    "mup_embedding_mult embedding_multiplier": ("model.mup.input_multiplier",),
    "mup_output_mult logits_scaling": ("model.mup.output_multiplier",),
    "weight_decay wd": ("optimizer.weight_decay",),
    "grad_clip clip_grad gradient_clipping max_grad_norm max_norm": ("optimizer.clip_norm",),
    "adam_beta1 adam_beta2 betas": ("optimizer.beta1", "optimizer.beta2"),
    "adam_eps adam_epsilon": ("optimizer.eps",),
    "exp_avg_dtype exp_avg_sq_dtype": ("optimizer.moments",),
    "qk_clip qk_clip_alpha": ("optimizer.qk_clip_threshold",),
    "bf16 fp16 fp8 dtype mixed_precision torch_dtype": ("precision",),
    "initial_loss_scale": ("loss_scale.initial",),
    "tp tensor_model_parallel_size tensor_parallel_degree tp_size": ("parallel.tensor",),
    "pp pipeline_model_parallel_size pipeline_parallel_degree pp_size": ("parallel.pipeline",),
    "cp context_parallel_size context_parallel_degree": ("parallel.context",),
    "ep expert_model_parallel_size expert_parallel_degree ep_size": ("parallel.expert",),
    "etp expert_tensor_parallel_size expert_tensor_parallel_degree": ("parallel.expert_tensor",),
    "vpp num_layers_per_virtual_pipeline_stage": ("parallel.virtual",),
    "sequence_parallel": ("parallel.sequence",),
    "zero zero_stage fsdp use_distributed_optimizer": ("parallel.zero", "parallel.zero_engine"),
    "offload cpu_offload": ("parallel.offload_optimizer", "parallel.offload_parameters"),
    "activation_checkpointing gradient_checkpointing recompute_granularity": ("parallel.recompute",),
    "torch_compile compile": ("run.kernels",),
    "resume load init_from pretrained": ("run.start_from", "run.branch_from"),
    "save_interval save_steps checkpoint_interval": ("checkpoint.every_steps",),
    "save_total_limit keep_latest_k": ("checkpoint.keep",),
    "eval_interval eval_steps": ("evaluate.every_steps",),
    "eval_iters": ("evaluate.sequences",),
    "output_dir dump_folder": ("run.dir",),
    "data_path dataset train_data_path": ("data.path", "data.sources"),
    "num_workers": ("data.workers",),
    "wandb tensorboard report_to": ("track.kind", "track.mlflow", "track.uri"),
}
"""names of others, with _ for - and blanks -> ours"""


def called(name: str) -> tuple[str, ...]:
    """The keys that others call `name`, however it is written: `--lr`, `save interval`, `num-layers`."""
    plain = plainly(name)
    return tuple(key for names, keys in ALIASES.items() if plain in names.split() for key in keys)


def plainly(name: str) -> str:
    return name.strip().lstrip("-").lower().replace("-", "_").replace(" ", "_")
