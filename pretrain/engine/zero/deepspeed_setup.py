"""DeepSpeed beside megatron-core: imported so that it keeps quiet, and talking over the process group that is there.

Only its ZeRO optimizers are used, not `deepspeed.initialize`: its engine wants to own the step (batch sizes, gradient
accumulation, averaging, loss scale, clipping, checkpoints), and all of that is the project's here.
"""

import logging
import os

import torch


def prepare() -> None:
    """Imports DeepSpeed."""
    os.environ.setdefault("LOCAL_RANK", "0")  # read where parameters are created
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        os.environ.setdefault("LOCAL_SIZE", "1")  # devices here, or `numactl` is started to count them in every pass
    os.environ.setdefault("DS_LOG_LEVEL", "warning")
    import deepspeed
    from deepspeed.ops import __compatible_ops__

    logging.getLogger(deepspeed.__name__).setLevel(logging.WARNING)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    __compatible_ops__["deepspeed_shm_comm"] = False  # or joining compiles it, for up to a minute


def join() -> None:
    """Has DeepSpeed use the default process group, which exists. Called again after another one was joined."""
    prepare()
    from deepspeed.comm import comm

    comm.cdb = None  # that of a process group left since
    comm.init_distributed("nccl" if torch.cuda.is_available() else "gloo", verbose=False)
