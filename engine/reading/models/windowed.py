"""Decoder-only models some of whose layers look back only so far, on a CPU.

Such a window hides nothing from a text that fits it with its answer: it runs packed, as with other models.
Longer ones are padded, with transformers' own attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine.machine import batching
from engine.reading.models.decoding import Writer, Written
from engine.reading.models.packed import PackedModel
from engine.reading.models.padded import PaddedModel
from engine.reading.models.targets import PromptRead


class WindowedModel(PackedModel):
    """A model that is run in two ways, by the length of the text.

    Args:
        window: how many tokens, from the last one back, every layer sees.
        padded: runs texts that do not fit it with their answers.
    """

    def __init__(
        self,
        model: Any,
        writer: Writer,
        *more: Any,
        window: int,
        padded: PaddedModel,
        head: list[int],
        fused: bool = False,
    ) -> None:
        self._padded, self._window = padded, window
        super().__init__(model, writer, *more, head=head[:window], fused=fused)

    def batches(self, asked: Sequence[PromptRead], **most: Any) -> Iterator[list[int]]:
        """See ``PackedModel``. All texts of a batch are run in one way."""
        for fits, way in ((True, super().batches), (False, self._padded.batches)):
            own = [place for place, text in enumerate(asked) if self._fits(text) is fits]
            if own and not fits:  # padded batches may have all of the memory
                self.finish()
                self.drop()
            for batch in way([asked[place] for place in own], **most):
                yield [own[place] for place in batch]

    def passes(self, asked: Sequence[PromptRead]) -> batching.Passes[list[Written]]:
        """Continue the texts of a batch, or of a part of one."""
        return super().passes(asked) if self._fits(asked[0]) else self._padded.passes(asked)

    def _fits(self, text: PromptRead) -> bool:
        # The last token does not look back.
        return text.room(max(1, self._writer.most)) - 1 <= self._window
