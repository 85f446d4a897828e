"""What every floor above shares: nouns, errors, units, processes, reporting, files and HTTP."""
