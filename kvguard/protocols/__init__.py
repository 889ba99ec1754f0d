"""Wire formats: one file each. Bytes in, admission values out, and back. They know no engine and no tier."""
