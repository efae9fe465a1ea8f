"""The bundled Fusion-in-Decoder reader: it reads, and one encoder pass serves single and fused reads."""

import pytest

from engine.reading.models.encoder_decoder import EncoderDecoderReader
from engine.reading.readers import specify
from engine.scoring.metrics import exact_match
from tests.reading.models import tiny_models

# Of nobody and nowhere: it can only be read.
PASSAGES = [
    (
        "Marta Keller",
        "Marta Keller (1861 – 1934) was a botanist. She was born in Wollin and studied in Dorpat. In 1889 she "
        "joined the garden of Tornau, where she described 214 mosses.",
    ),
    (
        "Garden of Tornau",
        "The garden of Tornau was opened in 1802 by Baron Heinrich Oster. It was closed after the flood of "
        "1911, and the collection was moved to Lindau Castle.",
    ),
    (
        "River Sall",
        "The Sall rises near Grauberg and flows through Tornau into the Great Bay. It is 96 kilometres long. "
        "The first bridge across the Sall was built by Jonas Pihl in 1766.",
    ),
    (
        "Wollin Railway",
        "The Wollin Railway was a narrow line between Wollin and Grauberg. It was sold to the Northern Coal "
        "Company in 1923 and had 17 stations.",
    ),
]
QUESTIONS = [
    ("where was Marta Keller born", "Wollin", 0),
    ("How many mosses did she describe in the garden of Tornau?", "214", 0),
    ("what year was the garden of Tornau opened by Baron Heinrich Oster", "1802", 1),
    ("The collection was moved to which castle after the flood?", "Lindau Castle", 1),
    ("who built the first bridge across the Sall in 1766", "Jonas Pihl", 2),
    ("what does the Sall flow into through Tornau", "Great Bay", 2),
    ("The Wollin Railway was sold to whom in 1923?", "Northern Coal Company", 3),
    ("how many stations did the Wollin Railway have", "17", 3),
]


@pytest.fixture(scope="module")
def spec():
    return specify("bundled-fid", augmentation="fid", task="short-answer", dtype="float32")[0]


@pytest.fixture(scope="module")
def reads():
    """For each question its passages, each with the question: alone, and all together."""
    _, prompt = specify("bundled-fid", augmentation="fid", task="short-answer")
    made = []
    for question, _, _ in QUESTIONS:
        inputs = prompt.render(question, PASSAGES)
        made += [*([text] for text in inputs), inputs]
    return made


@pytest.fixture(scope="module")
def outputs(spec, reads):
    return [result.output for result in EncoderDecoderReader(spec).read(reads)]


def test_one_encoder_pass_gives_what_separate_calls_give(spec, reads, outputs):
    fused = reads[len(PASSAGES) :: len(PASSAGES) + 1]
    single = [read for read in reads if len(read) == 1]
    apart = [
        [one.output for one in EncoderDecoderReader(spec).read(some)] for some in (fused, single)
    ]
    assert outputs[len(PASSAGES) :: len(PASSAGES) + 1] == apart[0]
    assert [output for read, output in zip(reads, outputs, strict=True) if len(read) == 1] == apart[
        1
    ]


def test_outputs_equal_those_of_generate(spec, reads, outputs):
    expected = tiny_models.generate(spec.path, reads, spec.max_new_tokens)
    assert outputs == [output.strip() for output in expected]


def test_it_reads(outputs):
    own, others, fused = [], [], []
    for place, (_, answer, gold) in enumerate(QUESTIONS):
        *single, whole = outputs[place * (len(PASSAGES) + 1) :][: len(PASSAGES) + 1]
        own.append(exact_match(single[gold], [answer]))
        others += [exact_match(out, [answer]) for n, out in enumerate(single) if n != gold]
        fused.append(exact_match(whole, [answer]))
    assert sum(own) >= len(QUESTIONS) / 2
    assert sum(fused) >= len(QUESTIONS) / 2
    assert sum(others) <= len(others) / 8
