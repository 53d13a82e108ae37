"""What a model's gradients need of a loss scale, measured; and which layer made a run overflow."""
