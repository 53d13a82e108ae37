"""What a person sees: the live screen, the plain lines and the words both use."""
