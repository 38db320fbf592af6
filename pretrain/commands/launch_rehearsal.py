"""Rehearsal of a run on GPUs before `pretrain launch` queues it."""

import os
from collections.abc import Iterator

from launch.slurm.site import Site
from pretrain.config.run_config import RunConfig
from pretrain.errors import RunError

_HARDWARE = "h100"
"""stands in for GPUs of any kind: only the kernels that torch picks depend on it"""
_UNKNOWN_MEMORY_GIB = 4096.0
"""more than any GPU has"""


def rehearse_before_launch(config: RunConfig, site: Site, nodes: int) -> Iterator[str]:
    """Rehearses the first, middle and last rank, and yields lines that say so. Raises RunError if one of them cannot be
    built, make its step or fit, or if they disagree on their exchanges."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # megatron-core's, of accelerator libraries, in each process
    from pretrain.plan.device import find_device
    from pretrain.plan.planner import with_vocabulary
    from pretrain.rehearse.progress import RehearsalProgress
    from pretrain.rehearse.run import rehearse

    memory = {"memory_gib": site.gpu_memory_gib or _UNKNOWN_MEMORY_GIB}
    progress = RehearsalProgress()
    rehearsal = rehearse(
        with_vocabulary(config),
        nodes * site.ranks,
        ranks=("first", "middle", "last"),
        device=find_device(_HARDWARE).model_copy(update=memory),
        per_node=site.ranks,
        progress=progress.add,
    )
    progress.close()
    if rehearsal.problems:
        raise RunError(f"nothing was queued: {'; '.join(rehearsal.problems)} (--no-rehearse queues it as it is)")
    limit = f" of {site.gpu_memory_gib:g}" if site.gpu_memory_gib else "; the site's gpu_memory_gib is not set"
    for rank in rehearsal.ranks:
        yield f"rehearsed rank {rank.rank}: makes its step, needs {rank.needed_bytes / 2**30:,.1f} GiB{limit}"
