"""The `lade` command and the programs behind it; they use the public face of `lade` only."""
