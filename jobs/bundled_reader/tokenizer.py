"""The bundled reader's tokenizer: byte pairs, trained on the text that the reader learns from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

PAD, END = "<pad>", "</s>"
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(16))


def train_tokenizer(texts: Iterable[str], size: int, directory: Path) -> None:
    """Train a tokenizer and write it as transformers reads it.

    Any text is made of its tokens, since every byte is one. A word has the same tokens at a text's
    beginning as within it.

    Args:
        texts: to train on.
        size: tokens in all.
        directory: gets ``tokenizer.json`` and ``tokenizer_config.json``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, END, *SENTINELS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "additional_special_tokens": SENTINELS,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
