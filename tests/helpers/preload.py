"""What the fork server imports once: the slow libraries, the engine, what the commands import when called, and what
every file of tests does."""

import gc
import os
import warnings

warnings.filterwarnings("ignore")
# torch.utils.cpp_extension asks for GPUs when it is imported; asked through the driver's library, one can still fork.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

from pretrain.commands.lean_imports import install  # noqa: E402

install()

# isort: split
import pretrain.training.loop  # noqa: E402  # first, as in a run: what the hook skips, the ranks run without

# isort: split
import megatron.core.transformer.moe.experts  # noqa: E402, F401
import pytest  # noqa: E402, F401
import webdataset  # noqa: E402, F401

import data_pipeline.cli  # noqa: E402, F401
import pretrain.evaluate.evaluator  # noqa: E402
import pretrain.interop.hf.export  # noqa: E402
import pretrain.verify.run  # noqa: E402, F401

if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # importing DeepSpeed looks for GPUs, after which one can't fork
    from pretrain.engine.zero import deepspeed_setup as joining

    joining.prepare()
    import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401  # which each engine of stage 3 imports

    from pretrain.engine.zero import stage3, stage12  # noqa: F401

gc.collect()
gc.freeze()  # so that no rank looks through all of it, which would also copy its memory
