"""What an error says."""

import pytest


def told(error, run):
    """The text of the error that running raises, of this kind."""
    with pytest.raises(error) as caught:
        run()
    return str(caught.value)
