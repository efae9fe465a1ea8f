"""A start from pretrained parts: what tokens mean, from the embeddings of the bundled encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_EMBEDDINGS = "embeddings.word_embeddings.weight"


def meanings(tokenizer: Any, dimensions: int) -> torch.Tensor:
    """For each token, the mean of the encoder's embeddings of its pieces, in fewer dimensions.

    These are the first principal components, each with variance 1 over the tokens.

    Args:
        tokenizer: whose tokens.
        dimensions: how many, at most those of the encoder.

    Returns:
        (tokens, dimensions); special tokens, and those in whose text the encoder finds nothing, have zeros.

    Raises:
        InputError: the bundled encoder is not installed.
    """
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    from engine.sources.bundled import encoder_directory

    directory = encoder_directory()
    pieces = Tokenizer.from_file(str(directory / "tokenizer.json"))
    pieces.no_padding()
    pieces.no_truncation()
    embeddings = next(
        weight.float()
        for name, weight in load_file(directory / "model.safetensors").items()
        if name.endswith(_EMBEDDINGS)
    )
    special = set(tokenizer.all_special_ids)
    texts = [
        tokenizer.convert_tokens_to_string([one]).strip()
        for one in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    ]
    found = [
        [] if number in special else pieces.encode(text, add_special_tokens=False).ids
        for number, text in enumerate(texts)
    ]
    rows = torch.stack(
        [embeddings[ids].mean(0) if ids else torch.zeros(embeddings.shape[1]) for ids in found]
    )
    known = torch.tensor([bool(ids) for ids in found])
    centred = rows[known] - rows[known].mean(0)
    left, _, _ = torch.linalg.svd(centred, full_matrices=False)
    made = torch.zeros(len(texts), dimensions)
    made[known] = left[:, :dimensions] * known.sum().sqrt()
    return made
