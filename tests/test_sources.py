"""What the sources that the engine was founded on ask for, and the tests and commands that do it."""

import ast
import contextlib
import functools
import shlex
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from engine.labels.registry import ANNOTATORS
from engine.ranking.measures import KINDS
from engine.scoring.metrics import METRICS
from jobs import cli

ROOT = Path(__file__).parent.parent
# Salemi and Zamani, "Evaluating Retrieval Quality in Retrieval-Augmented Generation" (SIGIR 2024); a blog on measures of
# retrieval; a blog on ir_measures and on annotation; the paper on labels of documents and words, on Korean questions.
ERAG, MEASURES, ANNOTATION, DUAL = "eRAG", "measures", "annotation", "dual labels"
EVALUATE = "erag evaluate --queries q.jsonl --corpus c.jsonl --run r.trec --out out "

# (source, what it asks for, tests and commands)
ROWS = [
    (ERAG, "labels by equation 1", ["evaluation/test_evaluate.py::test_erag_labels_measures_and_end_to_end_by_hand",
        "test_compat.py::test_labels_of_0_and_1_give_what_the_package_gives"]),
    (ERAG, "labels between 0 and 1", ["evaluation/test_evaluate.py::test_graded_labels_by_hand",
        "test_compat.py::test_labels_between_0_and_1_give_what_the_package_gives",
        "ranking/test_references.py::test_real_valued_labels_equal_the_erag_package"]),
    (ERAG, "annotator erag", ["labels/test_labels.py::test_erag_labels_are_the_values_of_single_passage_reads"]),
    (ERAG, "annotator containment", ["labels/test_labels.py::test_containment_agrees_with_dpr"]),
    (ERAG, "annotator containment-substring", ["labels/test_labels.py::test_containment_by_substring"]),
    (ERAG, "annotator provenance", ["labels/test_labels.py::test_provenance_marks_all_passages_of_gold_articles"]),
    (ERAG, "annotator judge", ["labels/test_labels.py::test_a_judges_labels_are_its_probabilities_or_whether_they_exceed_a_half"]),
    (ERAG, "where each label comes from", ["labels/test_traces.py::test_an_erag_label_leads_to_its_read_metric_and_answer"]),
    *((ERAG, f"metric {name}", ["scoring/test_metrics.py::test_values_by_hand_and_by_the_reference_scripts"])
        for name in ("em", "match", "accuracy", "f1", "rouge-l-kilt")),
    (ERAG, "metric rouge-l", ["scoring/test_normalize.py::test_rouge_l_of_ascii_text_is_that_of_rouge_score"]),
    (ERAG, "Kendall's tau and Spearman's rho", ["statistics/test_pairs.py::test_tau_and_rho_of_any_multiplicities_equal_scipy"]),
    (ERAG, "Table 1: agreement of each label, by task", ["test_table_one.py::test_a_kept_cell_gives_the_table_and_is_not_read_again",
        "python -m benchmarks.table_one", "jobs/test_study_command.py::test_several_data_sets_make_one_table"]),
    (ERAG, "Figure 1: agreement by k", ["test_table_one.py::test_a_cell_of_cutoffs_gives_the_figure_and_is_not_read_again",
        "python -m benchmarks.tasks.cutoffs", "jobs/test_study_command.py::test_a_sweep_of_k_is_written_and_printed",
        f"{EVALUATE} --reader m --k-sweep 5,10,50"]),
    (ERAG, "Figure 2: agreement by the reader's size", ["python -m benchmarks.table_one --shown-only --cells benchmarks/cells/sizes",
        "evaluation/test_study.py::test_labels_of_each_reader_meet_the_score_of_each", f"{EVALUATE} --reader small large"]),
    (ERAG, "Figure 3: Fusion-in-Decoder against one prompt", ["python -m benchmarks.table_one",
        "evaluation/test_study.py::test_what_is_printed_and_written", f"{EVALUATE} --reader t5 --augmentation fid,in-prompt"]),
    (ERAG, "Table 2: time and memory", ["test_efficiency.py::test_the_table_has_ratios_beside_the_papers",
        "python -m benchmarks.efficiency"]),
    (ERAG, "BM25", ["retrieval/test_bm25.py::test_same_documents_in_the_same_order_as_pyserinis_command_line",
        "erag index bm25 --corpus c.jsonl --out bm25"]),
    (ERAG, "dense retrieval", ["retrieval/test_dense.py::test_the_same_lists_as_brute_force_over_sentence_transformers",
        "erag index dense --corpus c.jsonl --out dense"]),
    (ERAG, "Fusion-in-Decoder", ["reading/models/test_bundled_fid.py::test_outputs_equal_those_of_generate",
        "reading/models/test_fid_t5.py::test_outputs_are_those_of_the_biased_attention"]),
    (ERAG, "all passages in one prompt", ["reading/models/test_causal.py::test_outputs_equal_generate_in_one_batch_and_alone",
        "reading/models/test_encoder_decoder.py::test_outputs_equal_those_of_generate"]),
    (ERAG, "the recipe of its readers' training", ["training/test_settings.py::test_the_defaults_are_the_recipe_of_the_study",
        "erag train --reader t5 --queries q.jsonl --run r.trec --corpus c.jsonl --out fid"]),
    (ERAG, "passages of 100 words", ["sources/passages/test_cut.py::test_pieces_together_have_exactly_the_words_of_the_text"]),
    (ERAG, "document swaps: only new pairs are read", ["guide/test_recipes.py::test_each_edit_of_a_run_changes_one_list",
        "guide/test_recipes.py::test_an_edited_run_costs_its_new_reads_and_has_the_labels_and_scores_of_its_lists"]),
    (ERAG, "a smaller reader in the place of the reader", ["evaluation/test_study.py::test_a_reader_of_single_passages_can_stand_in",
        f"{EVALUATE} --reader large --erag-reader small"]),
    *((MEASURES, f"measure {kind}", ["ranking/test_real_valued.py::test_values_by_hand",
        "ranking/test_references.py::test_ragged_runs_equal_trec_eval"])
        for kind in ("P", "R", "F1", "AP", "RR", "DCG", "nDCG", "Success", "Rprec")),
    (MEASURES, "exponential gains", ["ranking/test_references.py::test_exponential_gains_equal_gdeval"]),
    (MEASURES, "worked numbers", ["evaluation/test_evaluate.py::test_erag_labels_measures_and_end_to_end_by_hand",
        "ranking/test_real_valued.py::test_values_by_hand", "ranking/test_ties.py::test_a_note_gives_both_values_by_hand"]),
    (MEASURES, "measure UDCG", ["ranking/test_udcg.py::test_a_list_scores_the_sigmoid_of_its_mean_utility",
        "labels/test_utility.py::test_labels_weigh_what_helps_and_what_distracts"]),
    (MEASURES, "annotator utility", ["labels/test_utility.py::test_labels_weigh_what_helps_and_what_distracts"]),
    (ANNOTATION, "names and values of ir_measures", ["ranking/test_measures.py::test_names_are_those_of_ir_measures",
        "ranking/test_references.py::test_ragged_runs_equal_ir_measures"]),
    (ANNOTATION, "measure Judged", ["ranking/test_references.py::test_judged_in_ragged_runs_equals_ir_measures"]),
    (ANNOTATION, "annotator qrels", ["evaluation/test_evaluate.py::test_judgments_are_an_annotator_and_count_beyond_the_lists",
        f"{EVALUATE} --annotators qrels --qrels q.txt"]),
    (ANNOTATION, "labels as judgments for other tools",
        ["sources/runs/test_export.py::test_pytrec_eval_gets_the_same_values_from_the_exported_files"]),
    (ANNOTATION, "annotator preference", ["labels/test_preference.py::test_shares_are_times_chosen_over_times_shown",
        "labels/test_preference.py::test_bradley_terry_strengths_are_those_of_the_closed_form",
        f"{EVALUATE} --annotators preference --preferences p.jsonl"]),
    (ANNOTATION, "which answer is most correct, dense and detailed",
        ["report/page/test_asking.py::test_answers_with_criteria_where_the_browser_keeps_nothing", "erag ask --run a.trec b.trec --queries q.jsonl --corpus c.jsonl --out t.html"]),
    (ANNOTATION, "clusters of what users ask", ["report/test_query_coverage_measure.py::test_a_topic_without_evaluation_queries_is_found_and_the_others_are_covered",
        "report/test_query_coverage_figures.py::test_figures_computed_by_hand", "erag coverage --queries q.jsonl --user-queries u.txt --out out"]),
    (DUAL, "annotator dual", ["labels/test_dual.py::test_the_right_document_without_the_answer",
        "labels/test_dual.py::test_the_answers_words_in_a_wrong_document", f"{EVALUATE} --annotators dual --no-end-to-end"]),
    (DUAL, "five probabilities", ["labels/test_dual_table.py::test_probabilities_by_hand", "labels/test_dual_table.py::test_identities",
        "labels/test_dual_table.py::test_at_a_cutoff_any_passage_within_it_counts"]),
    (DUAL, "cuts of 300 characters that share 20", ["sources/passages/test_cut.py::test_characters_are_cut_at_paragraphs_before_words",
        "guide/test_korean.py::test_four_commands_lead_to_the_dual_labels", "erag passages k.json --out c.parquet --characters 300 --overlap 20"]),
    (DUAL, "answers before Korean particles", ["labels/test_dual.py::test_particles_hide_korean_answers_from_tokens"]),
    (DUAL, "Korean tokens", ["retrieval/test_bm25.py::test_korean_matches_by_morphemes", "guide/test_korean.py::test_four_commands_lead_to_the_dual_labels",
        "erag index bm25 --corpus c.parquet --out bm25 --tokenizer kiwi"]),
    (DUAL, "prompts in Korean", ["guide/test_korean.py::test_prompts_in_korean_come_with_the_engine"]),
    *((DUAL, f"metric {name}", ["scoring/test_metrics.py::test_em_char_and_f1_char_are_korquads"]) for name in ("em-char", "f1-char")),
    (DUAL, "bge-m3 and E5", ["erag index several --corpus c.parquet --out i --encoder BAAI/bge-m3 intfloat/multilingual-e5-large=e5",
        "guide/test_korean.py::test_four_commands_lead_to_the_dual_labels"]),
]  # fmt: skip


