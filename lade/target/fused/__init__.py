"""Decoder layers of LLaMA's kind on a CPU, with a few calls where transformers' code has dozens."""
