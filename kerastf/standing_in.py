"""What stands in for a part of another package for a while, whichever threads ask for it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

Replacement = tuple[Any, str, Any]  # an owner, the name of its attribute, and what stands in for that


class StandIns:
    """Attributes that are others as long as any thread is in a block of `open`, and then what they were.

    All threads meet what stands in, so where it is for one thread alone, it has to ask, as by a `ContextVar`.

    Args:
        replacements: Gives what stands in, when the first thread comes.
    """

    def __init__(self, replacements: Callable[[], list[Replacement]]) -> None:
        self.replacements = replacements
        self.lock, self.users = threading.Lock(), 0
        self.before: list[Replacement] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Within the block, they stand in."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                new = self.replacements()
                self.before = [(owner, name, getattr(owner, name)) for owner, name, _ in new]
                for replacement in new:
                    setattr(*replacement)
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    for replacement in self.before:
                        setattr(*replacement)
