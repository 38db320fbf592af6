"""Which cases of a test `make test` runs: one of each kind. The others are run by `make test-slow`."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def slow(case: Any) -> Any:
    """A case, or the values of several parameters, for `make test-slow`."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


def only(quick: Sequence[Any], cases: Iterable[Any], one_in: int = 1) -> list[Any]:
    """`cases`, of which only those in `quick` are not slow; of the others one in `one_in`. Of a product each value
    still comes up, if its last factor has no divisor in common with `one_in`."""
    found = list(cases)
    assert all(case in found for case in quick), "a name that is no case would make them all slow"
    return [
        case if case in quick else slow(case)
        for number, case in enumerate(found)
        if case in quick or number % one_in == 0
    ]


def cases_of(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The parameters of each test of this session that needs the fixture of `request`, which makes at once what all of
    them need."""
    own = (item for item in request.session.items if item.path == request.path)
    needing = (item for item in own if request.fixturename in getattr(item, "fixturenames", ()))
    return [item.callspec.params for item in needing if hasattr(item, "callspec")]


def asked(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """The values of a parameter in `cases_of` it."""
    return {case[parameter] for case in cases_of(request) if parameter in case}
