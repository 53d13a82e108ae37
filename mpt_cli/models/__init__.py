"""Models by name: shipped networks, the user's own builder, and saved files. See `mpt_cli.models.build`."""
