"""The files of the record, and the programs that draw curves of it."""
