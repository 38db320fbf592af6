"""Checks that a run fits a number of nodes, before anything is queued or started on them."""

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout
from pretrain.plan.memory_check import check_memory

_GIB = 2**30


def check(config: RunConfig, ranks: int, gpu_memory_gib: float | None) -> Layout:
    """Layout of the run. Raises ConfigError for a layout that is not legal on `ranks`, or (where the memory of a GPU is
    known) a run that does not fit. A vocabulary size that only the data has is assumed to suit."""
    if config.model.vocabulary is None:
        suits = {"vocabulary": config.model.vocabulary_multiple}
        config = config.model_copy(update={"model": config.model.model_copy(update=suits)})
    layout = plan_layout(config, ranks)
    if gpu_memory_gib is not None:
        check_memory(config, layout, gpu_memory_gib * _GIB, host=False)
    return layout


def most_nodes(config: RunConfig, nodes: int, ranks_per_node: int) -> int:
    """Largest number of nodes, at most `nodes`, that the run can use with its global batch unchanged. Raises
    ConfigError if there is none."""
    problem = "no node is left"
    for few in range(nodes, 0, -1):
        try:
            check(config, few * ranks_per_node, None)
        except ConfigError as error:
            problem = str(error)
        else:
            return few
    raise ConfigError(f"the run cannot resume on {nodes} nodes of {ranks_per_node} ranks: {problem}")
