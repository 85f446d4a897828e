"""HTTP requests and downloads."""
