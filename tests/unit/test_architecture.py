"""The house rules that a machine can check: imports, lint, types, and what the documents must name."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import config
from tests.support.python_source import parsed
from tests.weekly import WEEKLY

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
PACKAGES = ("appliance", "cloud_worker")

# Which packages and modules of ours may import what is not ours, imports inside functions included. sqlite3 counts as
# foreign, the rest of the standard library does not. Whatever is not on this list is refused.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "argon2": ("appliance.base.credentials",),
    "apprise": ("appliance.notify.apprise_sender",),
    "av": ("appliance.replay",
        "appliance.analysis", "appliance.demo", "appliance.ingest", "appliance.lab",
        "appliance.media",
    ),
    "boto3": ("appliance.bundle.repositories", "cloud_worker.archive"),
    "botocore": ("appliance.bundle.repositories", "cloud_worker.archive"),
    "urllib3": ("cloud_worker.archive",),  # comes with botocore, which lets its errors through
    "cryptography": ("appliance.base.credentials", "appliance.web.tls", "appliance.notify.push_sender",
        "appliance.notify.message", "appliance.bundle.publisher"),
    "cuda": ("appliance.detect.cuda_runtime", "appliance.detect.letterbox"),
    "cv2": ("appliance.replay",
        "appliance.analysis", "appliance.detect", "appliance.health", "appliance.lab", "appliance.media",
        "appliance.recheck", "appliance.track", "cloud_worker.decoding", "cloud_worker.evidence",
    ),
    "fastapi": ("appliance.dashboard", "appliance.web"),
    "h11": ("appliance.web.server",),
    "hailo_platform": ("appliance.detect.hailo_child",),
    "httpx": (
        "appliance.bundle", "appliance.notify.http_sender",
        "appliance.onvif.soap_client", "cloud_worker.openai_vlm",
    ),
    "itsdangerous": ("appliance.web.auth",),
    "jinja2": ("appliance.web.templating", "appliance.lab"),
    "markupsafe": ("appliance.dashboard.savings_page", "appliance.web"),
    "nats": ("appliance.broker", "appliance.uplink", "cloud_worker"),
    "numpy": ("appliance.base.box_arrays", "appliance.cli", "appliance.replay", "appliance.scenario",
        "appliance.analysis", "appliance.canary.candidate_comparison",
        "appliance.canary.shadow_child", "appliance.detect", "appliance.health",
        "appliance.inference", "appliance.lab", "appliance.media", "appliance.recheck",
        "appliance.router",
        "appliance.track", "appliance.types", "cloud_worker.decoding", "cloud_worker.evidence",
        "cloud_worker.openai_vlm", "cloud_worker.redetect",
    ),
    "onnxruntime": ("appliance.detect.onnx_runtime",),
    "openvino": ("appliance.detect.openvino_runtime",),
    "paho": ("appliance.mqtt.broker_session",),
    "prometheus_client": ("appliance.dashboard.metrics_api", "cloud_worker.metrics"),
    "pydantic": ("appliance.cli", "appliance.replay", "appliance.scenario",
        "appliance.backup", "appliance.base.analyze_protocol", "appliance.base.broker_config",
        "appliance.bundle", "appliance.canary", "appliance.config", "appliance.base.config_model",
        "appliance.dashboard", "appliance.web", "appliance.detect", "appliance.alerts",
        "appliance.ingest", "appliance.base.json_lines", "appliance.lab", "appliance.router",
        "appliance.settings.secret_scrubber", "appliance.track", "appliance.upgrade", "appliance.wire",
        "appliance.base.yamlfile", "cloud_worker",
    ),
    "pynvml": ("appliance.sensors.appliance_sensors",),
    "pytest": ("appliance.lab.scenario.pytest_plugin",),
    "rich": ("appliance.replay",
        "appliance.base.console", "appliance.cli.egress_command", "appliance.lab",
        "appliance.cli.calibrate_command", "appliance.cli.site_check", "appliance.cli.users_command",
    ),
    "securesystemslib": ("appliance.bundle.publisher",),
    "segno": ("appliance.base.credentials",),
    "sqlite3": ("appliance.store",),
    "starlette": ("appliance.dashboard", "appliance.web"),
    "tensorrt": ("appliance.detect.tensorrt_engine",),
    "tomli": ("appliance.detect.model_files",),
    "tuf": ("appliance.bundle.publisher", "appliance.bundle.trust"),
    "uvicorn": ("appliance.web.server",),
    "yaml": (
        "appliance.backup.backup_file", "appliance.demo.demo_config",
        "appliance.scenario.scenario_file", "appliance.lab",
        "appliance.settings", "appliance.base.yamlfile",
    ),
}  # fmt: skip
# What the worker in the cloud may use of the appliance, indirectly too: the wire, the detector, plain parts.
WORKER_MAY_USE = {"base", "broker", "bundle", "detect", "sandbox", "types", "web", "wire"}


# Modules that know the whole site file. Every other part takes the sections or values that it reads.
KNOW_THE_SITE_FILE = {
    "appliance.config", "appliance.config.site_file", "appliance.core.app", "appliance.cli.site_check",
    "appliance.settings.site_editor", "appliance.settings.secret_scrubber", "appliance.settings.settings_service",
    "appliance.dashboard.settings_forms",  # a form for each of its keys
}  # fmt: skip
PARAMETERS_MAX = 8
MANY_PARAMETERS: set[str] = set()
FIELDS_MAX = 16
MANY_FIELDS: set[str] = set()


def imports_of(module: ast.Module) -> set[str]:
    """The modules that a module imports, wherever in it: `a.b` for `from a import b` as well as for `import a.b`."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@functools.cache
