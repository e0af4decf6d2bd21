"""Images of messages, for the commands that take them: their files, and the prompts that have them."""
