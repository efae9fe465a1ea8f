"""What reads cost: tokens by their prices, and the time of actors by theirs; both add up."""

from __future__ import annotations

from dataclasses import dataclass

from engine.machine.remote.api_settings import token_cost

HOUR = 3600.0


@dataclass(frozen=True)
class Prices:
    """What is paid for reads, in one currency; None where it has no price.

    Attributes:
        price_in, price_out: of a million tokens of prompts, and of answers; both or neither.
        per_hour: of one actor for an hour.
    """

    price_in: float | None = None
    price_out: float | None = None
    per_hour: float | None = None


def cost(
    prices: Prices, prompt_tokens: float, output_tokens: float, actor_seconds: float
) -> float | None:
    """What tokens and the seconds of actors, added up over actors, cost together, in the currency of the prices.

    What has no price costs nothing beside what has one; None where no price is known.
    """
    of_tokens = token_cost(prices.price_in, prices.price_out, prompt_tokens, output_tokens)
    of_time = None if prices.per_hour is None else actor_seconds * prices.per_hour / HOUR
    known = [one for one in (of_tokens, of_time) if one is not None]
    return sum(known) if known else None
