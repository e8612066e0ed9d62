"""The paper as a user of the library: what it claims, and what we measure beside each claim."""
