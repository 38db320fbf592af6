"""The check, before an engine is built, that every rank has the memory that its share of the model takes."""

from pretrain.config.run_config import RunConfig
from pretrain.engine.collective import gather
from pretrain.engine.device import available_bytes
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.plan.memory_check import check_memory


def check_memory_on_all_ranks(config: RunConfig, layout: Layout, trains: bool = True) -> None:
    """Raises ConfigError on every rank where one has too little memory. Collective."""
    problem = None
    try:
        available, host = available_bytes()
        check_memory(config, layout, available, host=host, trains=trains)
    except ConfigError as error:
        problem = str(error)
    first = next((problem for problem in gather(problem) if problem is not None), None)
    if first is not None:
        raise ConfigError(first)
