"""Python's search for garbage."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def later() -> Iterator[None]:
    """Within the block, Python does not look for garbage.

    Why: it goes through all objects when their number has grown by a quarter. While keras is imported, a model built or
    a step traced, nearly all that is made stays; the search takes a sixth of the time, and finds nothing.
    """
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


def grow_old() -> None:
    """All objects that there are count as old, and are searched with all the rest when its turn comes.

    Why: the first searches after an import would go through everything that it made. This is for what lives as long as
    the process: a model that counts as old would keep its memory for longer than it is used.
    """
    if not gc.get_freeze_count():  # to freeze and to thaw makes all old, without a look at it
        gc.freeze()
        gc.unfreeze()
