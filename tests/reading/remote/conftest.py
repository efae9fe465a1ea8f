"""What tests of readers behind an API share: short waits, no key of the developer's, nothing remembered."""

import pytest

from engine.machine.remote import client, limits
from engine.machine.remote.api_settings import ADDRESS_VARIABLE, KEY_VARIABLE


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.003)
    for name in (KEY_VARIABLE, ADDRESS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    limits.forget()
