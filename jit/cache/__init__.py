"""What is built, kept: an entry a key, who may have written it, its locks, its size."""
