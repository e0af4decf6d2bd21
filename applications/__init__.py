"""The `lade` command and its programs; they use the public interface of `lade`."""
