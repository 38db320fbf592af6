"""Texts of PubMed's records."""

from io import BytesIO

from examples.abstracts import texts

XML = b"""<PubmedArticleSet>
  <PubmedArticle><MedlineCitation><Article>
    <ArticleTitle>Effects of <i>moody</i>
      on flies.</ArticleTitle>
    <Abstract>
      <AbstractText Label="RESULTS">Of 10<sup>3</sup> flies, few slept.</AbstractText>
      <AbstractText Label="NOTES"></AbstractText>
      <AbstractText>They &lt;did&gt; not.</AbstractText>
    </Abstract>
  </Article></MedlineCitation></PubmedArticle>
  <PubmedArticle><MedlineCitation><Article><ArticleTitle>A letter.</ArticleTitle></Article>
  </MedlineCitation></PubmedArticle>
  <PubmedArticle><MedlineCitation><Article><ArticleTitle>Short.</ArticleTitle>
    <Abstract><AbstractText>One.</AbstractText></Abstract></Article></MedlineCitation></PubmedArticle>
</PubmedArticleSet>"""


def test_a_text_is_a_title_and_what_its_abstract_says() -> None:
    assert list(texts(BytesIO(XML))) == [
        "Effects of moody on flies.\n\nRESULTS: Of 103 flies, few slept.\nThey <did> not.",
        "Short.\n\nOne.",
    ]
