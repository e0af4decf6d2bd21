"""`lade serve`: an HTTP server in OpenAI's format on `lade.Engine`. Needs the extra `serve`, but for command.py."""
