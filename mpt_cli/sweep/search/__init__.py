"""A sweep whose jobs are chosen one after another by what came of those before: Optuna's samplers over Hydra's
intervals, ranges and choices.
"""
