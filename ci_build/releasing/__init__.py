"""The way from a wheel set to users, as a person asks for it; what joins the driver to `promotion`, without click."""
