from pathlib import Path

import ir_measures
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ranking.kinds.gains import DCG, NDCG
from engine.ranking.kinds.ranks import AveragePrecision, RPrecision
from engine.ranking.kinds.shares import Precision
from engine.ranking.measures import (
    KINDS,
    comparable,
    parse_measure,
    parse_measures,
    register,
    undefined_on_graded,
)
from tests.expected import as_expected, refused
from tests.unknown import UNKNOWN_NAME


@pytest.mark.parametrize(
    ("text", "measure"),
    [
        ("nDCG@10", NDCG(10)),
        ("AP", AveragePrecision()),
        ("AP(rel=2)@50", AveragePrecision(50, 2)),
        ("P(rel=0.5)@5", Precision(5, 0.5)),
        ("Rprec(rel=2)", RPrecision(None, 2)),
        ("DCG(dcg='exp-log2')@300tok", DCG(tokens=300, dcg="exp-log2")),
        *((kind, measure()) for kind, measure in KINDS.items()),
    ],
)
def test_names_are_parsed_and_written_back(text, measure):
    assert parse_measure(text) == measure
    assert str(measure) == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nDCG(dcg=exp-log2)@10", "nDCG(dcg='exp-log2')@10"),
        ('nDCG(dcg="exp-log2")@10', "nDCG(dcg='exp-log2')@10"),
        ("nDCG( dcg = 'exp-log2' )@10", "nDCG(dcg='exp-log2')@10"),
        ("nDCG(dcg='log2')@10", "nDCG@10"),
        ("DCG(dcg=log2)", "DCG"),
        ("AP()", "AP"),
        ("AP(rel=2.0)@5", "AP(rel=2)@5"),
        ("AP(rel=.50)", "AP(rel=0.5)"),
        (" RR ", "RR"),
    ],
)
def test_other_ways_to_write_a_measure_give_one_name(text, name):
    assert str(parse_measure(text)) == name


@pytest.mark.parametrize(
    "text",
    [
        *("nDCG@10", "AP(rel=2)@50", "Rprec(rel=2)", "Judged@10", "RBP(rel=2,p=0.5)@7", "ERR@20"),
        *("nDCG(dcg='exp-log2')", 'nDCG(dcg="exp-log2")@10', "nDCG(dcg='log2')@10"),
        *(kind for kind, measure in KINDS.items() if measure.references.ir_measures),
    ],
)
def test_names_are_those_of_ir_measures(text):
    assert str(ir_measures.parse_measure(text)) == str(parse_measure(text))


@st.composite
def measures(draw):
    """Any registered measure, with any options that it has."""
    measure = KINDS[draw(st.sampled_from(list(KINDS)))]
    values = {
        "rel": st.floats(0, 1e6, exclude_min=True) | st.integers(1, 5).map(float),
        "dcg": st.sampled_from(["log2", "exp-log2"]),
    }
    usual = st.floats(0, 1, exclude_min=True, exclude_max=True)
    options = {
        name: draw(values.get(name, usual)) for name in measure.options() if draw(st.booleans())
    }
    cutoff = draw(st.none() | st.integers(1, 10**6)) if measure.has_cutoff else None
    return measure(cutoff, **options)


@given(st.lists(measures(), min_size=1))
def test_every_measure_is_what_its_name_is_parsed_to(some):
    distinct = tuple(dict.fromkeys(some))
    assert parse_measures(" ".join(map(str, distinct))) == distinct


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ndgc@10", "measure.unknown"),
        ("judgd", "measure.unknown"),
        *((name, "measure.unknown") for name in ("", "P@-1", "P@x", "P@", "P@1.5", "P(rel=1")),
        *((name, "measure.unknown") for name in ("set_recall", UNKNOWN_NAME, "AP@5(rel=2)")),
        ("ndcg_burges(dcg='log2')@5", "measure.unknown"),
        ("P@0", "measure.cutoff"),
        *((f"AP(rel={v})", "measure.option") for v in ("x", "", "0", "-1", "nan", "inf")),
        ("AP(cut=2)", "measure.optionless"),
        ("AP(dcg='exp-log2')", "measure.optionless"),
        ("RBP(q=1)", "measure.optionless"),
        ("RBP(p=1)@5", "measure.option"),
        ("ERR(max_rel=0)", "measure.option"),
        ("nDCG(rel=1)", "measure.optionless"),
        ("DCG(rel=1)@3", "measure.optionless"),
        ("nDCG(dcg=foo)", "measure.option"),
        ("nDCG(dcg=)", "measure.option"),
        ("Rprec@5", "measure.uncuttable"),
        ("Rprec(rel=2)@5", "measure.uncuttable"),
        ("Judged(rel=1)", "measure.optionless"),
    ],
)
def test_unknown_measures_are_refused_with_the_reason(text, code):
    with refused(code):
        parse_measure(text)


