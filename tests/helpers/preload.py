"""What the fork server imports once: the slow libraries, the engine, and what the commands import when called."""

import os
import warnings

warnings.filterwarnings("ignore")

import torch._dynamo  # noqa: E402, F401
import webdataset  # noqa: E402, F401

import data_pipeline.cli  # noqa: E402, F401
import pretrain.loop  # noqa: E402, F401

if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # importing DeepSpeed looks for GPUs, after which one can't fork
    from pretrain.engine.zero import deepspeed_setup as joining

    joining.prepare()
    from pretrain.engine.zero import stage3, stage12  # noqa: F401
