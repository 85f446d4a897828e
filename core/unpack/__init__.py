"""Safe unpacking of tarballs."""
