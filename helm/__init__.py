"""The Helm chart, and what writes the generated parts of it."""
