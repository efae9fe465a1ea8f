"""The recipe: its defaults are the study's, its schedule is by hand, and it checks itself."""

import pytest

from engine.training.settings import Recipe
from tests.expected import refused


def test_the_defaults_are_the_recipe_of_the_study():
    recipe = Recipe()
    assert (recipe.k, recipe.epochs, recipe.batch) == (50, 10, 64)
    assert (recipe.learning_rate, recipe.weight_decay, recipe.warmup) == (5e-5, 1e-2, 0.05)


def test_the_rate_rises_over_the_first_steps_and_falls_to_nothing():
    recipe = Recipe(learning_rate=1.0, warmup=0.2)
    # Of 10 steps, 2 rise: 1/2, 1. The other 8 fall from 8/9 in equal parts of 1/9.
    rates = [recipe.rate(step, 10) for step in range(1, 11)]
    assert rates == pytest.approx([0.5, 1.0, *(n / 9 for n in range(8, 0, -1))])
    assert Recipe(learning_rate=1.0, warmup=0.0).rate(1, 4) == 1.0
    assert Recipe(learning_rate=1.0, warmup=1.0).rate(4, 4) == 1.0


def test_steps_are_counted_with_the_last_smaller_batch():
    recipe = Recipe(batch=4, epochs=3)
    assert recipe.steps_per_epoch(9) == 3
    assert recipe.steps(9) == 9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("k", 0), ("epochs", 0), ("batch", 0), ("patience", 0), ("evaluate_every", 0), ("checkpoint_every", 0),
        ("seed", -1), ("learning_rate", -1.0), ("weight_decay", float("nan")), ("clip", float("inf")),
        ("warmup", 1.5), ("warmup", float("nan")),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(field, value):
    with refused("settings.value"):
        Recipe(**{field: value})
