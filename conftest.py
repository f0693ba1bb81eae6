"""For pytest: a test that fails first says what it finds, in the words of its docstring."""

import inspect

import pytest


def pytest_configure(config):
    if config.getoption("tbstyle", None) == "auto":  # --tb was not given
        config.option.tbstyle = "short"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    says = inspect.getdoc(getattr(item, "function", None))
    if report.failed and says:
        report.longrepr = f"{says}\n\n{report.longreprtext}"
    return report
