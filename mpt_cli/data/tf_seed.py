"""TensorFlow seeded wherever it comes in: on JAX only a loader that reads tf.data imports it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAME = "tensorflow"


@contextmanager
def tensorflow_seeded(seed: int) -> Iterator[None]:
    """In here TensorFlow draws by `seed`, from now on where it is loaded, else from the end of its import on.

    A `dataset.shuffle(n)` without a seed takes one from TensorFlow's when it is made, which is in a function of the
    user's that may import TensorFlow itself. Nothing is imported where nobody else does.
    """
    if (tensorflow := sys.modules.get(_NAME)) is not None:
        tensorflow.random.set_seed(seed)
        yield
        return
    finder = _Finder(seed)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds TensorFlow as the others do, and seeds it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _SeedingLoader(spec.loader, self.seed)
        return spec


class _SeedingLoader(Loader):
    def __init__(self, loader: Loader, seed: int) -> None:
        self.loader, self.seed = loader, seed

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader  # as if nothing had been between
        self.loader.exec_module(module)
        module.random.set_seed(self.seed)
