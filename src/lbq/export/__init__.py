"""The doors out: lowered networks as files that other engines run."""
