"""The form of each pattern, by the class of its settings. One that has no row is computed by `base.masked`."""

from typing import Any

from pretrain.attention.patterns.banded import banded
from pretrain.attention.patterns.dense import dense
from pretrain.config.attention import Banded, Dense

FORMS: dict[type, Any] = {Dense: dense, Banded: banded}
