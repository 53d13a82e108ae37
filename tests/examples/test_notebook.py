"""The notebook of examples/ is run as it is, by Jupyter's own client and kernel, and shows what it says it shows."""

from pathlib import Path

import pytest
from backends import ROOT

NOTEBOOK = ROOT / "examples" / "notebook" / "mixed_precision.ipynb"


def _outputs(cells, key: str) -> list[str]:
    """All outputs of this kind, in order."""
    found = [output.data[key] for cell in cells for output in cell.get("outputs", []) if key in output.get("data", {})]
    return ["".join(data) for data in found]


@pytest.mark.long
@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel"), pytest.importorskip("pandas")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()

    cells = notebook.cells
    live, shown = _outputs(cells[3:4], "text/html"), _outputs(cells[5:6], "text/html")
    assert len(live) == 1 and live[0].startswith("<pre") and "widget" not in live[0]
    rows = [line.split() for line in _outputs(cells[3:4], "text/plain")[0].splitlines()]
    assert [row[0] for row in rows if row and row[0].endswith("/6")] == [f"{epoch}/6" for epoch in range(1, 7)]
    assert ["verdict", "healthy"] in rows
    assert "<svg" in shown[0] and "Finished: healthy" in shown[0]
    assert "overflow" in _outputs(cells, "text/html")[2] and len(_outputs(cells, "image/svg+xml")) == 1
    assert _outputs(cells, "text/plain")[-2].startswith("('healthy', 0.")
    assert "'001-policy-float32'" in _outputs(cells, "text/plain")[-1]
