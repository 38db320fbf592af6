"""The training loop fits on one screen."""

import inspect

from pretrain.training.loop import train

MAX_LINES, MAX_LOCALS = 60, 15


def test_the_loop_is_read_at_one_look() -> None:
    code = train.__code__
    names = {*code.co_varnames, *code.co_cellvars}
    assert len(inspect.getsource(train).splitlines()) <= MAX_LINES
    assert len(names) <= MAX_LOCALS, names
