"""Names of process groups, in the words of `parallel.*`: for profiles and rehearsals."""

_NAMES = {
    "HOSTS": "hosts",
    "TENSOR_MODEL_PARALLEL": "tensor",
    "PIPELINE_MODEL_PARALLEL": "pipeline",
    "CONTEXT_PARALLEL": "context",
    "EXPERT_MODEL_PARALLEL": "expert",
    "MODEL_PARALLEL": "model",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "stage",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE": "optimizer",
    "DEFAULT_PG": "all",
}


def group_name(description: str) -> str:
    """Name of a process group, by megatron-core's or torch's description of it. All groups of data ranks are `data`."""
    words = description.upper().removesuffix("_GROUP")
    if "DATA_PARALLEL" in words and "TENSOR" not in words:
        return "data"
    return _NAMES.get(words, words.lower() or "all")
