"""The paper as a user of the library: its claims, and our measurement beside each of them."""
