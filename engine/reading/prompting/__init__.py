"""Prompts: templates, rendering, chat formats, and cutting to length."""
