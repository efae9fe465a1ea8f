"""The types of another name are those of ``engine``."""

from engine import *  # noqa: F403 - what they are is said there
