"""The bundled Fusion-in-Decoder reader: its text, its questions, its tokenizer, and how it is trained."""
