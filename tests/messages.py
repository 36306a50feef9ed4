"""What an error says."""

import pytest


def told(error, run):
    with pytest.raises(error) as caught:
        run()
    return str(caught.value)
