"""The GPUs of a site's nodes, and how much memory they have."""

from launch.gpus import hardware_of_constraint, unknown_memory
from launch.slurm.site import Site
from pretrain.errors import ConfigError
from pretrain.plan.device import Device, find_device

_KERNELS_OF = "h100"
"""Hardware in place of GPUs whose memory alone is known: only the kernels of a rehearsal depend on it."""


def gpu_of_site(site: Site) -> Device:
    """A GPU of the site's nodes: as `hardware` or `constraint` name it, with the memory that `gpu_memory_gib` says.
    Raises ConfigError where its memory is not known, and where the constraint admits nodes with less."""
    named = None if site.constraint is None else hardware_of_constraint(site.constraint)
    hardware = site.hardware or named
    if site.gpu_memory_gib is None and hardware is None:
        raise unknown_memory("hardware or gpu_memory_gib in the file of --cluster, or a --constraint that names them")
    device = find_device(hardware or _KERNELS_OF)
    if site.gpu_memory_gib is not None:
        device = device.model_copy(update={"memory_gib": site.gpu_memory_gib})
    if named is not None and (least := find_device(named).memory_gib) < 0.99 * device.memory_gib:
        raise ConfigError(
            f"'constraint' = {site.constraint} admits nodes with GPUs of {least:g} GiB ({named}), and the run is to be "
            f"checked for {device.memory_gib:g}: name these nodes' hardware with --hardware"
        )
    return device
