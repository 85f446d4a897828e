"""Buckets: folders and S3 stores, keys, roles."""
