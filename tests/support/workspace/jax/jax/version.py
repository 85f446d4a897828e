"""The release that this stands in for."""

_version = "0.10.2"
