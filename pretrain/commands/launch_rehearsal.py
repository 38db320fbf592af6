"""Rehearsal of a run on GPUs before `pretrain launch` queues it."""

import os
from collections.abc import Iterator

from launch.slurm.site import Site
from launch.slurm.site_gpu import gpu_of_site
from pretrain.config.run_config import RunConfig
from pretrain.errors import RunError


def rehearse_before_launch(config: RunConfig, site: Site, nodes: int) -> Iterator[str]:
    """Rehearses the first, middle and last rank, and yields lines that say so. Raises RunError if one of them cannot be
    built, make its step or fit, or if they disagree on their exchanges."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # megatron-core's, of accelerator libraries, in each process
    from pretrain.plan.planner import with_vocabulary
    from pretrain.rehearse.progress import RehearsalProgress
    from pretrain.rehearse.report import agreement_line
    from pretrain.rehearse.run import rehearse

    device = gpu_of_site(site)
    progress = RehearsalProgress()
    rehearsal = rehearse(
        with_vocabulary(config),
        nodes * site.ranks,
        ranks=("first", "middle", "last"),
        device=device,
        per_node=site.ranks,
        progress=progress.add,
    )
    progress.close()
    if rehearsal.problems:
        raise RunError(f"nothing was queued: {'; '.join(rehearsal.problems)} (--no-rehearse queues it as it is)")
    for rank in rehearsal.ranks:
        needed_gib = rank.needed_bytes / 2**30
        yield f"rehearsed rank {rank.rank}: makes its step, needs {needed_gib:,.1f} GiB of {device.memory_gib:g}"
    yield agreement_line(rehearsal.agreement)
