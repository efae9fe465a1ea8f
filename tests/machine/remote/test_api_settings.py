"""Which server is asked, and the bounds on what is asked."""

import pytest

from engine.machine.remote.api_settings import ADDRESS_VARIABLE, ApiSettings, is_api, model_of
from tests.expected import refused


def test_names_say_which_model_a_server_is_asked_for():
    assert is_api("openai:org/model-1")
    assert not is_api("bundled")
    assert model_of("openai:org/model:free") == "org/model:free"
    with refused("server.modelless"):
        model_of("openai: ")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"base_url": "me:pw@localhost:8000"}, "server.address"),
        ({"base_url": "localhost:8000"}, "server.address"),
        ({"base_url": f"http://{'a' * 300}/v1"}, "server.address"),
        ({"base_url": f"http://{'a.' * 150}a/v1"}, "server.address"),
        ({"base_url": "http://host:port/v1"}, "server.address"),
        ({"base_url": "http:///v1"}, "server.address"),
        ({"base_url": "http://host/v1?a=b"}, "server.address"),
        ({"concurrency": 0}, "settings.value"),
        ({"requests_per_minute": 0}, "settings.value"),
        ({"tokens_per_minute": -1}, "settings.value"),
        ({"max_tokens": 0}, "settings.value"),
        ({"request_timeout": 0.0}, "settings.value"),
        ({"max_cost": 5.0}, "server.prices"),
        ({"max_cost": 5.0, "price_in": 1.0}, "server.prices"),
        ({"price_out": 1.0}, "server.prices"),
        ({"price_in": -1.0, "price_out": 1.0}, "settings.value"),
        ({"max_cost": float("nan"), "price_in": 1.0, "price_out": 1.0}, "settings.value"),
    ],
)
def test_what_cannot_be_is_refused(given, code):
    with refused(code):
        ApiSettings(**given)


def test_credentials_in_an_address_are_shown_nowhere():
    settings = ApiSettings(base_url="https://me:s3cret@Host.example:8443/v1")
    assert settings.host == "host.example:8443"
    assert "s3cret" not in repr(settings)
    with refused("server.address") as caught:
        ApiSettings(base_url="https://me:s3cret@host/v1?x=y")
    assert "s3cret" not in str(caught.value)


def test_without_an_address_it_is_that_of_the_client(monkeypatch):
    monkeypatch.setenv(ADDRESS_VARIABLE, "http://here:1/v1")
    assert ApiSettings().host == "here:1"
    assert ApiSettings(base_url="http://there/v1").host == "there"
    monkeypatch.setenv(ADDRESS_VARIABLE, "here")
    with refused("server.address"):
        ApiSettings().require_server("it")


def test_the_clients_own_default_is_this_one(monkeypatch):
    import openai

    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    assert str(openai.OpenAI(api_key="k").base_url).rstrip("/") == ApiSettings().address


def test_a_price_is_that_of_a_million_tokens():
    # 2,000,000 at 0.5 and 100,000 at 3 a million
    assert ApiSettings(price_in=0.5, price_out=3).cost(2_000_000, 100_000) == pytest.approx(1.3)
    assert ApiSettings(price_per_hour=2.0, max_cost=1.0).cost(2_000_000, 100_000) is None
    assert ApiSettings().cost(1, 1) is None
    # Two hours of an actor at 1.5 an hour, which adds to the price of tokens.
    assert ApiSettings(price_per_hour=1.5).cost(3e6, 5e5, 7200) == 3.0
    whole = ApiSettings(price_in=2.0, price_out=10.0, price_per_hour=1.5)
    assert whole.cost(3e6, 5e5, 7200) == 14.0
