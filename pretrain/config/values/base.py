"""Keys and sizes of a model that the values of a part may ask for. These values are joined with its keys in
`ModelValues`, as a class of keys for each part would be a schema each."""

from typing import TYPE_CHECKING

from pretrain.config.model_keys import ModelKeys

if TYPE_CHECKING:

    class Base(ModelKeys):
        """The keys, and some sizes."""

        @property
        def ffn_dim(self) -> int: ...
        @property
        def num_kv_heads(self) -> int: ...
        @property
        def dim_per_head(self) -> int: ...

else:
    Base = object
