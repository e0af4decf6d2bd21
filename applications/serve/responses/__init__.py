"""OpenAI's /v1/responses: its fields, turned into those of a chat, and its answers and events."""
