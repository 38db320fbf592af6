"""datatrove doing what a build does, as its examples show it: a child process of `data_build.py`.

    python tests/benchmarks/data_datatrove.py JSONL TOKENIZER FOLDER [LID]

Two pipelines with the three stages of deduplication between them: filters and signatures; buckets; clusters; what stays
is tokenized. Words are its own (spaCy's). LID is fastText's lid.176.ftz; without it no language is looked at.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter, LanguageFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.lid import FT176LID
from datatrove.utils.logging import logger


def main() -> None:
    text, tokenizer, folder = (Path(argument) for argument in sys.argv[1:4])
    logger.remove()
    folder.mkdir()
    begin = time.perf_counter()
    steps: list[Any] = [GopherQualityFilter(), GopherRepetitionFilter()]
    if len(sys.argv) > 4:
        FT176LID.MODEL_URL = sys.argv[4]
        steps.append(LanguageFilter(["en"]))
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    signatures, pairs, clusters, kept = (str(folder / name) for name in ("signatures", "pairs", "clusters", "kept"))
    _run(folder, 1, JsonlReader(str(text.parent), glob_pattern=text.name), *steps, JsonlWriter(kept))
    _run(folder, 1, JsonlReader(kept), MinhashDedupSignature(signatures, config))
    _run(folder, config.num_buckets, MinhashDedupBuckets(signatures, pairs, config=config))
    _run(folder, 1, MinhashDedupCluster(pairs, clusters, config=config))
    tokens = DocumentTokenizer(
        str(folder / "tokens"), str(tokenizer), local_working_dir=str(folder / "work"), eos_token="</s>"
    )
    _run(folder, 1, JsonlReader(kept), MinhashDedupFilter(clusters), tokens)
    size = sum(path.stat().st_size for path in (folder / "tokens").rglob("*.ds"))
    print("RESULT " + json.dumps({"seconds": time.perf_counter() - begin, "tokens": size // 2}))


def _run(folder: Path, tasks: int, *steps: Any) -> None:
    logs = tempfile.mkdtemp(dir=folder)
    LocalPipelineExecutor(list(steps), tasks=tasks, workers=1, logging_dir=logs, skip_completed=False).run()


if __name__ == "__main__":
    main()
