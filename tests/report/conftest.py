"""One evaluation for all tests of the page."""

import pytest

from engine.report.page.remake import remake
from tests.report.page import results


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    """An evaluation with its page; tests change nothing in it."""
    out = results.write_results(tmp_path_factory.mktemp("page"))
    remake(out, single_file=False, passages=True)
    return out
