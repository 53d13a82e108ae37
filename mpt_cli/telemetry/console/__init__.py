"""What a person sees: the live screen, the plain lines and the sentences both use."""
