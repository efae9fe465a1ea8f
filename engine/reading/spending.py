"""What reads cost, by the prices of tokens and of actors' time."""

from __future__ import annotations

from dataclasses import dataclass

from engine.machine.remote.api_settings import ApiSettings


@dataclass(frozen=True)
class Prices:
    """Prices in one currency: of a million tokens of prompts and of answers, and of one actor for an hour; None for none."""

    price_in: float | None = None
    price_out: float | None = None
    per_hour: float | None = None


def cost(
    prices: Prices, prompt_tokens: float, output_tokens: float, actor_seconds: float
) -> float | None:
    """What tokens, and the seconds of all actors together, cost; None where nothing has a price."""
    settings = ApiSettings(
        price_in=prices.price_in, price_out=prices.price_out, price_per_hour=prices.per_hour
    )
    return settings.cost(prompt_tokens, output_tokens, actor_seconds)
