"""Data sources: from a name and its settings to checked training and validation examples."""
