"""Queries on planted topics, and an encoder that tells the topics apart."""

import numpy as np
import polars as pl

from engine import tables

TOPICS = ("films", "law", "songs", "sport", "water")


def encode(texts):
    """Each topic a direction, each text a little off it; the same text always alike."""
    vectors = np.zeros((len(texts), 16), dtype=np.float32)
    for row, text in enumerate(texts):
        topic, _, number = text.partition(" ")
        noise = np.random.default_rng(int(number or 0)).normal(size=11)
        vectors[row, TOPICS.index(topic)] = 3.0  # length says nothing
        vectors[row, 5:] = 0.3 * noise
    return vectors


def queries(*texts, prefix="q"):
    rows = [(f"{prefix}{i}", text, [], []) for i, text in enumerate(texts)]
    return pl.DataFrame(rows, schema=tables.QUERIES, orient="row")


def asked(each=40, topics=TOPICS):
    return [f"{topic} {i}" for i in range(each) for topic in topics]


EVALUATION = queries(*(f"{t} {i}" for i in range(100, 115) for t in TOPICS if t != "songs"))
