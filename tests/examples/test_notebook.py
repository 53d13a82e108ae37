"""The notebook of examples/ is run as it is, by Jupyter's own client and kernel, and shows what it says it shows."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook" / "mixed_precision.ipynb"


def _outputs(cells, key: str):
    """All outputs of this kind, in order."""
    found = [output.data[key] for cell in cells for output in cell.get("outputs", []) if key in output.get("data", {})]
    return ["".join(data) for data in found]


@pytest.mark.long
@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_runs(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel"), pytest.importorskip("pandas")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()

    cells = notebook.cells
    lines, shown = "".join(output.get("text", "") for output in cells[3].outputs), _outputs(cells[5:6], "text/html")
    assert "  6/6 " in lines and "verdict      " in lines and "\x1b" not in lines
    assert "uPlot" in shown[0] and "Finished: healthy" in shown[0]
    compared = "".join(output.get("text", "") for output in cells[-1].outputs)
    assert "mixed_float16" in compared and "quality unclear" in compared and "\x1b" not in compared, compared
