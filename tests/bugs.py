"""Bugs planted in sound blocks, and the checks that catch them."""

import pytest

import kerastf
from kerastf.testing import ContractError

ALL = ("causal", "cross", "decode", "rotation", "bias", "weights")


def planted(kind, base, supports=ALL):
    """A registered subclass of a sound block, whose body is the bug."""

    def decorate(cls):
        made = type(
            cls.__name__, (base,), {k: v for k, v in vars(cls).items() if not k.startswith("__") or k == "__init__"}
        )
        made.__doc__, made.__module__, made.__qualname__ = base.__doc__, cls.__module__, f"planted.{cls.__name__}"
        return kerastf.register(kind, supports=supports)(made)

    return decorate


def failures(run):
    with pytest.raises(ContractError) as caught:
        run()
    return caught.value.report.failed
