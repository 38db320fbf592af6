"""Names of libraries that the product uses although the libraries do not promise them, and where they are defined.

They are looked up in the libraries' sources, since importing all of them takes half a minute.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.helpers.sources import nodes

USED: dict[str, tuple[str, ...]] = {
    "megatron.core.distributed.distributed_data_parallel": (
        *("DistributedDataParallel.bucket_groups", "DistributedDataParallel.expert_parallel_bucket_groups"),
        *("DistributedDataParallel.no_sync", "DistributedDataParallel.scale_gradients"),
        *("DistributedDataParallel.start_param_sync", "DistributedDataParallel.zero_grad_buffer"),
    ),
    "megatron.core.distributed.param_and_grad_buffer": (
        *("_ParamAndGradBucket.grad_data", "_ParamAndGradBucket.offset", "_ParamAndGradBucket.params_list"),
        *("_ParamAndGradBucketGroup.buckets", "_ParamAndGradBucketGroup.grad_reduce_handle"),
        *("_ParamAndGradBucketGroup.start_grad_sync", "_ParamAndGradBuffer.param_index_map"),
        "_ParamAndGradBuffer.buckets",
    ),
    "megatron.core.optimizer.clip_grads": ("torch",),
    "megatron.core.optimizer.distrib_optimizer": (
        *("DistributedOptimizer._copy_main_params_to_model_params", "DistributedOptimizer._get_model_param_range_map"),
        *(
            "DistributedOptimizer.buffers",
            "DistributedOptimizer.data_parallel_group",
            "DistributedOptimizer.model_chunks",
        ),
        *("DistributedOptimizer.model_float16_groups", "DistributedOptimizer.model_fp32_groups"),
        *("DistributedOptimizer.shard_fp32_from_float16_groups", "DistributedOptimizer.shard_fp32_groups"),
    ),
    "megatron.core.optimizer.grad_scaler": ("torch",),
    "megatron.core.optimizer.optimizer": (
        *("torch", "ChainedOptimizer.chained_optimizers", "FP32Optimizer.prepare_grads"),
        "MegatronOptimizer.get_grads_for_grad_norm | MegatronOptimizer.get_main_grads_for_grad_norm",
        *("MegatronOptimizer.get_grad_stats_parallel_group", "MegatronOptimizer.get_parameters"),
        *("MixedPrecisionOptimizer.prepare_grads", "MixedPrecisionOptimizer.step_with_ready_grads"),
        "Float16OptimizerWithFloat16Params._copy_main_params_to_model_params",
        *(
            "Float16OptimizerWithFloat16Params.float16_groups",
            "Float16OptimizerWithFloat16Params.fp32_from_fp32_groups",
        ),
        "Float16OptimizerWithFloat16Params.fp32_from_float16_groups",
    ),
    "megatron.core.pipeline_parallel.schedules": ("torch", "forward_backward_pipelining_without_interleaving"),
    "megatron.core.tensor_parallel.layers": (
        *("ColumnParallelLinear._forward_impl", "RowParallelLinear._forward_impl"),
        *("VocabParallelEmbedding.tp_group", "VocabParallelEmbedding.vocab_start_index"),
        "VocabParallelEmbedding.vocab_end_index",
    ),
    "megatron.core.tensor_parallel.random": ("_get_cuda_rng_state", "_set_cuda_rng_state"),
    "megatron.core.transformer.attention": (
        *("Attention._checkpointed_attention_forward", "Attention.hidden_size_per_attention_head"),
        *("Attention.pg_collection", "CrossAttention.get_query_key_value_tensors", "CrossAttention.linear_kv"),
        *("CrossAttention.linear_q", "SelfAttention.get_query_key_value_tensors", "SelfAttention.k_layernorm"),
        "SelfAttention.q_layernorm",
    ),
    "megatron.core.transformer.mlp": ("MLP.activation_func", "MLP.linear_fc1", "MLP.linear_fc2"),
    "megatron.core.transformer.transformer_layer": (
        *("TransformerLayer.bias_dropout_add_exec_handler", "TransformerLayer.layer_number"),
        *("TransformerLayer.mlp", "TransformerLayer.tp_group"),
    ),
    "deepspeed.comm.comm": ("cdb", "init_distributed"),
    "deepspeed.runtime.comm.coalesced_collectives": ("_torch_reduce_scatter_fn", "reduce_scatter_coalesced"),
    "deepspeed.runtime.zero.parameter_offload": (
        *("FWD_MODULE_STACK", "DeepSpeedZeRoOffload.fwd_pre_hook", "DeepSpeedZeRoOffload.partition_all_parameters"),
        *("DeepSpeedZeRoOffload.release_backward_leftovers", "*.ds_grads_remaining", "*.ds_id"),
    ),
    "deepspeed.runtime.zero.partition_parameters": ("Init.dtype", "Init.param_id", "*.ds_numel", "*.partition_numel"),
    "deepspeed.runtime.zero.partitioned_param_coordinator": ("PartitionedParameterCoordinator.__params_to_release",),
    "deepspeed.runtime.zero.stage3": (
        *("reduce_scatter_coalesced", "DeepSpeedZeroOptimizer_Stage3._reassign_or_swap_out_partitioned_parameters"),
        *("DeepSpeedZeroOptimizer_Stage3.averaged_gradients", "DeepSpeedZeroOptimizer_Stage3.clear_backward_seen_flag"),
        *("DeepSpeedZeroOptimizer_Stage3.destroy", "DeepSpeedZeroOptimizer_Stage3.fp16_groups"),
        "DeepSpeedZeroOptimizer_Stage3.finalize_gradient_accumulation_boundary",
        *("DeepSpeedZeroOptimizer_Stage3.fp16_partitioned_groups_flat", "DeepSpeedZeroOptimizer_Stage3.has_overflow"),
        *("DeepSpeedZeroOptimizer_Stage3.fp32_partitioned_groups_flat", "DeepSpeedZeroOptimizer_Stage3.micro_step_id"),
        "DeepSpeedZeroOptimizer_Stage3.grad_partitions_flat_buffer",
        "DeepSpeedZeroOptimizer_Stage3.invalidate_secondary_tensor",
        "DeepSpeedZeroOptimizer_Stage3.overlapping_partition_gradients_reduce_epilogue",
        *("DeepSpeedZeroOptimizer_Stage3.parameter_offload", "DeepSpeedZeroOptimizer_Stage3.persistent_parameters"),
        "DeepSpeedZeroOptimizer_Stage3.set_gradient_accumulation_boundary",
    ),
    "deepspeed.runtime.zero.stage_1_and_2": (
        *("DeepSpeedZeroOptimizer._use_compact_grad_partition_buffer", "DeepSpeedZeroOptimizer.averaged_gradients"),
        *("DeepSpeedZeroOptimizer.bit16_groups", "DeepSpeedZeroOptimizer.clear_backward_seen_flag"),
        *("DeepSpeedZeroOptimizer.destroy", "DeepSpeedZeroOptimizer.finalize_gradient_accumulation_boundary"),
        *("DeepSpeedZeroOptimizer.has_overflow", "DeepSpeedZeroOptimizer.partition_size"),
        "DeepSpeedZeroOptimizer.overlapping_partition_gradients_reduce_epilogue",
        *("DeepSpeedZeroOptimizer.reduce_gradients", "DeepSpeedZeroOptimizer.reset_cpu_buffers"),
        *("DeepSpeedZeroOptimizer.round_robin_bit16_offsets", "DeepSpeedZeroOptimizer.update_lp_params"),
        "DeepSpeedZeroOptimizer.set_gradient_accumulation_boundary",
        "DeepSpeedZeroOptimizer.single_partition_of_fp32_groups",
    ),
    "deepspeed.utils.groups": ("_ZERO_PARAM_INTRA_PARALLEL_GROUP",),
    "sacrebleu.metrics.base": ("Score._ci",),
    "torch._dynamo.config": ("recompile_limit",),
    "torch._dynamo.trace_rules": ("clear_lru_cache",),
    "torch._subclasses.fake_tensor": (
        *("FakeTensor.fake_device", "FakeTensor.fake_mode", "FakeTensorMode.avoid_device_init"),
        *("FakeTensorMode.dispatch", "FakeTensorMode.in_kernel_invocation", "init_gpu_context"),
    ),
    "torch.cuda.memory": ("_dump_snapshot", "_record_memory_history"),
    "torch.distributed.distributed_c10d": ("_get_default_group", "set_timeout | _set_pg_timeout"),
    "torch.nn.modules.module": ("Module._apply", "Module._buffers", "Module._parameters"),
    "transformers.configuration_utils": ("*._experts_implementation",),
    "transformers.modeling_utils": (
        *("PreTrainedModel._from_config", "PreTrainedModel._keys_to_ignore_on_load_unexpected"),
        "PreTrainedModel._tied_weights_keys",
    ),
}
"""module -> names in it, or attributes of its classes ("*": of any object); "A | B": one of both, by release"""

UNPROMISED = ("megatron", "deepspeed")
"""libraries of which every imported name is looked up; of others those with an underscore"""
_CONCERNED = re.compile(rf"{'|'.join(UNPROMISED)}|import[^#\n]*[ .]_[A-Za-z]|from[^#\n]*[ .]_[A-Za-z]")
"""in the text of a file that is worth parsing"""
COMPILED = "torch._C"
"""has no source"""


def imported(product: dict[str, Path], root: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each import in the product that no library promises; the name is empty for a module alone."""
    sources = ((root / path).read_text(encoding="utf-8") for path in product.values())
    for source in filter(_CONCERNED.search, sources):
        for node in nodes(source):
            if isinstance(node, ast.Import):
                pairs = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                pairs = [(node.module, alias.name) for alias in node.names]
            else:
                continue
            for module, name in pairs:
                parts = f"{module}.{name}".split(".")
                private = any(part.startswith("_") and not part.startswith("__") for part in parts)
                if parts[0] not in sys.stdlib_module_names and (private or parts[0] in UNPROMISED):
                    yield module, name


