"""Call sites of serving engines, replayed through the wrappers: see plugins/conformance."""
