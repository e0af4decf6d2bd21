"""The one benchmark harness: methods in turn with plain decoding, in one process, every run recorded."""
