"""Training of readers of the T5 family: Fusion-in-Decoder and in-prompt, on Ray Train."""