def test_lists_may_have_spaces_inside_parentheses():
    assert parse_measures("P@1 AP(rel = 0.5)@3 ") == (Precision(1), AveragePrecision(3, 0.5))
    some = parse_measures("nDCG(dcg = 'exp-log2')@5\n\tRprec")
    assert some == (NDCG(5, dcg="exp-log2"), RPrecision())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("  ", "measure.none"),
        ("P@2 ( AP", "measure.unknown"),
        ("P@1,AP", "measure.unknown"),
        ("P@1 AP P@1", "measure.twice"),
        ("P(rel=0.50)@1 P(rel=0.5)@01", "measure.twice"),
    ],
)
def test_texts_that_are_not_lists_of_measures_are_refused(text, why):
    with refused(why):
        parse_measures(text)


def test_measures_that_count_passages_need_a_threshold_on_real_valued_labels():
    bare = [measure() for measure in KINDS.values()]
    undefined = {m.kind for m in undefined_on_graded([*bare, AveragePrecision(5, 0.5)])}
    assert undefined == {m.kind for m in bare if m.labels == "relevance"} >= {"AP", "RR", "Rprec"}
    above = {m.kind for m in undefined_on_graded(bare, above_one=True)}
    assert above == undefined | {m.kind for m in bare if m.labels == "shares"}
    assert above >= {"P", "R", "F1", "Success"}


def test_a_measure_is_registered_by_all_its_names_and_no_other_may_have_one(monkeypatch):
    monkeypatch.setattr("engine.ranking.measures.KINDS", dict(KINDS))
    monkeypatch.setattr("engine.ranking.measures.SYNONYMS", {})
    new = type("New", (Precision,), {"kind": "New", "synonyms": "brand_new"})
    register(new)
    assert parse_measure("brand_new_3") == new(3)
    with pytest.raises(ValueError, match="brand_new") as caught:
        register(type("Other", (Precision,), {"kind": "Other", "synonyms": "brand_new"}))
    as_expected(str(caught.value))


@pytest.mark.parametrize(("kind", "measure"), KINDS.items())
def test_every_measure_says_what_it_is(kind, measure):
    assert measure.__doc__.startswith(kind)
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {kind} |")]
    assert measure.citation in row
    assert all(f"`{name}`" in row for name in measure.options())


@pytest.mark.parametrize(
    ("name", "expected"),
    [("P@3", "P(rel=1)@3"), ("Rprec", "Rprec(rel=1)"), ("AP(rel=2)", "AP(rel=2)"), ("nDCG@3", "nDCG@3"),
     ("Judged@3", "Judged@3"), ("UDCG@3", "UDCG@3")],
)  # fmt: skip
def test_a_threshold_is_given_to_measures_that_can_have_one(name, expected):
    assert str(parse_measure(name).with_threshold()) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("P@5", "P@5", True),
        ("P@5", "nDCG@5", False),
        ("P@5", "UDCG@5", True),
        ("UDCG@5", "AP(rel=0.5)@5", True),
        ("P@5", "UDCG@3", False),
        ("P", "UDCG", True),
        ("UDCG@5", "UDCG@5", True),
        ("UDCG@5", "UDCG@3", False),
    ],
)
def test_utility_measures_are_comparable_with_others_of_the_same_cutoff(one, other, expected):
    assert comparable(one, other) is expected
    assert comparable(other, one) is expected


SYNONYMS = {
    "RR": "MRR recip_rank",
    "RR@10": "MRR@10",
    "nDCG": "ndcg",
    "nDCG@10": "ndcg_cut_10 NDCG@10",
    "nDCG(dcg='exp-log2')@5": "ndcg_burges@5",
    "R@10": "Recall@10 recall_10",
    "R(rel=2)@10": "Recall(rel=2)@10",
    "P@5": "P_5 precision@5 P@5",
    "AP": "map",
    "AP@10": "MAP@10 map_cut_10",
    "Success@1": "success_1 hit_rate@1",
    "Rprec": "r-precision",
    "F1@10": "f1@10",
}


@pytest.mark.parametrize(
    ("name", "ours"), [(name, ours) for ours, names in SYNONYMS.items() for name in names.split()]
)
def test_exact_synonyms_are_the_measure(name, ours):
    assert str(parse_measure(name)) == ours
