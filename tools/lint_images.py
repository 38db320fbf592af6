"""Checks the recipes of images without building them: `python -m tools.lint_images` (exit status 1: a problem).

It knows the instructions of a Dockerfile (https://docs.docker.com/reference/dockerfile/) and the sections of a
definition of Apptainer (https://apptainer.org/docs/user/main/definition_files.html), and needs nothing but Python.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = Path("launch") / "images"
_INSTRUCTIONS = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "ONBUILD", "RUN"),
    *("SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)
_SECTIONS = ("arguments", "setup", "files", "post", "test", "environment", "startscript", "runscript", "labels", "help")
_SHELL = ("setup", "post", "test", "environment", "startscript", "runscript")


def problems(root: Path) -> list[str]:
    """Problems of the recipes of the repository at `root`, in sentences; []: none."""
    folder = root / IMAGES
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in ("Dockerfile", "pretrain.def")}
    ignored = (folder / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    found = [f"Dockerfile: {problem}" for problem in _dockerfile(texts["Dockerfile"], root, ignored)]
    found += [f"pretrain.def: {problem}" for problem in _definition(texts["pretrain.def"], root)]
    bases = [re.findall(r"(?im)^from:?\s+(\S+)", text) for text in texts.values()]
    if bases[0] != bases[1]:
        found.append(f"the recipes start from different images: {bases[0]} and {bases[1]}")
    if (why := _shell((folder / "install.sh").read_text(encoding="utf-8"))) is not None:
        found.append(f"install.sh: {why}")
    return found


def _dockerfile(text: str, root: Path, ignored: list[str]) -> Iterator[str]:
    declared: set[str] = set()
    instructions = [line.split(maxsplit=1) for line in _lines(text.replace("\\\n", " "))]
    if not instructions or instructions[0][0] not in ("FROM", "ARG"):
        yield "it does not begin with FROM"
    for word, *rest in instructions:
        values = rest[0] if rest else ""
        if word not in _INSTRUCTIONS:
            yield f"{word} is no instruction"
        elif not values:
            yield f"{word} has no value"
        elif word == "ARG":
            declared.add(values.partition("=")[0])
        elif word == "COPY":
            for source in values.split()[:-1]:
                yield from _source(source, root)
                if _is_ignored(source, ignored):
                    yield f"{source} is not in the build's context, by Dockerfile.dockerignore"
        elif word in ("ENTRYPOINT", "CMD"):
            yield from _words(word, values)
        elif word == "RUN":
            unknown = set(re.findall(r"\$\{?([A-Z_]+)", values)) - declared
            yield from (f"${name} is used before ARG {name}" for name in sorted(unknown))
            if (why := _shell(values)) is not None:
                yield f"RUN {values}: {why}"


def _words(instruction: str, values: str) -> Iterator[str]:
    """Whether the value is a JSON list of texts, without which a shell would take the signals."""
    try:
        words = json.loads(values)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        yield f"{instruction} {values} is no JSON list of words"


def _definition(text: str, root: Path) -> Iterator[str]:
    header, *parts = re.split(r"(?m)^%", text)
    keys = {line.partition(":")[0].lower() for line in _lines(header)}
    yield from (f"the header has no {key}" for key in ("bootstrap", "from") if key not in keys)
    sections = {part.split("\n", 1)[0].strip(): part.partition("\n")[2] for part in parts}
    yield from (f"%{name} is no section" for name in sections if name not in _SECTIONS)
    declared = {line.partition("=")[0].strip() for line in _lines(sections.get("arguments", ""))}
    for name in sorted(set(re.findall(r"\{\{\s*(\w+)\s*\}\}", text)) - declared):
        yield f"{{{{ {name} }}}} is not in %arguments"
    for line in _lines(sections.get("files", "")):
        yield from _source(line.split()[0], root)
    for name in _SHELL:
        if (why := _shell(sections.get(name, ""))) is not None:
            yield f"%{name}: {why}"


def _lines(text: str) -> list[str]:
    """Lines without comments and empty ones."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _source(path: str, root: Path) -> Iterator[str]:
    if not (root / path).exists():
        yield f"{path} is not in the repository"


def _is_ignored(path: str, patterns: list[str]) -> bool:
    """Whether the last pattern that matches the path or a folder of it leaves it out."""
    ignored = False
    above = [path, *(str(parent) for parent in Path(path).parents if parent != Path("."))]
    for pattern in _lines("\n".join(patterns)):
        if any(fnmatch(name, pattern.removeprefix("!")) for name in above):
            ignored = not pattern.startswith("!")
    return ignored


def _shell(text: str) -> str | None:
    """Error of a shell that reads the text without running it; None: it can."""
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()


def main() -> int:
    found = problems(ROOT)
    print("\n".join(found) or f"{IMAGES}: the recipes are well formed, and all that they copy is here")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
