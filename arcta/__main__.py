"""`python -m arcta` is the command line."""

from .outside.cli.commands import main

main()
