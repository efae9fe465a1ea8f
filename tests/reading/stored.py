"""The whole of a store, which tests look at."""

from engine.reading import store


def load(place, fingerprint):
    """All stored reads of one reader; damaged files are moved aside."""
    folder = place / fingerprint
    frames = {}
    damaged = []
    names = store.listing(place, fingerprint).names
    seen = set()
    for _ in range(store._LISTINGS):
        read, broken = store._tables(folder, names)
        frames |= read
        damaged += broken
        if len(read) + len(broken) == len(names):
            break
        # Some are gone, into others.
        seen.update(names)
        names = [name for name in store.names_of(folder) if name not in seen]
    reads = store.distinct_reads([frames[name] for name in sorted(frames)])
    return store.StoredReads(reads, damaged)
