"""Checks of a layout: each raises ConfigError with the violated rule, and the nearest legal value."""

from collections.abc import Mapping
from math import lcm

from pretrain.config.batch import BatchSize
from pretrain.config.model import Model
from pretrain.config.parallel import Parallel
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.divisors import check_divides, divisors, nearest
from pretrain.layout.expert_ranks import unsplit_experts
from pretrain.run_length.ramp import batch_sizes

FP8_BLOCK = 16
"""block size of 8-bit matrix products on GPUs, which divides all dimensions of such products"""


def check_tensor_ranks(config: RunConfig, is_new: bool) -> None:
    """Whether tensor ranks divide what they split. `is_new`: the padded vocabulary may still become another."""
    parallel, model = config.parallel, config.model
    if model.capabilities.self_attention:
        check_divides("parallel.tensor", parallel.tensor, "model.heads", model.heads)
    # Tensor ranks split the rows of queries, keys and values; KV heads that are fewer than the ranks are replicated.
    if model.kv_heads is not None and parallel.tensor % model.kv_heads:
        check_divides("parallel.tensor", parallel.tensor, "model.kv_heads", model.kv_heads)
    check_divides(
        "parallel.tensor", parallel.tensor, "(model.heads + 2 * model.kv_heads) * model.head_dim", _projected(model)
    )
    check_divides("parallel.tensor", parallel.tensor, "model.ffn", model.ffn_dim)
    if model.has_expert_layers and parallel.expert_tensor != 1:
        check_divides("parallel.tensor", parallel.tensor, "the size of model.experts", model.expert_ffn_dim)
    if model.qk_norm_span == "all_heads":
        check_divides("parallel.tensor", parallel.tensor, "model.kv_heads (model.qk_norm_span)", model.num_kv_heads)
    _check_vocabulary(parallel.tensor, model, is_new)
    if model.ffn_dropout and model.ffn_dim // parallel.tensor % 4:
        raise ConfigError(
            f"with model.ffn_dropout, each tensor rank needs a multiple of 4 features of model.ffn={model.ffn_dim}: "
            f"parallel.tensor={parallel.tensor} is too large"
        )
    _check_dropped_updates(parallel, model)


def _projected(model: Model) -> int:
    """Features of queries, keys and values."""
    return (model.heads + 2 * model.num_kv_heads) * model.dim_per_head


def _check_dropped_updates(parallel: Parallel, model: Model) -> None:
    """Whether each tensor rank has whole blocks of what drops out before low-rank updates."""
    lora = model.finetune.lora
    if lora is not None and lora.dropout:
        for target, key, features in (
            ("projection", "model.heads * model.head_dim", model.heads * model.dim_per_head),
            ("cross_projection", "model.heads * model.head_dim", model.heads * model.dim_per_head),
            ("fc2", "model.ffn", model.ffn_dim),
        ):
            if target in lora.targets and features // parallel.tensor % 4:
                raise ConfigError(
                    f"with finetune.lora.dropout and the target {target}, each tensor rank needs a multiple of 4 "
                    f"features of {key}={features}: parallel.tensor={parallel.tensor} is too large"
                )


def row_lengths(config: RunConfig) -> dict[str, int]:
    """Positions of rows that ranks may share, by their keys."""
    model = config.model
    lengths = {"model.sequence_length": model.sequence_length}
    if config.objective.row_length is not None:
        lengths = {"objective.sequence_length": config.objective.row_length}
    elif model.is_encoder_decoder:
        lengths["model.target_length"] = model.label_length
    if config.batch.short is not None:
        lengths["batch.short.sequence_length"] = config.batch.short.sequence_length
    return lengths


