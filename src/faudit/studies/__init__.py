"""Studies: many runs, each made once, kept in a folder, by one machine or by many."""
