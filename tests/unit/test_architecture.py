"""The import direction of docs/architecture.md, kept by reading every file's imports (tests/helpers/import_law.py)."""

import pytest

from tests.helpers.import_law import ROOT, breaches, cycles, imports, modules, unlisted

MODULES = modules()


def test_every_import_keeps_the_law() -> None:
    found = [b for path in MODULES.values() for b in breaches(str(path), (ROOT / path).read_text("utf-8"), MODULES)]
    assert not found


def test_every_part_of_a_package_has_a_layer() -> None:
    assert unlisted(MODULES) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycles(MODULES) == []


PLANTED = [
    # upwards, between packages and inside one
    ("data_pipeline/loader.py", "from pretrain.config.run_config import RunConfig"),
    ("data_pipeline/common/hashing.py", "from data_pipeline.dataset.manifest import Manifest"),
    ("data_pipeline/batch.py", "def late():\n    from data_pipeline import cli"),
    ("pretrain/layout/layout.py", "from pretrain.models.network import Network"),
    ("pretrain/config/model.py", "from pretrain.layout import layout"),
    ("pretrain/engine/groups.py", "from pretrain.engine.zero.base import Range"),
    ("pretrain/engine/optimizer/adam.py", "from pretrain.engine.megatron.engine import MegatronEngine"),
    ("pretrain/training/loop.py", "from pretrain.commands.train import main"),
    ("pretrain/process/local.py", "import launch.status"),
    ("launch/status.py", "from examples import enwik8"),
    ("pretrain/models/blocks.py", "if TYPE_CHECKING:\n    from pretrain.engine.base import Engine"),
    # past a seam
    ("pretrain/training/loop.py", "from pretrain.engine.megatron import engine"),
    ("pretrain/checkpoint/store.py", "import pretrain.engine.zero.stage3 as stage3"),
    ("pretrain/verify/probe.py", "from pretrain.engine.groups import Groups"),
    ("pretrain/training/loop.py", "from pretrain.evaluate.protocol import Protocol"),
    ("pretrain/commands/train.py", "from pretrain.training.build import build"),
    ("launch/status.py", "from pretrain.training.loop import train"),
    # what is for others, under whatever name
    ("pretrain/engine/zero/base.py", "from megatron.core import parallel_state"),
    ("pretrain/engine/megatron/engine.py", "from megatron.core import mpu"),
    ("pretrain/model_spec/split.py", "import torch.distributed as dist"),
    ("pretrain/data/stream.py", "def late():\n    import megatron.core"),
    ("pretrain/training/build.py", "import importlib\nimportlib.import_module('pretrain.commands.train')"),
    ("pretrain/training/build.py", "from importlib import import_module as load"),
    ("pretrain/observe/log.py", "__import__('mlflow')"),
    ("pretrain/training/loop.py", "from mlflow import log_metric"),
    ("pretrain/evaluate/evaluator.py", "from tests.helpers.tiny import tiny_config"),
    ("pretrain/models/network.py", "from .blocks import PlainLayer"),
    ("pretrain/training/build.py", "import pretrain"),
]


@pytest.mark.parametrize(("path", "line"), PLANTED)
def test_a_planted_breach_is_found(path: str, line: str) -> None:
    source = (ROOT / path).read_text("utf-8")
    assert breaches(path, source, MODULES) == []
    assert breaches(path, f"{source}\n{line}\n", MODULES)


def test_an_import_is_what_it_resolves_to() -> None:
    source = "from pretrain.layout import layout, nothing\nfrom megatron.core import parallel_state as mpu"
    assert list(imports(source, MODULES)) == [
        "pretrain.layout.layout",
        "pretrain.layout",
        "megatron.core.parallel_state",
    ]