def our_imports() -> dict[str, set[str]]:
    """Each module of ours with what it imports."""
    return {name: imports_of(module) for name, module in our_modules().items()}


def test_only_modules_on_the_list_import_a_foreign_package() -> None:
    needed: dict[str, set[str]] = {package: set() for package in MAY_IMPORT}
    for module, imports in our_imports().items():
        for package in {name.partition(".")[0] for name in imports}:
            if package in PACKAGES or (package in sys.stdlib_module_names and package != "sqlite3"):
                continue
            allowed = MAY_IMPORT.get(package, ())
            rule = next((each for each in allowed if f"{module}.".startswith(f"{each}.")), None)
            assert rule is not None, f"{module} imports {package}: allowed: {allowed or 'nowhere'}"
            needed[package].add(rule)
    for package, allowed in MAY_IMPORT.items():
        assert needed[package] == set(allowed), f"{package}: take {set(allowed) - needed[package]} off the list"


@functools.cache
def our_modules() -> dict[str, ast.Module]:
    """Return each module of ours by its dotted name, parsed."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): parsed(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }


def definitions(node: ast.AST, above: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Yield the classes and functions below `node`, nested ones included, with `module:Qualified.name`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # which holds none
            continue
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{above}{child.name}"
            yield name, child  # type: ignore[misc]
            yield from definitions(child, f"{name}.")
        else:
            yield from definitions(child, above)


def test_few_modules_know_the_whole_site_file() -> None:
    know = {
        name
        for name, tree in our_modules().items()
        for node in ast.walk(tree)
        if "SiteConfig" in (getattr(node, "id", ""), getattr(node, "attr", ""))
        or (isinstance(node, ast.alias) and node.name == "SiteConfig")
    }
    assert len(KNOW_THE_SITE_FILE) <= 8
    assert know == KNOW_THE_SITE_FILE, "take what no longer does off the list"


def test_no_function_has_many_parameters() -> None:
    many = set()
    for module, tree in our_modules().items():
        for name, node in definitions(tree, f"{module}:"):
            if not isinstance(node, ast.ClassDef):
                named = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if len([each for each in named if each not in {"self", "cls"}]) > PARAMETERS_MAX:
                    many.add(name)
    assert many == MANY_PARAMETERS, "name the group that the parameters stand for; take what has few off the list"


def test_no_class_has_many_fields() -> None:
    """Leave out pydantic models: the JSON of the site file, of HTTP and of the wire is their contract."""
    classes = [
        (name, node)
        for module, tree in our_modules().items()
        for name, node in definitions(tree, f"{module}:")
        if isinstance(node, ast.ClassDef)
    ]
    models, before = {"BaseModel"}, 0
    while len(models) > before:
        before = len(models)
        models |= {
            node.name for _, node in classes if {ast.unparse(base).split("[")[0] for base in node.bases} & models
        }
    many = {
        name
        for name, node in classes
        if node.name not in models and sum(isinstance(each, ast.AnnAssign) for each in node.body) > FIELDS_MAX
    }
    assert many == MANY_FIELDS, "name the group of fields; take what has few off the list"


def test_the_cloud_worker_sees_the_wire_and_the_detector_and_nothing_else_of_the_appliance() -> None:
    ours = our_imports()
    to_see = {name for module, imports in ours.items() if module.startswith("cloud_worker") for name in imports}
    seen: set[str] = set()
    while to_see:
        name = to_see.pop()
        module = name if name in ours else name.rpartition(".")[0]
        if module in seen or not module.startswith("appliance."):
            continue
        seen.add(module)
        parents = [module.rsplit(".", n)[0] for n in range(1, module.count("."))]
        to_see |= {*ours[module], *parents}
    assert {module.split(".")[1] for module in seen} <= WORKER_MAY_USE


@pytest.mark.timeout(900)  # mypy without its cache takes 60 s of a core, of which a run has an eighth
@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["lint-imports"],
        ["mypy", *PACKAGES],
        ["mypy"],
    ],
    ids=["lint", "format", "imports", "types", "types_of_tools"],
)
def test_the_checks_of_make_lint_pass(command: list[str]) -> None:
    done = subprocess.run(
        [str(TOOLS / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_name_of_the_site_file_s_package_is_where_type_checkers_find_it() -> None:
    tree = ast.parse((ROOT / "appliance" / "config" / "__init__.py").read_text(encoding="utf-8"))
    (for_types,) = (node for node in tree.body if isinstance(node, ast.If))
    froms = [node for node in for_types.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in froms for alias in node.names} == config._HOME


def test_the_cloud_never_imports_pyav() -> None:
    code = "import sys, cloud_worker.worker, appliance.detect.detector; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_file_names_a_package_registry_or_a_home_folder() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not a git checkout")
    suspects = re.compile(r"(index-url|pypi\.org/|files\.pythonhosted|registry\.npmjs|[\s\"'=(]/(home|Users)/\w)")
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".txt", ".sh", ".js", ".html", ""} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            if path != Path(__file__):
                assert not suspects.search(text), f"{name}: {suspects.search(text)}"


def test_only_clock_reads_a_clock() -> None:
    reads = re.compile(r"\btime\.(time|monotonic|perf_counter|sleep)\(|datetime\.(now|utcnow|today)\(")
    for path in [*ROOT.glob("appliance/**/*.py"), *ROOT.glob("cloud_worker/**/*.py")]:
        if path != ROOT / "appliance" / "base" / "clock.py":
            assert not reads.search(path.read_text()), f"{path.relative_to(ROOT)} reads a clock itself"


def test_the_design_page_names_every_package_and_module() -> None:
    listed = (ROOT / "docs" / "design.md").read_text().split("## Packages")[1].split("## Glossary")[0]
    for path in sorted((ROOT / "appliance").iterdir()):
        if any(path.rglob("*.py")):  # a package that is gone leaves its compiled files in a checkout
            assert f"{path.name}/" in listed, f"docs/design.md does not name the package {path.name}/"
        elif path.suffix == ".py" and path.stem != "__init__":
            assert re.search(rf"\b{path.stem}\b", listed), f"docs/design.md does not name {path.name}"


def test_only_a_page_and_an_api_serve_and_each_serves_one_kind() -> None:
    """`<subject>_page.py` answers with HTML, `<subject>_api.py` with anything else; nobody else answers."""
    for path in sorted((ROOT / "appliance" / "dashboard").glob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        handlers = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and any("router." in ast.unparse(each) for each in node.decorator_list)
        ]
        kind = path.stem.rpartition("_")[2]
        assert bool(handlers) == (kind in {"page", "api"}), f"{path.name} serves {[each.name for each in handlers]}"
        for handler in handlers:
            answers = ast.unparse(handler.returns) if handler.returns else ""
            is_page = answers in {"HTMLResponse", "Response", "RedirectResponse"} and "_api" not in path.stem
            assert is_page == (kind == "page"), f"{path.name}: {handler.name} answers with {answers or 'nothing'}"
            asked = "\n".join(ast.unparse(each) for each in handler.decorator_list)
            assert kind == "api" or "/api/" not in asked, f"{path.name}: {handler.name} lies under /api"
        assert kind != "api" or "templates.page(" not in text, f"{path.name} renders a page"


def test_few_modules_lie_beside_the_packages() -> None:
    """Each of the six has a reason of its own: a new module belongs into a package."""
    loose = sorted(path.stem for path in (ROOT / "appliance").glob("*.py"))
    assert loose == ["__init__", "__main__", "upgrade", "wire"]


def test_the_package_list_fits_on_a_screen() -> None:
    listed = (ROOT / "docs" / "design.md").read_text().split("## Packages")[1].split("**Import rule")[0]
    assert len(listed.strip().splitlines()) <= 45


def test_the_order_of_the_tests_names_files_that_exist() -> None:
    """A renamed file would lose its place, and `make test` some of its speed."""
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    listed = re.findall(r'"(test_\w+\.py)"', (ROOT / "tests" / "conftest.py").read_text())
    assert len(listed) > 30
    assert not set(listed) - there


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    for command in ("check", "run", "replay", "demo"):
        assert f"vedette {command}" in readme
    assert "vedette-worker run" in readme
    for target in ("make demo", "make test", "make lint", "make bench"):
        assert target in readme


def test_what_leaves_the_usual_run_is_there_and_says_what_stays() -> None:
    for test, instead in WEEKLY.items():
        file, name = test.partition("[")[0].split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
        assert instead, test
