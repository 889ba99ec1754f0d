"""`python -m kvguard` is the `kvguard` command."""

from kvguard.cli import main

if __name__ == "__main__":
    main()
