"""Readers behind an API: servers that speak OpenAI's protocol."""
