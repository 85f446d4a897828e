"""Command-line options, their variables and defaults, parsed into frozen requests.

Only this package reads the environment. Options stand before or after the subcommand,
and each value has a recorded origin.
"""
