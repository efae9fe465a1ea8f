"""What the reads of servers cost, where their prices are known."""

from __future__ import annotations

from collections.abc import Iterator

from engine.evaluation.assess import Evaluation


def lines(evaluation: Evaluation) -> Iterator[str]:
    """What the tokens of the reads done now cost; nothing without prices, or where no server was asked."""
    costs = [
        reading.costs
        for reading in evaluation.readings.values()
        if reading.spec.api and not reading.spec.executor
    ]
    prompt = sum(one.prompt_tokens for one in costs)
    output = sum(one.output_tokens for one in costs)
    price = evaluation.settings.api.cost(prompt, output)
    if price is not None and prompt + output:
        yield f"price of the tokens: {price:.4g} ({prompt:,} of prompts, {output:,} of answers)"
