"""What the fork server imports once: the slow libraries, the engine, and what the commands import when called."""

import warnings

warnings.filterwarnings("ignore")

import torch._dynamo  # noqa: E402, F401
import webdataset  # noqa: E402, F401

import data_pipeline.cli  # noqa: E402, F401
import pretrain.loop  # noqa: E402, F401
