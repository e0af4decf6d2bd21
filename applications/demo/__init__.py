"""`lade demo`: plain decoding and lade write the same text side by side."""
