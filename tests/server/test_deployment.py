"""Check the files of deploy/ against schemas, the tree they name and the facts of the server."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from stentor import ray
from stentor.cli import parser
from stentor.errors import StentorError
from stentor.server.config import ServerConfig, build
from tests.helpers.server_live import Live

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")
MANIFESTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if document["kind"] != "Kustomization"
]
INSTRUCTIONS = {
    "FROM",
    "ARG",
    "WORKDIR",
    "COPY",
    "RUN",
    "ENV",
    "USER",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}
SERVICE_KEYS = {
    "image",
    "build",
    "command",
    "profiles",
    "ports",
    "environment",
    "volumes",
    "deploy",
    "restart",
    "stop_grace_period",
    "read_only",
    "tmpfs",
    "cap_drop",
    "security_opt",
}


def manifest(kind: str) -> dict[str, Any]:
    return next(p.values[0] for p in MANIFESTS if p.values[0]["kind"] == kind)


def config(words: list[str]) -> ServerConfig:
    """Configuration that `stentor serve WORDS` would run with. Exits if the flags are wrong."""
    args = vars(parser().parse_args(["serve", *words]))
    return build({k: v for k, v in args.items() if k in ServerConfig.__dataclass_fields__}, env={})


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


# -- images


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, without comments."""
    lines = [
        line
        for line in (DEPLOY / name).read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def values(name: str, instruction: str) -> list[str]:
    return [value for word, value in instructions(name) if word == instruction]


every_image = pytest.mark.parametrize("name", DOCKERFILES)


@every_image
def test_an_image_has_only_known_instructions_and_its_commands_are_shell(name: str):
    assert {word for word, _ in instructions(name)} <= INSTRUCTIONS
    assert instructions(name)[0] == ("FROM", "python:3.12-slim AS build")
    for command in values(name, "RUN"):
        subprocess.run(["sh", "-n", "-c", command], check=True)


@every_image
def test_an_image_does_not_run_as_root_and_says_how_it_is(name: str):
    assert values(name, "USER") == ["10001:10001"]
    assert instructions(name)[-1][0] == "ENTRYPOINT"
    environment = dict(pair.split("=", 1) for pair in values(name, "ENV")[0].split())
    volumes = yaml.safe_load(values(name, "VOLUME")[0])
    assert [str(Path(environment["HF_HOME"]).parent), environment["SPEAKER_SAMPLES_DIR"]] == volumes
    served = config(yaml.safe_load(values(name, "ENTRYPOINT")[0])[2:])
    assert (served.host, str(served.port)) == ("0.0.0.0", values(name, "EXPOSE")[0])
    assert f"http://127.0.0.1:{served.port}/ready" in values(name, "HEALTHCHECK")[0]


@every_image
def test_an_image_copies_what_the_tree_and_the_context_have_and_pins_the_scripts_torch(name: str):
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    copied = [
        word
        for value in values(name, "COPY")
        if "--from" not in value
        for word in value.split()[:-1]
    ]
    assert set(copied) == allowed
    assert all((ROOT / word).exists() for word in copied)
    pin = re.search(r"^torch=(\S+)$", (ROOT / "scripts" / "environment").read_text(), re.MULTILINE)
    assert pin is not None
    assert f"torch=={pin.group(1)} " in " ".join(values(name, "RUN"))


def test_compose_services_build_what_is_there_and_wait_for_the_drain():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(compose) == {"name", "services", "volumes"}
    for service in compose["services"].values():
        assert set(service) <= SERVICE_KEYS
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert {volume.split(":")[0] for volume in service["volumes"]} == set(compose["volumes"])
        assert {volume.split(":")[1] for volume in service["volumes"]} == {"/cache", "/voices"}
        assert (
            seconds(service["stop_grace_period"]) > config(service.get("command", [])).drain_seconds
        )
        (port,) = service["ports"]
        assert port.startswith("127.0.0.1:")
        assert port.endswith(f":{config([]).port}")


# -- systemd


def unit() -> dict[str, str]:
    lines = (DEPLOY / "stentor.service").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_the_unit_starts_the_server_and_waits_for_the_drain():
    settings = unit()
    served = config(shlex.split(settings["ExecStart"])[2:])
    assert int(settings["TimeoutStopSec"]) > served.drain_seconds
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["Restart"] == "on-failure"
    variables = dict(word.split("=", 1) for word in shlex.split(settings["Environment"]))
    # where no package gives a dynamic user a home, Path.home() raises
    assert variables["HOME"] == "%S/stentor"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_unit(tmp_path: Path):
    text = (DEPLOY / "stentor.service").read_text(encoding="utf-8")
    (tmp_path / "stentor.service").write_text(text.replace("/opt/stentor/bin/stentor", "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "stentor.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verified.returncode, [x for x in verified.stderr.splitlines() if "stentor" in x]) == (
        0,
        [],
    )


# -- Kubernetes


@pytest.mark.parametrize("document", MANIFESTS)
def test_a_manifest_fits_the_schema_of_kubernetes(document: dict[str, Any]):
    kubernetes_validate.validate(document, "1.32", strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize(
    ("folder", "access"),
    [("kubernetes", "ReadWriteOnce"), ("kubernetes-many-nodes", "ReadWriteMany")],
)
def test_what_kustomize_builds_fits_the_schemas_of_old_and_new_clusters(folder: str, access: str):
    command = ["kubectl", "kustomize", str(DEPLOY / folder)]
    built = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    documents = list(yaml.safe_load_all(built))
    assert len(documents) == len(MANIFESTS)
    for document in documents:
        for version in ("1.29", "1.32", "1.35"):
            kubernetes_validate.validate(document, version, strict=True)
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == "stentor"

    by_kind = {document["kind"]: document for document in documents}
    assert by_kind["PersistentVolumeClaim"]["spec"]["accessModes"] == [access]
    (container,) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "stentor:cuda"


def test_kustomize_names_every_manifest():
    kustomization = yaml.safe_load(
        (DEPLOY / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8")
    )
    assert sorted([*kustomization["resources"], "kustomization.yaml"]) == sorted(
        p.name for p in (DEPLOY / "kubernetes").iterdir()
    )


def test_a_pod_is_asked_where_the_server_answers_and_has_time_to_drain(live: Live):
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert live.http.get(container[probe]["httpGet"]["path"]).status_code == 200
    assert {container[p]["httpGet"]["path"] for p in ("startupProbe", "readinessProbe")} == {
        "/ready"
    }
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + config(container["args"]).drain_seconds
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/cache", "/voices", "/tmp"} == mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert f"USER {pod['securityContext']['runAsUser']}:" in (DEPLOY / "Dockerfile.cuda").read_text(
        encoding="utf-8"
    )


def test_what_selects_pods_selects_these():
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        manifest("Deployment")["spec"]["selector"]["matchLabels"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifest("Service")["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()
    assert (
        manifest("Deployment")["metadata"]["name"]
        == manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"]
    )


def test_the_autoscaler_reads_a_metric_that_the_server_has(live: Live):
    (rule,) = yaml.safe_load((DEPLOY / "prometheus-adapter.yaml").read_text(encoding="utf-8"))[
        "rules"
    ]["custom"]
    (metric,) = manifest("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]
    (series,) = set(re.findall(r'__name__="([^"]+)"', rule["seriesQuery"] + rule["metricsQuery"]))
    assert f"\n{series}{{" in live.http.get("/metrics").text


# -- KubeRay


def service() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(
        (DEPLOY / "kuberay" / "rayservice.yaml").read_text(encoding="utf-8")
    )
    return document["spec"]


def ray_pods() -> list[dict[str, Any]]:
    """The pods of head and workers."""
    groups = [
        service()["rayClusterConfig"]["headGroupSpec"],
        *service()["rayClusterConfig"]["workerGroupSpecs"],
    ]
    return [group["template"] for group in groups]


def environment(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["spec"]["containers"]
    return {pair["name"]: pair["value"] for pair in container["env"] if "value" in pair}


@pytest.mark.parametrize("pod", ray_pods(), ids=["head", "worker"])
def test_the_pods_of_ray_fit_the_schema_and_have_what_streams_need(
    pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **pod}, "1.32", strict=True
    )
    for name, value in environment(pod).items():
        monkeypatch.setenv(name, value)
    (application,) = yaml.safe_load(service()["serveConfigV2"])["applications"]
    served = ray.configured(application["args"])
    assert served.models == ("openbmb/VoxCPM2",)
    # and HAProxy's time
    assert pod["spec"]["terminationGracePeriodSeconds"] > served.drain_seconds + 30
    assert {"/cache", "/voices"} == {
        mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]
    }
    for name in ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"):
        with monkeypatch.context() as without:
            without.delenv(name)
            with pytest.raises(StentorError, match=name):
                ray.configured(application["args"])


def test_what_serve_deploys_is_the_app_and_fits_the_nodes():
    config = yaml.safe_load(service()["serveConfigV2"])
    (application,) = config["applications"]
    assert application["import_path"] == f"{ray.__name__}:{ray.app.__name__}"
    (deployment,) = application["deployments"]
    (group,) = service()["rayClusterConfig"]["workerGroupSpecs"]
    assert deployment["num_replicas"] * application["args"]["gpus-per-replica"] <= group["replicas"]
    ports = {
        p["name"]: p["containerPort"]
        for pod in ray_pods()
        for p in pod["spec"]["containers"][0]["ports"]
    }
    assert ports["serve"] == config["http_options"]["port"]
    version = re.search(
        r"ray\[serve,data\]>=([\d.]+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert version is not None
    assert service()["rayClusterConfig"]["rayVersion"].startswith(version[1])


def test_compose_services_have_ports_of_their_own():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    ports = [port.split(":")[1] for service in services.values() for port in service["ports"]]
    assert len(ports) == len(set(ports)) == 2


def test_the_runbook_has_what_to_do_for_every_alert_and_for_no_other():
    rules = yaml.safe_load((DEPLOY / "monitoring" / "rules.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    page = (ROOT / "docs" / "runbook.md").read_text()
    assert set(re.findall(r"^\| `(Stentor\w+)` \|", page, re.MULTILINE)) == alerts
    assert len(page.split()) < 700  # one page


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["registry.example:5000/team/tts:1.0"], 0, "newName: registry.example:5000/team/tts"),
        (["registry.example/tts:1.0", "cpu"], 0, "build --file deploy/Dockerfile --tag"),
        (["registry.example:5000/tts"], 2, "has no tag"),
        (["registry.example/tts:1", "tpu"], 2, "the kind is cuda or cpu, not tpu"),
    ],
)
def test_one_command_builds_pushes_and_names_the_image(words: list[str], code: int, expected: str):
    command = [str(ROOT / "scripts" / "image"), *words]
    environment = {**os.environ, "DRY_RUN": "1"}
    result = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert result.returncode == code
    assert expected in result.stdout + result.stderr
    if code == 0:
        assert f"docker push {words[0]}" in result.stdout


def test_pods_of_several_nodes_share_the_claim_of_one():
    claim = yaml.safe_load((DEPLOY / "kubernetes" / "storage.yaml").read_text())
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    file = DEPLOY / "kubernetes-many-nodes" / "kustomization.yaml"
    overlay = yaml.safe_load(file.read_text())
    assert overlay["resources"] == ["../kubernetes"]
    (patch,) = overlay["patches"]
    assert patch["target"] == {"kind": claim["kind"], "name": claim["metadata"]["name"]}
    assert yaml.safe_load(patch["patch"])[0]["value"] == ["ReadWriteMany"]
