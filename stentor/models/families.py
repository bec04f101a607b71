"""Find the model families: the folders under stentor/models, and those of installed packages.

A package brings a family by an entry point of the group `stentor.families`. Its facts are read from
its source, so nothing of it is imported before one of its models is used (docs/families.md).
"""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import stentor.models
from stentor.errors import CheckpointError

GROUP = "stentor.families"
OWN = "stentor"
SEAM = 4
"""Version of what families may use. It grows when something there is removed or changed, not when
something is added. A package names the version that it was written for as its own SEAM."""
FACTS = ("ARCHITECTURES", "DUMMIES", "FILES", "TENSORS", "FOLDERS", "UNUSED_FILES")
READS = "READS"
"""A fact that a family may leave out: prefixes of the names of the tensors that it reads. Shards
without such tensors are not downloaded."""
GRAPH = "GRAPH"
"""Another: a file of its checkpoints that onnxruntime runs as it is."""
SHORT_NAME = "SHORT_NAME"
"""Another: a name for its checkpoint wherever that is installed. The module `install` finds it."""
RELEASES = "RELEASES"
"""Another: published checkpoints by their Hub ids, each with the arguments of `Release`."""
ON_CPU = "ON_CPU"
"""Another: whether its models speak faster than real time on a CPU."""
OPTIONAL = (READS, GRAPH, SHORT_NAME, RELEASES, ON_CPU)


class Release(NamedTuple):
    """A published checkpoint. speaks, can: in words. gib: of its weights. licence: of these."""

    speaks: str
    can: str
    gib: float
    licence: str


@dataclass(frozen=True)
class Family:
    """Facts about a family, known before anything of it is imported.

    package: the Python package with `builder`. origin: the distribution that brings it, with its
    version, or stentor. problem: why it cannot be used. Nothing else is known of it then.
    """

    name: str
    package: str
    origin: str
    architectures: tuple[str, ...] = ()
    dummies: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    unused_files: tuple[str, ...] = ()
    reads: tuple[str, ...] = ("",)
    graph: str = ""
    short_name: str = ""
    releases: Mapping[str, Release] = field(default_factory=dict)
    on_cpu: bool = False
    problem: str = ""


@cache
def families() -> tuple[Family, ...]:
    """stentor's own families, then those of installed packages by name."""
    folders = [m.name for m in pkgutil.iter_modules(stentor.models.__path__) if m.ispkg]
    from importlib import metadata  # takes 8 ms, which the built-in voice does without

    all_families = [
        _family(name, f"stentor.models.{name}", OWN, installed=False) for name in folders
    ]
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda p: p.name):
        if point.dist is None:
            origin = "?"
        else:
            origin = f"{point.dist.name} {point.dist.version}"
        all_families.append(_family(point.name, point.value, origin, installed=True))
    return tuple(all_families)


def named(name: str) -> Family | None:
    """The family of this name. None: there is none."""
    return next((family for family in families() if family.name == name), None)


def only(candidates: Iterable[Family], what: str) -> Family | None:
    """The family that was found for `what`, None if there is none. CheckpointError if several were,
    or if another has its name."""
    matching = list(candidates)
    if not matching:
        return None
    if len(matching) > 1:
        clash = matching
    else:
        clash = [f for f in families() if f.name == matching[0].name]
    if len(clash) > 1:
        brought = " and ".join(f"{f.name!r} of {f.origin}" for f in clash)
        raise CheckpointError(f"{what}: the families {brought} clash; uninstall one of them")
    return matching[0]


def clashes() -> list[str]:
    """Names that several families have, each with the families."""
    owners: dict[str, list[Family]] = {}
    for family in families():
        for name in {
            family.name,
            *family.architectures,
            *family.dummies,
            *family.files,
            *family.tensors,
            *family.folders,
        }:
            owners.setdefault(name, []).append(family)
    return [
        f"{name}: " + ", ".join(f.origin for f in who)
        for name, who in sorted(owners.items())
        if len(who) > 1
    ]


def unusable() -> str:
    """Return what a message that names all families adds about those that cannot be used."""
    return "".join(
        f"; family {f.name} of {f.origin} cannot be used: {f.problem}"
        for f in families()
        if f.problem
    )


def _family(name: str, package: str, origin: str, installed: bool) -> Family:
    try:
        facts = _facts(package, (*FACTS, "SEAM") if installed else FACTS)
        if installed and (seam := facts["SEAM"]) != SEAM:
            raise ValueError(
                f"it was written for version {seam} of the families' interface, and stentor has {SEAM}"
            )
        folders = dict(facts.pop("FOLDERS"))
        reads = tuple(facts.pop(READS, ("",)))
        graph = facts.pop(GRAPH, "")
        short_name = facts.pop(SHORT_NAME, "")
        releases = {id: Release(*about) for id, about in facts.pop(RELEASES, {}).items()}
        on_cpu = facts.pop(ON_CPU, False)
        architectures, dummies, files, tensors, unused = (
            tuple(facts[fact]) for fact in FACTS if fact in facts
        )
    except (ValueError, TypeError, SyntaxError, OSError) as e:
        return Family(name, package, origin, problem=str(e))
    return Family(
        name,
        package,
        origin,
        architectures,
        dummies,
        files,
        tensors,
        folders,
        unused,
        reads,
        graph,
        short_name,
        releases,
        on_cpu,
    )


def _literal(name: str, value: ast.expr) -> Any:
    """The value of a constant. ValueError if it would have to be computed, or is of another
    kind."""
    try:
        literal = ast.literal_eval(value)
    except ValueError:
        raise ValueError(
            f"{name} must be written out, as it is read without running anything"
        ) from None
    kinds = {
        "SEAM": int,
        "FOLDERS": dict,
        GRAPH: str,
        SHORT_NAME: str,
        RELEASES: dict,
        ON_CPU: bool,
    }
    kind: type[Any] = kinds.get(name, tuple)
    if type(literal) is not kind or (
        kind is tuple and not all(isinstance(word, str) for word in literal)
    ):
        raise ValueError(
            f"{name} must be {'a tuple of strings' if kind is tuple else f'of type {kind.__name__}'}"
        )
    return literal


def _facts(package: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Constants of a package's `__init__.py`, read without running it. Raises ValueError."""
    if "." in package and not package.startswith("stentor.models."):
        raise ValueError(
            f"{package} is not at the top level, and looking into it would import what is above it"
        )
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or spec.submodule_search_locations is None:
        raise ValueError(f"there is no package {package}")
    facts: dict[str, Any] = {}
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id in (*names, *OPTIONAL):
            facts[target.id] = _literal(target.id, node.value)
    if missing := [name for name in names if name not in facts]:
        raise ValueError(f"{package} has no {missing[0]}")
    return facts
