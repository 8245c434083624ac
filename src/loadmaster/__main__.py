"""`python -m loadmaster`: the command line."""

from loadmaster.cli.main import main

if __name__ == "__main__":
    main()
