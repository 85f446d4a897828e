"""How a wheel set comes about, as a person asks for it: a module for each command, without click."""
