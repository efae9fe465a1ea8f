"""Training of readers: Fusion-in-Decoder and in-prompt, of the T5 family."""
