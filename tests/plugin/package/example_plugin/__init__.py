"""Parts for `pretrain` that live outside its tree."""
