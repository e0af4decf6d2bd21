"""Anthropic's /v1/messages: its fields, turned into those of a chat, and its answers and events."""
