"""The kernel's tests run without the rooms above it: an import of one, however late, fails."""

import sys
from collections.abc import Iterator

import pytest

ABOVE = ("turnkernel_tools", "turnkernel_providers", "turnkernel_demo", "httpx")


@pytest.fixture(autouse=True)
def nothing_from_above() -> Iterator[None]:
    """The packages above the kernel can't be imported."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [one for one in sys.modules if one.split(".")[0] in ABOVE]:
            patch.setitem(sys.modules, name, None)
        for name in ABOVE:
            patch.setitem(sys.modules, name, None)
        yield
