"""The compile gate."""