def is_installed(library: str) -> bool:
    """Whether a library is there at all."""
    return _is_module(library)


def defines(module: str, names: str) -> bool:
    """Whether the source of `module` has a name: its own, an imported one, a module below it, or `CLASS.ATTRIBUTE`,
    with what classes inherit. `names`: one, or several of which one is enough."""
    return any(_has(module, name) for name in names.split(" | "))


def _has(module: str, name: str) -> bool:
    if module.startswith(COMPILED):
        return _compiled_has(module, name)
    owner, _, attribute = name.rpartition(".")
    if not name:
        return _is_module(module)
    if not owner:
        return _binds(_text(module), name) or _is_module(f"{module}.{name}")
    if owner == "*":
        return re.search(rf"\.{attribute}\b", _text(module)) is not None
    return attribute in _attributes_of(module, owner)


def _binds(text: str, name: str) -> bool:
    """Whether the source defines, assigns or imports the name, or its `__getattr__` knows it."""
    defined = rf"(?:def|class) {name}\b|{name}\s*(?::[^=\n]*)?=(?!=)|{name},?\s*(?:#.*)?$"
    return re.search(rf'^\s*(?:{defined})|\bimport\b.*\b{name}\b|== "{name}"', text, re.MULTILINE) is not None


def _compiled_has(module: str, name: str) -> bool:
    import torch.distributed

    found: object = torch
    for part in f"{module}.{name}".split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


