import hashlib

from engine.sources.queries.buckets import BUCKETS, buckets_of


def test_the_bucket_is_the_first_sixteen_bits_of_the_hash_of_the_text():
    # sha256("abc") is ba7816bf…, FIPS 180-2's example; that of nothing is e3b0c442….
    assert buckets_of(["abc", "", "abc"]).tolist() == [0xBA78, 0xE3B0, 0xBA78]
    digest = hashlib.sha256("Ä漢".encode()).hexdigest()
    assert buckets_of(["Ä漢"]).tolist() == [int(digest[:4], 16)]


def test_buckets_of_many_queries_are_spread_evenly():
    found = buckets_of(f"question {i}" for i in range(20_000))
    assert (found.min() >= 0, found.max() < BUCKETS) == (True, True)
    # Of 20,000 even draws, 2,500 ± 47 fall into each eighth; six deviations leave room.
    eighths = [((found * 8 // BUCKETS) == eighth).sum() for eighth in range(8)]
    assert all(abs(count - 2500) < 280 for count in eighths)
