"""Parts of `laws.py`: seeded random calls, each run plainly and with lade, and what must not differ between the two."""
