"""The page of a language becomes its articles, and the build's config its sources by their sizes."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from data_pipeline.build.config import BuildConfig
from examples import languages


def test_an_article_is_its_headings_and_paragraphs(tmp_path: Path) -> None:
    page = """<title>English</title><h1>Declaration</h1><header><h2>Preamble</h2><p>Whereas &amp;\n so.</p></header>
        <article data-number="1"><h2>Article 1</h2><ol><li> <p>All <em>human</em> beings.</p> </li></ol></article>
        <article data-number="26"><h2>Article 26</h2><p>Held out.</p></article>
        <article data-number="27"><p>This, too.</p></article>"""
    articles = languages.Articles(page).found
    assert articles[1] == ["Article 1", "All human beings."]
    languages._write(tmp_path, "en", articles, 1)
    texts = {
        name: [json.loads(line)["text"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("en", "en.heldout")
    }
    assert texts["en"] == ["Declaration\nPreamble\nWhereas & so.", "Article 1\nAll human beings."]
    assert texts["en.heldout"] == ["Article 26\nHeld out.", "This, too."]


def test_weights_are_sizes_to_the_published_power(tmp_path: Path) -> None:
    (tmp_path / "build.yaml").write_text(languages.config(tmp_path, {"en": 1000, "ml": 125}))
    config = BuildConfig.model_validate(YAML(typ="safe").load(tmp_path / "build.yaml"))
    assert [source.name for source in config.sources] == ["en", "ml"]
    assert config.sources[0].weight / config.sources[1].weight == pytest.approx(8**0.3, rel=1e-4)
    assert config.sources[1].validation_input == str(tmp_path / "ml.heldout.jsonl")
