"""The training between the points of measuring: the run's own engine on the run's own batches, step by step."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.telemetry.block import Block
from mpt_cli.training.assembly import Assembly
from mpt_cli.training.feed import Piece


@dataclass
class Course:
    """A run that is trained up to chosen steps. Nothing is logged, saved or stopped by a health rule."""

    parts: Assembly
    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0

    def begin(self) -> None:
        """Stand before the next batch, also after some were looked at."""
        if self.epoch == 0:
            self._start_epoch()
        self.parts.train_feed.start(self.epoch, self.step_in_epoch)

    def train_to(self, step: int) -> None:
        """Train until `step` steps are done, skipped ones included; ConfigError where the data end before."""
        self.begin()
        while self.step < step:
            self._train(min(self.parts.capacity, step - self.step))

    def train_step(self) -> bool:
        """Train the next step, of the next epoch where this one is at its end; whether its gradients were finite."""
        self.begin()
        return bool(self._train(1).finite[0])

    def look_ahead(self, count: int, whole: bool = True) -> list[Any]:
        """The next `count` batches as `(x, y, sample_weight)` on the device; the run then still has them before it.

        With `whole` smaller ones, at the end of an epoch, are passed over where there are whole ones.
        """
        here = self.epoch, self.step_in_epoch
        self.begin()
        batches: list[Any] = []
        for _ in range(2 * count + 2):
            if len(_whole(batches, self.parts) if whole else batches) >= count:
                break
            piece = self._next_piece(count)
            batches += [batch_of(piece, i) for i in range(piece.count)]
            self.step_in_epoch += piece.count
        self.epoch, self.step_in_epoch = here
        return ((_whole(batches, self.parts) if whole else None) or batches)[:count]

    def _train(self, most: int) -> Block:
        piece = self._next_piece(most)
        block = self.parts.engine.train(piece.source, piece.rows, piece.count).wait()
        self.step += piece.count
        self.step_in_epoch += piece.count
        return block

    def _next_piece(self, most: int) -> Piece:
        piece = self.parts.train_feed.take(most)
        if piece is None:
            self._start_epoch()
            piece = self.parts.train_feed.take(most)
        if piece is None:
            raise ConfigError(Problem("data", "gives no batch."))
        return piece

    def _start_epoch(self) -> None:
        self.epoch, self.step_in_epoch = self.epoch + 1, 0
        self.parts.engine.reset_metrics()
        self.parts.train_feed.start(self.epoch)


def batch_of(piece: Piece, index: int) -> Any:
    """The examples of one step, as tensors of the backend."""
    rows = keras.ops.convert_to_tensor(piece.rows[index])
    return keras.tree.map_structure(lambda a: None if a is None else keras.ops.take(a, rows, axis=0), piece.source)


def _whole(batches: list[Any], parts: Assembly) -> list[Any]:
    size = parts.settings.trainer.batch_size
    return [batch for batch in batches if np.shape(keras.tree.flatten(batch[0])[0])[0] == size]
