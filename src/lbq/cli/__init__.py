"""The front desk: parses, calls, prints."""