def check_context_ranks(parallel: Parallel, model: Model, lengths: Mapping[str, int]) -> None:
    """Whether context ranks divide the heads of a tensor rank, and the `lengths` of rows."""
    # Attention runs on full sequences and a share of each tensor rank's heads: see pretrain/attention/exchange.py.
    check_divides("parallel.context", parallel.context, "model.heads / parallel.tensor", model.heads // parallel.tensor)
    groups = max(1, model.num_kv_heads // parallel.tensor)
    if parallel.context % groups:
        check_divides("parallel.context", parallel.context, "model.kv_heads / parallel.tensor", groups)
    for name, length in lengths.items():
        check_divides("parallel.context", parallel.context, name, length)


def check_fp8_blocks(parallel: Parallel, model: Model) -> None:
    """Whether 8-bit matrix products have whole blocks on each tensor rank."""
    by_tensor = {"model.ffn": model.ffn_dim, "model.heads * model.head_dim": model.heads * model.dim_per_head}
    by_tensor["(model.heads + 2 * model.kv_heads) * model.head_dim"] = _projected(model)
    _check_blocks({"model.hidden": model.hidden}, "", 1)
    if model.positions.distance_linears:
        _check_blocks({"the number of vectors of distances of model.positions": model.distance_rows}, "", 1)
    if model.has_expert_layers:
        ranks = 1 if unsplit_experts(parallel) else parallel.tensor
        _check_blocks({"the size of model.experts": model.expert_ffn_dim}, "parallel.tensor", ranks)
    _check_blocks(by_tensor, "parallel.tensor", parallel.tensor)


def check_sequence_ranks(parallel: Parallel, lengths: Mapping[str, int]) -> None:
    """Whether tensor ranks divide the `lengths` of rows, where they share them."""
    if not parallel.sequence:
        return
    if parallel.tensor == 1:
        raise ConfigError(
            "parallel.sequence splits the sequence over tensor ranks, and parallel.tensor is 1: "
            "set parallel.sequence=false or parallel.tensor=2"
        )
    for name, length in lengths.items():
        slice_name = name + (" / parallel.context" if parallel.context > 1 else "")
        check_divides("parallel.tensor", parallel.tensor, slice_name, length // parallel.context)


def check_chunks(parallel: Parallel, model: Model) -> None:
    """Whether there are layers for all chunks of all stages."""
    if parallel.virtual > 1 and parallel.pipeline == 1:
        raise ConfigError("parallel.virtual interleaves pipeline stages, and parallel.pipeline is 1: set virtual=1")
    chunks = parallel.pipeline * parallel.virtual
    if chunks > sum(model.stacks):
        layers = " + ".join(str(count) for count in model.stacks if count)
        raise ConfigError(
            f"{layers} layers cannot be divided into {chunks} chunks (parallel.pipeline={parallel.pipeline} x "
            f"parallel.virtual={parallel.virtual}): use fewer"
        )


def check_equal_chunks(model: Model, parallel: Parallel) -> None:
    """Refuse layers that do not divide into chunks, for runs of two models."""
    chunks = parallel.pipeline * parallel.virtual
    if not model.is_encoder_decoder and model.layers % chunks:
        raise ConfigError(
            f"model.layers={model.layers} cannot be divided into {chunks} equal chunks "
            f"(parallel.pipeline={parallel.pipeline} x parallel.virtual={parallel.virtual}): "
            f"use a product of {nearest(divisors(model.layers), chunks)}"
        )


def _check_blocks(sizes: Mapping[str, int], name: str, ranks: int) -> None:
    """Check the dimensions of 8-bit matrix products, which `ranks` split."""
    for key, size in sizes.items():
        if size // ranks % FP8_BLOCK:
            dimension = f"{key} / {name}={ranks} is {size // ranks}" if ranks > 1 else f"{key} is {size}"
            raise ConfigError(
                f"precision=fp8 multiplies in blocks of {FP8_BLOCK}, but {dimension}: make it a multiple, or use bf16"
            )


def check_sharding(parallel: Parallel, replicas: int) -> None:
    """Refuse what the chosen engine does not support, or would silently ignore."""
    deepspeed = parallel.zero_engine == "deepspeed"
    if parallel.zero > 1 and not deepspeed:
        raise ConfigError(
            f"parallel.zero={parallel.zero} is not supported by megatron-core's distributed optimizer (0 and 1 are): "
            "set parallel.zero_engine=deepspeed, or parallel.zero=1"
        )
    if (parallel.offload_optimizer or parallel.offload_parameters) and not (deepspeed and parallel.zero):
        raise ConfigError(
            "offloading to host memory requires DeepSpeed's ZeRO, from stage 1 on: set parallel.zero_engine=deepspeed "
            "and parallel.zero=1 or more, or turn offloading off"
        )
    if parallel.offload_parameters and parallel.zero < 3:
        raise ConfigError(
            f"parallel.zero={parallel.zero} holds all parameters on each data rank, so parallel.offload_parameters "
            "has no effect: set parallel.zero=3, or turn it off"
        )
    if parallel.hpz > 1 and not (deepspeed and parallel.zero == 3):
        raise ConfigError(
            f"parallel.hpz={parallel.hpz} requires weights that data ranks shard: set parallel.zero_engine=deepspeed "
            "and parallel.zero=3, or leave it out"
        )
    check_divides("parallel.hpz", parallel.hpz, "the data ranks", replicas)
    if parallel.overlap and deepspeed and parallel.zero == 1:
        raise ConfigError(
            "DeepSpeed's stage 1 exchanges gradients once, after the last backward pass, so parallel.overlap has "
            "nothing to overlap: set parallel.zero=2 or parallel.zero_engine=megatron, or turn it off"
        )


def check_shared_weights(parallel: Parallel, key: str) -> None:
    """Refuse what does not work with layers that share parameters by `key`. With full recomputation each use has a
    backward pass of its own: their gradient arrives several times, and hooks that act on its first arrival act too
    early."""
    if parallel.virtual > 1:
        raise ConfigError(
            f"with {key}, a stage must have all its layers in one chunk, because each chunk would hold a "
            "copy: set parallel.virtual=1"
        )
    if parallel.recompute != "full":
        return
    if parallel.zero_engine == "deepspeed" and parallel.zero > 1:
        raise ConfigError(
            f"with {key} and parallel.recompute=full, a gradient arrives once for each layer, and "
            f"DeepSpeed's stage {parallel.zero} takes the first for the sum: set parallel.recompute=selective or none, "
            "or parallel.zero=1"
        )
    if parallel.overlap:
        raise ConfigError(
            f"with {key} and parallel.recompute=full, a gradient arrives once for each layer, and "
            "parallel.overlap sends the first: turn parallel.overlap off, or set parallel.recompute=selective"
        )


def check_shared_distances(parallel: Parallel, positions: str) -> None:
    """Refuse what does not work with vectors of distances that all layers read."""
    if parallel.virtual > 1:
        raise ConfigError(
            f"with model.positions={positions}, a stage must have all its layers in one chunk, because each chunk "
            "would hold a copy of the vectors of distances: set parallel.virtual=1"
        )


def check_batches(batch: BatchSize, parallel: Parallel, data: int) -> None:
    # The interleaved schedule moves micro-batches in groups of one per stage.
    group = data * (parallel.pipeline if parallel.virtual > 1 else 1)
    stages = f" x {parallel.pipeline} stages (interleaved)" if parallel.virtual > 1 else ""
    *ramp_sizes, full = batch_sizes(batch)  # during a ramp, micro-batches are smaller, too (`ramp.micro_sequences`)
    checks = [
        (full, group * batch.micro_sequences, "", f" x batch.micro_sequences={batch.micro_sequences}"),
        *((sequences, group, " (during batch.ramp)", "") for sequences in ramp_sizes),
    ]
    for sequences, divisor, ramped, micro in checks:
        if sequences % divisor:
            nearest = max(divisor, round(sequences / divisor) * divisor)
            raise ConfigError(
                f"a global batch of {sequences} sequences{ramped} does not divide over {data} data "
                f"ranks{micro}{stages}: the nearest that does is {nearest}"
            )


def _check_vocabulary(tensor: int, model: Model, is_new: bool) -> None:
    """Raises ConfigError for tensor ranks that do not divide the padded vocabulary, which a new run may pad to more."""
    try:
        check_divides("parallel.tensor", tensor, "the padded vocabulary", model.padded_vocab_size)
    except ConfigError as error:
        multiple = lcm(model.vocabulary_multiple, tensor)
        cure = f", or in a new run set model.vocabulary_multiple={multiple}, to pad it to more" if is_new else ""
        raise ConfigError(f"{error}{cure}") from None
