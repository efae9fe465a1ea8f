"""Requests are tested as those of readers are: short waits, no key of the developer's, nothing remembered."""

from tests.reading.remote.conftest import _alone  # noqa: F401 (a fixture)
