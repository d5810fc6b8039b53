"""Fails a run of the tests in which a claim of the documents was not proven: all its forms were skipped."""

import pytest
from claims import named_tests


def name_of(nodeid):
    """``test_x.py::test_y`` of a node id with a path in front and parameters behind."""
    return nodeid.partition("[")[0].rpartition("/")[2]


class Claims:
    """The plugin. A test that was not chosen (``-k``, a single file) is nobody's fault; one that failed says so."""

    def __init__(self, named):
        self.named = named
        self.passed = set()
        self.unproven = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed.add(name_of(report.nodeid))

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.OK:
            chosen = {name_of(item.nodeid) for item in session.items}
            self.unproven = sorted(self.named & chosen - self.passed)
            if self.unproven:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        for test in self.unproven:
            terminalreporter.write_line(f"FAILED {test}: a table of the documents rests on it, all skipped", red=True)


def register(config):
    """For conftest.py."""
    config.pluginmanager.register(Claims(named_tests()), "claims")
