import pytest

from engine.reading.spending import Prices, cost


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        (Prices(), None),
        (Prices(price_in=2.0, price_out=10.0), 2 * 3 + 10 * 0.5),
        (Prices(per_hour=1.5), 1.5 * 2),
        (Prices(price_in=2.0, price_out=10.0, per_hour=1.5), 2 * 3 + 10 * 0.5 + 1.5 * 2),
    ],
)
def test_prices_of_tokens_and_of_hours_add_up(prices, expected):
    # 3 million tokens of prompts, half a million of answers, two hours of one actor.
    assert cost(prices, 3_000_000, 500_000, 7200) == expected
