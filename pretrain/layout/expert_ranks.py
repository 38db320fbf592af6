"""The rules for ranks that share the experts of layers."""

from pretrain.config.parallel import Parallel
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.divisors import check_divides


def check_expert_ranks(config: RunConfig, replicas: int, trains: bool) -> None:
    """Refuse expert ranks where nothing is theirs to share, and what is not computed with them, or where tensor ranks
    do not split experts."""
    parallel, experts = config.parallel, config.model.experts
    if experts is None:
        name = "expert" if parallel.expert > 1 else "expert_tensor"
        raise ConfigError(
            f"parallel.{name}={getattr(parallel, name)} shares the experts of layers, and the model has none: "
            + ("set parallel.expert=1" if name == "expert" else "leave it out")
        )
    if parallel.expert_tensor not in (None, 1, parallel.tensor):
        raise ConfigError(
            f"parallel.expert_tensor={parallel.expert_tensor}: all tensor ranks share the features of each expert, or "
            f"none: set it to parallel.tensor={parallel.tensor}, or to 1"
        )
    unsplit = unsplit_experts(parallel)
    check_divides("parallel.expert", parallel.expert, "model.experts.count", experts.count)
    teacher = config.distillation.model
    if teacher is not None and teacher.experts is not None:
        of_teacher = "model.experts.count of distillation.teacher"
        check_divides("parallel.expert", parallel.expert, of_teacher, teacher.experts.count)
    if unsplit:
        ranks = parallel.tensor * replicas
        check_divides("parallel.expert", parallel.expert, "the tensor, data and context ranks", ranks)
    else:
        check_divides("parallel.expert", parallel.expert, "the data and context ranks", replicas)
    if parallel.expert == 1 and not unsplit:
        return
    given = [f"parallel.expert={parallel.expert}"] * (parallel.expert > 1) + ["parallel.expert_tensor=1"] * unsplit
    undo = " and ".join(["parallel.expert=1"] * (parallel.expert > 1) + ["parallel.expert_tensor=null"] * unsplit)
    for without, instead in (
        (not trains, f"for scoring and generation each data rank holds all experts: set {undo}"),
        (
            parallel.shards_by_deepspeed and parallel.zero == 3,
            "DeepSpeed's stage 3 shards each weight over all data and context ranks, those of experts too: set "
            f"parallel.zero=2, or {undo}",
        ),
    ):
        if without:
            raise ConfigError(f"{', '.join(given)}: {instead}")


def unsplit_experts(parallel: Parallel) -> bool:
    return parallel.expert_tensor == 1 < parallel.tensor
