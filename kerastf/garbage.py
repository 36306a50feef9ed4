"""Python's search for garbage."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def later() -> Iterator[None]:
    """Within the block, Python does not look for garbage.

    Why: it goes through all objects when their number has grown by a quarter. While keras is imported, a model built or
    a step traced, nearly all that is made stays; the search takes a sixth of the time, and finds nothing. What was made
    within the block counts as old, to be searched with all the rest and not at once.
    """
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            if not gc.get_freeze_count():  # to freeze and to thaw makes all old, without a look at it
                gc.freeze()
                gc.unfreeze()
            gc.enable()
