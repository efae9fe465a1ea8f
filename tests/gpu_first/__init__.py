"""The first minutes on a machine with a GPU, in stages; see ``__main__``."""
