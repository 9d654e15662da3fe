"""What holds for every test: Ctrl-C is heard, also where it was ignored; what sweeps have checked is summed up."""

import signal
from collections.abc import Callable

import pytest

from turnkernel.testing.crash import Swept

SWEPT = "crashes"

# A script that starts the tests in the background has SIGINT ignored for them, and trio then installs no handler:
# the tests of KeyboardInterrupt would wait for one that never comes.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def told(record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]):
    """Tells what a crash sweep has found, at once and in the summary, and that it was nothing."""

    def tell(what: str, swept: Swept) -> None:
        record_property(SWEPT, (swept.states, swept.distinct))
        with capsys.disabled():
            print(f"\n{what}: {swept.states} crashes, {swept.distinct} distinct, violations: {len(swept.found)}")
        assert swept.found == []

    return tell


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many states the crash sweeps of this run have checked, in however many processes."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    swept = [value for report in reports for name, value in report.user_properties if name == SWEPT]
    if swept:
        states, distinct = (sum(column) for column in zip(*swept, strict=True))
        terminalreporter.write_line(f"crash sweeps: {states} states, {distinct} of them distinct")
