"""Ways to multiply levels by weights; all give the same currents."""
