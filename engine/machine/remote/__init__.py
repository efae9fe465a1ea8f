"""Servers that speak OpenAI's protocol: requests over HTTP, within limits."""
