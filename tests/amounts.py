"""How many examples a property is tried on."""

import os


def examples(fast, thorough):
    """The smaller number in the fast suite, the larger one where `KERASTF_THOROUGH` is set, as `make test-slow` does."""
    return thorough if os.environ.get("KERASTF_THOROUGH") else fast
