"""The engine for Python users: inputs of any form, ``evaluate``, and ``Result``."""
