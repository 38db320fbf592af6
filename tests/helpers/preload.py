"""What the fork server imports once: the slow libraries and the engine."""

import warnings

warnings.filterwarnings("ignore")

import torch._dynamo  # noqa: E402, F401

import pretrain.engine.megatron  # noqa: E402, F401
