"""Parts of `laws.py`: seeded random calls, run plainly and with lade, and their comparison."""
