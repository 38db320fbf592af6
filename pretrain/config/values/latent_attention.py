"""Values derived from `model.latent_attention`: the sizes of heads."""

from pretrain.config.values.base import Base


class LatentValues(Base):
    """Values derived from `model.latent_attention`: the sizes of heads."""

    @property
    def dim_per_head(self) -> int:
        """Features of a head's query and key, and but for latent attention of its value."""
        if self.latent_attention is not None:
            return self.latent_attention.qk_head_dim
        return self.head_dim or self.hidden // self.heads

    @property
    def value_dim(self) -> int:
        """Features of a head's value."""
        return self.dim_per_head if self.latent_attention is None else self.latent_attention.v_head_dim

    @property
    def rotary_dim(self) -> int:
        """Features of a head that rotary positions turn."""
        return self.dim_per_head if self.latent_attention is None else self.latent_attention.qk_rope_head_dim

    @property
    def query_key_value_matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the matrices that make a layer's queries, keys and values."""
        latent, heads = self.latent_attention, self.heads
        if latent is None:
            return ((self.hidden, (heads + 2 * self.num_kv_heads) * self.dim_per_head),)
        queries, keys_values = heads * latent.qk_head_dim, heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        return (
            *(
                ((self.hidden, queries),)
                if latent.q_lora_rank is None
                else ((self.hidden, latent.q_lora_rank), (latent.q_lora_rank, queries))
            ),
            (self.hidden, latent.kv_lora_rank + latent.qk_rope_head_dim),
            (latent.kv_lora_rank, keys_values),
        )

    @property
    def splits_heads(self) -> bool:
        """Whether rotary positions turn some of a head's features alone, where queries and keys are made."""
        return self.latent_attention is not None
