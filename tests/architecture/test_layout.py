"""Conventions of the source tree that no other tool checks."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tasks.specs import ENDPOINTS, SPECS, spec_for

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("api", "tasks", "workers")


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def bound_specs(path: Path) -> list[str]:
    """Return the names of the specs for which an entry point has bodies: `Task(SPEC, compute=body)`."""
    return [
        ast.unparse(node.args[0])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Task"
    ]


def test_every_task_has_exactly_one_body() -> None:
    bound = [name for entry in ("cpu", "gpu") for name in bound_specs(ROOT / "workers" / f"{entry}.py")]
    module = ast.parse((ROOT / "tasks/specs.py").read_text())
    declared = [
        ast.unparse(node.targets[0])
        for node in ast.walk(module)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TaskSpec(")
    ]
    assert len(declared) == len(SPECS) == len({spec.name for spec in SPECS})
    assert sorted(bound) == sorted(declared)


def test_every_endpoint_goes_through_stages_that_have_tasks() -> None:
    for endpoint in ENDPOINTS.values():
        for stage in endpoint.stages:
            assert {spec_for(stage, endpoint.stages, followed=followed) for followed in (False, True)} <= set(SPECS)


@pytest.mark.parametrize("path", [path for path in sources(*PACKAGES) if path.name == "__init__.py"], ids=str)
def test_package_files_carry_a_docstring_only(path: Path) -> None:
    body = ast.parse(path.read_text()).body
    assert ast.get_docstring(ast.Module(body, []))
    if path.parent == ROOT / "workers/parsing":
        # This package exports the parser's functions.
        assert all(isinstance(node, ast.ImportFrom | ast.Assign) for node in body[1:])
    else:
        assert len(body) == 1


@pytest.mark.parametrize("path", [path for path in sources(*PACKAGES) if path.name != "__init__.py"], ids=str)
def test_modules_say_what_they_are(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in sources("tests")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in sources(*PACKAGES)}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_changelog_says_what_is_unreleased() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(r"(?ms)^## \[Unreleased\]$(.*?)(?=^## |\Z)", changelog)
    assert found and re.search(r"(?m)^### (Added|Changed|Fixed|Removed|Deprecated|Security)$", found[1])
    assert re.search(r"(?m)^- \S", found[1])


def test_registries_name_modules_that_exist() -> None:
    pattern = re.compile(r'"((?:api|tasks|workers)(?:\.\w+)+):(\w+)"')
    found = {match for path in sources(*PACKAGES) for match in pattern.findall(path.read_text())}
    assert found
    for module, attribute in found:
        spec = importlib.util.find_spec(module)
        assert spec and spec.origin, module
        assert re.search(rf"(?m)^(?:(?:async )?def |class )?{attribute}\b", Path(spec.origin).read_text()), attribute
