"""What tests of readers behind an API share: short waits, no key of the developer's, nothing remembered."""

import pytest

from engine.machine.remote import client, limits


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.003)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    limits.forget()
