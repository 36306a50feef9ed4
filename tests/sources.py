"""Records with labels, the first batch of a feed, and what an error about a source says."""

import pytest

from kerastf.errors import ConfigError, FileFormatError, InputError

LABELLED = [{"text": f"text {n}", "label": ("bad", "good")[n % 2]} for n in range(6)]


def first(feed):
    return next(iter(feed.batches.once()))


def told(act):
    with pytest.raises((ConfigError, FileFormatError, InputError)) as error:
        act()
    return str(error.value)
