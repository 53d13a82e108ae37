"""A recipe in an editor: the JSON Schema in a real yaml-language-server, where npm has put one on the PATH.

The server is spoken to as editors do: JSON-RPC over its standard input and output.
"""

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpt_cli.settings.json_schema import json_schema
from mpt_cli.settings.search_path import recipe_paths

SERVER = shutil.which("yaml-language-server")
pytestmark = [pytest.mark.long, pytest.mark.skipif(SERVER is None, reason="there is no yaml-language-server")]
PATIENCE_SECONDS = 120.0  # until a server that says nothing is given up


class LanguageServer:
    """One process; `ask` waits for the answer, `diagnostics` for what is next said of a file."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen([str(SERVER), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         cwd=folder, env={**os.environ, "HOME": str(folder)})  # fmt: skip
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._asked = 0
        threading.Thread(target=self._listen, daemon=True).start()
        self.ask("initialize", {"processId": os.getpid(), "rootUri": folder.as_uri(), "capabilities": {}})
        self.tell("initialized", {})
        settings = {"yaml": {"schemaStore": {"enable": False}, "completion": True, "hover": True}}
        self.tell("workspace/didChangeConfiguration", {"settings": settings})

    def tell(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Any) -> Any:
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": params})
        return self._wait_for(lambda said: said.get("id") == self._asked and "method" not in said).get("result")

    def diagnostics(self, uri: str, version: int) -> list[str]:
        """The lines with a fault and what is wrong there, of this version of the file."""

        def is_it(said: dict[str, Any]) -> bool:
            about = said.get("params") or {}
            return said.get("method") == "textDocument/publishDiagnostics" and about["uri"] == uri and (
                about.get("version") in (None, version))  # fmt: skip

        found = self._wait_for(is_it)["params"]["diagnostics"]
        return [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in found]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self._process.stdin.flush()

    def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while header := stream.readline():
            if header.lower().startswith(b"content-length:"):
                length = int(header.split(b":")[1])
                while stream.readline().strip():
                    pass
                self._said.put(json.loads(stream.read(length)))

    def _wait_for(self, is_it: Any) -> dict[str, Any]:
        while True:
            said = self._said.get(timeout=PATIENCE_SECONDS)
            if "id" in said and "method" in said:  # it asks the editor for its settings, of which there are no others
                items = (said.get("params") or {}).get("items", [])
                self._send({"id": said["id"], "result": [{} for _ in items] or None})
            elif is_it(said):
                return said


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LanguageServer]:
    (tmp_path / "mpt.schema.json").write_text(json.dumps(json_schema()))
    found = LanguageServer(tmp_path)
    yield found
    found.close()


def test_an_editor_finds_no_fault_in_a_shipped_recipe_and_knows_what_may_stand_in_it(server, tmp_path) -> None:
    uri = (tmp_path / "mine.yaml").as_uri()
    text = "# yaml-language-server: $schema=mpt.schema.json\n" + recipe_paths()["digits_mlp"].read_text("utf-8")

    def change(version: int, content: str) -> list[str]:
        about = {"uri": uri, "version": version}
        server.tell("textDocument/didChange", {"textDocument": about, "contentChanges": [{"text": content}]})
        return server.diagnostics(uri, version)

    about = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
    server.tell("textDocument/didOpen", {"textDocument": about})
    assert server.diagnostics(uri, 1) == []

    lines = len(text.splitlines())
    wrong = change(2, f"{text}\nlogger: {{csv: 3}}\nsweep:\n  search: {{sampler: tep}}\n  gird: {{}}\n")
    assert [line.partition(":")[0] for line in wrong] == [str(lines + place) for place in (2, 4, 5)]
    assert "tpe" in wrong[1] and "gird" in wrong[2]

    head = "# yaml-language-server: $schema=mpt.schema.json\n"
    change(3, f"{head}sweep:\n  se\nbackend:\n  name: \n")
    offered = server.ask("textDocument/completion", _at(uri, 2, 4))
    assert {"search", "seeds"} <= {item["label"] for item in offered["items"]}
    offered = server.ask("textDocument/completion", _at(uri, 4, 8))
    assert {"tensorflow", "jax"} <= {item["label"] for item in offered["items"]}

    change(4, f"{head}loss_scale:\n  growth_steps: 100\n")
    told = str(server.ask("textDocument/hover", _at(uri, 2, 5)))
    assert json_schema()["properties"]["loss_scale"]["properties"]["growth_steps"]["description"][:20] in told


def _at(uri: str, line: int, character: int) -> dict[str, Any]:
    return {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