@cache
def _attributes_of(module: str, name: str) -> frozenset[str]:
    return frozenset(attribute for found in _classes(module, name) for attribute in _attributes(found))


def _classes(module: str, name: str) -> Iterator[ast.ClassDef]:
    """The class of this name, and those that it inherits from, wherever these are defined."""
    for node in _statements(_tree(module)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield node
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield from _classes(module, base.id)
            return
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    yield from _classes(_imported_module(module, node), alias.name)
                    return


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a module, including those under conditions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            if not isinstance(child, ast.ClassDef | ast.FunctionDef):
                yield from _statements(child)


def _imported_module(module: str, node: ast.ImportFrom) -> str:
    """The module that a statement in `module` imports from."""
    if not node.level:
        return str(node.module)
    source = _source(module)
    package = module.split(".") if source is not None and source.name == "__init__.py" else module.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(ast.Name("self"), attr=name, ctx=ast.Store()):
                yield name


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_text(module))


@cache
def _text(module: str) -> str:
    source = _source(module)
    return "" if source is None else source.read_text(encoding="utf-8")


@cache
def _source(module: str) -> Path | None:
    below = Path(*module.split("."))
    candidates = (Path(folder) / name for folder in sys.path for name in (below / "__init__.py", f"{below}.py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _is_module(module: str) -> bool:
    """Whether it is there, be it a namespace without a source."""
    below = Path(*module.split("."))
    return _source(module) is not None or any((Path(folder) / below).is_dir() for folder in sys.path)
