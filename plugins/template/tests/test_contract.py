from kerastf.testing import check_block


def test_contract():
    check_block("norm", "template/unit", level="full")
