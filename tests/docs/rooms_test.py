"""Holds the house against docs/ARCHITECTURE.md: no circle of rooms, no room over 27 files, and its tables as the tree is.

usage: rooms_test.py    (in the checkout, or under Bazel)
"""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FILES_MAX = 27  # "about 25": a room that has more is drawn again


def load_tool():
    loader = importlib.machinery.SourceFileLoader("rooms", str(ROOT / "tools/rooms"))
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("rooms", loader))
    loader.exec_module(module)
    return module


def check_that_it_can_fail(tool):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"server/a.h": '#include "server/core/b.h"\n', "server/core/b.h": '#include "storage/c.h"\n',
                           "storage/c.h": "#include <vector>\n", "proto/x/v1/d.proto": "",
                           "client/e.cc": '#include "x/v1/d.pb.h"\n'}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        rooms = tool.read_rooms(root)
        assert tool.find_circle(rooms) == [], tool.find_circle(rooms)
        floors = tool.floors_of(rooms)
        assert floors == {"client": 2, "proto/x/v1": 1, "server": 3, "server/core": 2, "storage": 1}, floors
        page = "| 3 | `server` | 1 |\n| 2 | `server/core` | 2 |\n| 1 | `storage` | 1 |\n| 2 | `client` | 1 |\n| 1 | `gone` | 1 |\n"
        said = list(tool.differences(rooms, floors, page))
        assert len(said) == 3 and "gone is in a table" in said[0] and "proto/x/v1 is in no table" in said[1], said
        assert "server/core: the table says floor 2 and 2 files" in said[2], said
        assert list(tool.differences(rooms, floors, "| now | 5 | 2 (`server/core`) | 3 | none |\n"))[0].startswith("now: "), page
        said = list(tool.differences(rooms, floors, "| now | 5 | 1 (`server/core`) | 3 | none |\n"))
        assert not any(mistake.startswith("now: ") for mistake in said), said
        (root / "storage/c.h").write_text('#include "server/a.h"\n')
        circle = tool.find_circle(tool.read_rooms(root))
        assert circle == ["server", "server/core", "storage", "server"], circle


def main():
    tool = load_tool()
    check_that_it_can_fail(tool)
    large = {room: len(files) for room, (files, _) in tool.read_rooms(ROOT).items() if len(files) > FILES_MAX}
    assert not large, f"rooms of over {FILES_MAX} files: {large}"
    sys.exit(subprocess.run([ROOT / "tools/rooms", "--check"], check=False).returncode)


if __name__ == "__main__":
    main()
