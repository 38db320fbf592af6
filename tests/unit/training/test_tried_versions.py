"""The warning about versions of libraries that were not tried."""

from importlib.metadata import PackageNotFoundError

import pytest

from pretrain.training import tried_versions
from pretrain.training.tried_versions import untried, warnings_of_versions

REQUIRED = ["torch>=2.13,<2.14", "megatron-core>=0.16.1,<0.17", "numpy>=2.4,<3", 'transformers>=5; extra == "dev"']


def test_versions_outside_of_the_tried_ranges_are_one_sentence() -> None:
    installed = {"torch": "2.13.0a0+6c6f1b2", "megatron-core": "0.19.2", "numpy": "1.0", "transformers": "4.0"}
    (sentence,) = untried(REQUIRED, installed.__getitem__)
    assert "torch 2.13.0a0+6c6f1b2 (<2.14,>=2.13), megatron-core 0.19.2 (<0.17,>=0.16.1): " in sentence
    assert "`pretrain verify`" in sentence
    assert "numpy" not in sentence, "whose internals are not used"
    assert "transformers" not in sentence, "of an extra"


@pytest.mark.parametrize("build", ["", "+cpu", "+cu130", "+their.image"])
def test_any_build_of_a_tried_version_is_quiet(build: str) -> None:
    assert untried(REQUIRED, {"torch": f"2.13.1{build}", "megatron-core": "0.16.1"}.__getitem__) == ()


def test_what_is_not_installed_has_no_version() -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    assert untried(REQUIRED, absent) == ()


def test_the_ranges_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout and in an installed package."""
    monkeypatch.setattr(tried_versions, "version", lambda name: "0.0.1")
    of_checkout = warnings_of_versions()
    monkeypatch.setattr(tried_versions, "_PROJECT", tried_versions._PROJECT / "absent")
    monkeypatch.setattr(tried_versions, "requires", lambda name: [f"{one}>9" for one in tried_versions._ENGINES])
    of_package = warnings_of_versions()
    for name in tried_versions._ENGINES:
        assert f"{name} 0.0.1 (" in of_checkout[0]
        assert f"{name} 0.0.1 (>9)" in of_package[0]