@functools.cache
def functions_in(path):
    return {
        one.name for one in ast.parse(path.read_text()).body if isinstance(one, ast.FunctionDef)
    }


def is_there(place):
    """Whether a test is defined, a command can be given so, or a module can be run."""
    if place.startswith("erag "):
        with contextlib.suppress(CycloptsError):
            cli.app.parse_args(shlex.split(place)[1:], exit_on_error=False, print_error=False)
            return True
        return False
    if place.startswith("python -m "):
        module = ROOT / place.split()[2].replace(".", "/")
        return module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
    file, _, name = place.partition("::")
    return (ROOT / "tests" / file).is_file() and name in functions_in(ROOT / "tests" / file)


@pytest.mark.parametrize(("source", "asked", "places"), ROWS, ids=[row[1] for row in ROWS])
def test_what_a_source_asks_for_is_done_and_tested(source, asked, places):
    missing = [place for place in places if not is_there(place)]
    assert not missing, f"{source}, {asked}: gone"


@pytest.mark.parametrize(
    ("kind", "known"), [("annotator", ANNOTATORS), ("metric", METRICS), ("measure", KINDS)]
)
def test_names_of_the_rows_are_those_of_the_engine(kind, known):
    named = {asked.partition(" ")[2] for _, asked, _ in ROWS if asked.startswith(f"{kind} ")}
    assert named <= set(known)  # the others are the engine's own addition


@pytest.mark.parametrize("place", ["test_house.py::gone", "python -m benchmarks.x", "erag fuse -x"])
def test_a_place_that_is_gone_is_found(place):
    assert not is_there(place)
