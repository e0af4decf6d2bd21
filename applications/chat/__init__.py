"""`lade chat`: a conversation in the terminal, with its commands, files and statistics."""
