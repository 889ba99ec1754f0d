"""The live page: what is going on in one kvguard, for people who look."""
