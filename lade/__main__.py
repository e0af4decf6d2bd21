"""`python -m lade` is the `lade` command."""

from lade.applications.cli import main

if __name__ == "__main__":
    main(prog_name="lade")
