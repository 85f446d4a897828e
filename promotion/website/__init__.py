"""Templates of the pages for people: static HTML with a strict Content-Security-Policy."""
