"""Base of all other packages: data types, errors, units, processes, reports, files and HTTP."""
