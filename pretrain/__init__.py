from pretrain.lean_imports import install

install()
