"""Settings of a run: schema, composition, strict load, round trip."""
