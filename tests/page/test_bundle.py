"""The page's copy of Vega is what its locked package makes."""

import vega


def test_vega_is_what_the_locked_package_makes() -> None:
    assert vega.FILE.read_text(encoding="utf-8") == vega.bundle()
