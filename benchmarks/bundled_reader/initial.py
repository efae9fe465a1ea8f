"""Initial weights of the bundled reader: random weights, arranged so that the reader can look up answers.

A reader must first learn to look for the words of the question in the passage, and to copy the text there.
Transformers learn this late (induction heads, Olsson et al. 2022, arXiv:2209.11895). Attention can be
written as a program over tokens (RASP, Weiss, Goldberg & Yahav, ICML 2021) and such programs as weights (Tracr,
Lindner et al., NeurIPS 2023), which are then trained like any others (after Trockman & Kolter, ICML 2023). Here:

1. The encoder's first layer writes into each token its neighbours before and behind, and whether it belongs to
   the question or to a passage, by the last of the prompt's words before it.
2. In the second layer each token of a passage looks for the same token in the question. On a match, it
   copies the rarity of that token; otherwise it looks at the prompt's first token, and copies nothing.
3. In the third, two heads add up the matches within about 20 tokens before and behind.
4. The decoder begins at a place with many matches around and none in the place itself, preferably a capital letter or
   a digit; its other heads continue with the token that followed the last output token in a passage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import T5ForConditionalGeneration

HEADS = 8
# The prompt's words before the question and before the parts of a passage.
QUESTION, PASSAGE = " question", (" title", " context")

# Features of a token, given or computed, each a direction of its own, in the two eighths of the
# dimensions that neither tokens nor neighbours use.
_FEATURES = (
    "any", "marker", "opens_question", "opens_passage", "in_question", "in_passage", "rare",
    "found", "found_before", "found_behind", "start", "nowhere", "capital", "digit", "within",
)  # fmt: skip
# Logit of a match, in the encoder and in the decoder. By then about a third of a layer's input
# is not the token itself, and the weights compensate for that.
_MATCH = 14.0
_LEFT, _DECODER_LEFT = 0.75, 0.6
# Biases by distance: of a neighbour, of the nearest of some 20 tokens, and of excluded tokens.
_NEIGHBOUR, _NEAR, _NEVER, _NOT_ITSELF = 7.0, 6.0, -30.0, -6.0
_BUCKETS_NEAR, _LESS = 9, 0.3
# Scale of weights without an initial role.
_QUIET = 0.2


class _Space:
    """Directions of the model's dimensions, all at right angles, and weights built from these.

    ``codes`` are four eighths, for the token; ``before`` and ``behind`` an eighth each, for its neighbours; ``of`` has
    one direction for each feature.
    """

    def __init__(self, dimensions: int, generator: torch.Generator) -> None:
        self._generator = generator
        drawn = torch.randn(dimensions, dimensions, generator=generator)
        rows = torch.linalg.qr(drawn)[0].T
        self.width = dimensions // HEADS
        self.codes = rows[: 4 * self.width].split(self.width)
        self.before, self.behind = rows[4 * self.width : 6 * self.width].split(self.width)
        self.of = dict(zip(_FEATURES, rows[6 * self.width :], strict=False))

    def rows(self, *directions: torch.Tensor) -> torch.Tensor:
        """Weights of a head whose first dimensions are these directions, the others zero."""
        weights = torch.zeros_like(self.before)
        weights[: len(directions)] = torch.stack(directions)
        return weights

    def faint(self) -> torch.Tensor:
        """Weights of a head that hardly tells tokens apart."""
        drawn = torch.randn(self.before.shape, generator=self._generator)
        return 0.3 / math.sqrt(self.before.numel()) * drawn


def arrange(
    model: T5ForConditionalGeneration,
    tokenizer: Any,
    passages: Iterable[str],
    generator: torch.Generator,
) -> None:
    """Arrange the weights of a T5 so that it looks up and copies.

    Args:
        model: as its configuration made it, of 8 heads that share its dimensions, 128 or more, and three
            layers of the encoder or more; changed.
        tokenizer: whose vocabulary has the prompt's words as single tokens.
        passages: texts for counts of tokens, to find rare ones.
    """
    space = _Space(model.config.d_model, generator)
    with torch.no_grad():
        for block in [*model.encoder.block, *model.decoder.block]:
            for name, weight in block.named_parameters():
                if name.endswith((".o.weight", ".wo.weight")):
                    weight.mul_(_QUIET)
        model.shared.weight.copy_(_embeddings(tokenizer, passages, space, generator))
        _biases(model)
        _encoder(model, space)
        _decoder(model, space)


def _embeddings(
    tokenizer: Any, passages: Iterable[str], space: _Space, generator: torch.Generator
) -> torch.Tensor:
    """A code for each token, nearly the same for tokens that differ only in letter case, and its features."""
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    texts = [tokenizer.convert_tokens_to_string([piece]) if piece else "" for piece in pieces]
    first: dict[str, int] = {}
    alike = [first.setdefault(text.lower(), number) for number, text in enumerate(texts)]
    shape = len(texts), 4, space.width
    own, shared = (torch.randn(shape, generator=generator) for _ in range(2))
    mixed = 0.9 * shared[torch.tensor(alike)] + math.sqrt(1 - 0.9**2) * own
    codes = torch.nn.functional.normalize(mixed, dim=-1) * math.sqrt(2 * space.width)
    start = tokenizer.pad_token_id
    codes[start] = 0
    embeddings = codes.flatten(1) @ torch.cat(space.codes)
    found = [set(tokenizer(one, add_special_tokens=False)["input_ids"]) for one in passages]
    count = Counter(number for one in found for number in one)
    question, *behind = (
        tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (QUESTION, *PASSAGE)
    )
    # Ranges from 0, for a token in every passage, to 1, in at most one.
    rare = {
        number: 1 - math.log(max(count[number], 1)) / math.log(max(len(found), 2))
        for number in set(range(len(texts))) - {*tokenizer.all_special_ids, question, *behind}
    }
    for number, text in enumerate(texts):
        opens_question, opens_passage = number == question, number in behind
        word = text.strip()
        features = {
            "any": number != start,
            "start": 2.0 * (number == start),
            "rare": rare.get(number, 0.0),
            "capital": word[:1].isupper(),
            "digit": word.isdigit(),
            "within": bool(text) and not text.startswith(" "),
            # The opening word of a passage outweighs the one that opened the question before it.
            "marker": 0.5 * opens_question + opens_passage,
            "opens_question": opens_question,
            "opens_passage": opens_passage,
            "nowhere": opens_question,
        }
        for feature, value in features.items():
            embeddings[number] += 2 * float(value) * space.of[feature]
    return embeddings


def _biases(model: T5ForConditionalGeneration) -> None:
    """Biases of heads by distance, the same in all layers: half of the buckets is for tokens behind."""
    behind = model.config.relative_attention_num_buckets // 2
    bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    bias.zero_()
    bias[1, 0] = bias[behind + 1, 1] = _NEIGHBOUR
    for bucket in range(1, _BUCKETS_NEAR + 1):
        bias[bucket, 2] = bias[behind + bucket, 3] = _NEAR - _LESS * bucket
    bias[behind:, 4] = _NEVER
    bias[0, 4:] = _NOT_ITSELF
    # In the decoder, five heads look at the token itself.
    bias = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    bias.zero_()
    bias[0, :5] = _NEIGHBOUR + 1


def _put(attention: torch.nn.Module, head: int, **weights: torch.Tensor) -> None:
    """Set the weights of a head; ``o`` takes rows, too."""
    for name, weight in weights.items():
        matrix = getattr(attention, name).weight
        (matrix.T if name == "o" else matrix).split(len(weight))[head].copy_(weight)


def _encoder(model: T5ForConditionalGeneration, space: _Space) -> None:
    width, of, codes = space.width, space.of, space.codes
    sharp = math.sqrt(_MATCH / (2 * width * _LEFT))
    layers = [block.layer[0].SelfAttention for block in model.encoder.block]
    for layer in layers:
        for head in range(4):  # by distance alone
            _put(layer, head, q=space.faint())
    _put(layers[0], 0, v=codes[0], o=space.before)
    _put(layers[0], 1, v=codes[0], o=space.behind)
    _put(
        layers[0],
        4,
        q=space.rows(5 * of["any"]),
        k=space.rows(of["marker"]),
        v=space.rows(of["opens_question"], of["opens_passage"]),
        o=1.2 * space.rows(of["in_question"], of["in_passage"]),
    )
    for number, layer in enumerate(layers[1:], 1):
        # Tokens with the same neighbour, and the followers of the same token elsewhere.
        pairs = (space.before, space.before), (space.behind, space.behind), (codes[0], space.before)
        for turn, (query, key) in enumerate(pairs):
            taken = 0.5 * codes[(turn + number) % 4]
            _put(layer, 5 + turn, q=sharp * query, k=sharp * key, v=taken, o=taken)
    code = sharp * codes[0]
    code[:2] = 0
    _put(
        layers[1],
        4,
        q=math.sqrt(width / (width - 2)) * code
        + space.rows(3.5 * of["in_passage"], 2.8 * of["any"]),
        k=code + space.rows(of["in_question"], 1.1 * of["nowhere"]),
        v=space.rows(of["rare"]),
        o=2 * space.rows(of["found"]),
    )
    for head, found in ((2, "found_before"), (3, "found_behind")):
        _put(layers[2], head, v=space.rows(of["found"]), o=6 * space.rows(of[found]))


def _decoder(model: T5ForConditionalGeneration, space: _Space) -> None:
    of, codes = space.of, space.codes
    sharp = math.sqrt(_MATCH / (2 * space.width * _DECODER_LEFT))
    # The last output token is set apart, so that it is not repeated.
    own = model.decoder.block[0].layer[0].SelfAttention
    for head in range(5):
        code = codes[head % 4]
        into = space.before if head == 4 else -code
        _put(own, head, q=space.faint(), v=code, o=into)
    promising = (
        of["found_before"] + of["found_behind"] - 3 * of["found"]
        + of["capital"] + of["digit"] - of["in_question"]
    )  # fmt: skip
    for block in model.decoder.block:
        layer = block.layer[1].EncDecAttention
        for head in range(HEADS):
            _put(layer, head, v=codes[head // 2], o=1.3 * codes[head // 2])
            if head % 2 == 0:
                _put(layer, head, q=sharp * space.before, k=sharp * space.before)
            else:
                _put(layer, head, q=space.rows(0.75 * of["start"]), k=space.rows(promising))
