"""Files to arrays: what a script loads its own part of the data with."""
