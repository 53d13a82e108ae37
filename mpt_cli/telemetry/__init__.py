"""What a run says of itself: records, events, console, files."""
