"""Whether a run can go on a number of machines, before anything is queued or started there."""

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout
from pretrain.plan.capacity import check_fits
from pretrain.plan.fits import check_holds

_GIB = 2**30


def check(config: RunConfig, ranks: int, gpu_memory_gib: float | None) -> Layout:
    """Raises ConfigError for a layout that is not legal on so many ranks, or (where the memory of a GPU is known) a run
    that cannot fit. A vocabulary that only the data knows is taken to suit."""
    if config.model.vocabulary is None:
        suits = {"vocabulary": config.model.vocabulary_multiple}
        config = config.model_copy(update={"model": config.model.model_copy(update=suits)})
    layout = plan_layout(config, ranks)
    if gpu_memory_gib is not None:
        check_fits(config, layout, gpu_memory_gib * _GIB, host=False)
        check_holds(config, layout, gpu_memory_gib * _GIB)
    return layout


def most_nodes(config: RunConfig, nodes: int, ranks_per_node: int) -> int:
    """The most of `nodes` that the run can use, with its global batch as it is. Raises ConfigError if it can use
    none."""
    problem = "no node is left"
    for few in range(nodes, 0, -1):
        try:
            check(config, few * ranks_per_node, None)
        except ConfigError as error:
            problem = str(error)
        else:
            return few
    raise ConfigError(f"the run cannot go on with {nodes} nodes of {ranks_per_node} ranks: {problem}")
