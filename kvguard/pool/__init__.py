"""The backends and what is known of each. It knows no wire format."""
