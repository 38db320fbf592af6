"""A build of a text whose every task, however small, is handed to Ray; others do it here.

python -m tests.helpers.slow_build CONFIG OUTPUT EXECUTOR
"""

import sys
from pathlib import Path

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.common import tasks
from data_pipeline.errors import DataError
from pretrain.config.load import load

if __name__ == "__main__":
    config, output, executor = sys.argv[1:]
    if executor == "ray":
        tasks._SMALL = 0
    try:
        build(load(BuildConfig, Path(config), [f"output={output}", f"executor={executor}"]))
    except DataError as error:
        sys.exit(str(error))
