"""The manifest and units in deploy/, and the flags that they and docs/deploy.md name, without a cluster."""

import configparser
import copy
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml

from server import BIN, run

ROOT = pathlib.Path(__file__).parents[2]
MANIFEST = ROOT / "deploy/kubernetes/leaderworkerset.yaml"
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
DOC = ROOT / "docs/deploy.md"
KUBERNETES = "1.37"

# For machines without systemd.
UNIT_KEYS = {
    *(("Unit", key) for key in ("Description", "Wants", "After", "StartLimitIntervalSec")),
    *(("Install", key) for key in ("WantedBy",)),
    *(
        ("Service", key)
        for key in """
            Type EnvironmentFile Environment ExecStart LoadCredential TimeoutStopSec KillMode Restart RestartSec
            RestartPreventExitStatus DynamicUser CacheDirectory UMask NoNewPrivileges ProtectSystem ProtectHome ProtectClock
            ProtectControlGroups ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectProc
            PrivateTmp PrivateDevices RestrictAddressFamilies RestrictNamespaces RestrictRealtime RestrictSUIDSGID
            LockPersonality MemoryDenyWriteExecute CapabilityBoundingSet SystemCallArchitectures SystemCallFilter
        """.split()
    ),
}

# The fields of leaderworkerset.x-k8s.io/v1, by its published API; pod templates are looked at apart.
POSITIVE = {"type": "integer", "minimum": 0}
COUNT_OR_PERCENT = {"anyOf": [POSITIVE, {"type": "string", "pattern": r"^\d+%$"}]}


def closed(properties, required=()):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


LEADER_WORKER_SET = closed(
    {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": closed(
            {
                "name": {"type": "string", "pattern": r"^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
                "namespace": {"type": "string"},
                "labels": {"type": "object"},
                "annotations": {"type": "object"},
            },
            ["name"],
        ),
        "spec": closed(
            {
                "replicas": POSITIVE,
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "networkConfig": closed({"subdomainPolicy": {"enum": ["Shared", "UniquePerReplica"]}}, ["subdomainPolicy"]),
                "rolloutStrategy": closed(
                    {
                        "type": {"const": "RollingUpdate"},
                        "rollingUpdateConfiguration": closed(
                            {"partition": POSITIVE, "maxUnavailable": COUNT_OR_PERCENT, "maxSurge": COUNT_OR_PERCENT}
                        ),
                    },
                    ["type"],
                ),
                "leaderWorkerTemplate": closed(
                    {
                        "leaderTemplate": {"type": "object"},
                        "workerTemplate": {"type": "object"},
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {
                            "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
                        },
                        "subGroupPolicy": closed(
                            {
                                "subGroupPolicyType": {"enum": ["LeaderWorker", "LeaderExcluded"]},
                                "subGroupSize": {"type": "integer", "minimum": 1},
                            }
                        ),
                        "volumeClaimTemplates": {"type": "array"},
                        "persistentVolumeClaimRetentionPolicy": {"type": "object"},
                    },
                    ["workerTemplate"],
                ),
            },
            ["leaderWorkerTemplate"],
        ),
    },
    ["apiVersion", "kind", "metadata", "spec"],
)


def objects():
    # Aliases share what they name; a deep copy lets tests change one place.
    return [copy.deepcopy(found) for found in yaml.safe_load_all(MANIFEST.read_text()) if found]


def the(kind, name):
    found = [one for one in objects() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{kind}/{name}"
    return found[0]


def templates():
    template = the("LeaderWorkerSet", "skippy")["spec"]["leaderWorkerTemplate"]
    return {"leader": template["leaderTemplate"], "worker": template["workerTemplate"]}


def check(one):
    """Holds one object against its schema; a LeaderWorkerSet in its own fields and in each pod template."""
    if one["kind"] != "LeaderWorkerSet":
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        return
    jsonschema.validate(one, LEADER_WORKER_SET)
    template = one["spec"]["leaderWorkerTemplate"]
    for role in ("leaderTemplate", "workerTemplate"):
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template[role]}
        kubernetes_validate.validate(pods, KUBERNETES, strict=True)


@pytest.mark.parametrize("one", objects(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_every_object_of_the_manifest_keeps_its_schema(one):
    check(one)


@pytest.mark.parametrize(
    "path, value",
    [
        (["spec", "leaderWorkerTemplate", "size"], 0),
        (["spec", "leaderWorkerTemplate", "sise"], 3),
        (["spec", "leaderWorkerTemplate", "restartPolicy"], "Never"),
        (["spec", "leaderWorkerTemplate", "workerTemplate", "spec", "terminationGracePeriodSecond"], 3),
        (["spec", "leaderWorkerTemplate", "leaderTemplate", "spec", "containers", 0, "readinessProbe", "grpc"], {"port": "a"}),
    ],
)
def test_the_schemas_refuse_what_is_wrong(path, value):
    one = the("LeaderWorkerSet", "skippy")
    place = one
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(one)


def test_names_within_the_manifest_agree():
    group = the("LeaderWorkerSet", "skippy")["spec"]["leaderWorkerTemplate"]
    stages = the("ConfigMap", "skippy-stages")["data"]
    assert len(stages["LAYERS"].split()) == group["size"]
    ends = [tuple(map(int, one.split(".."))) for one in stages["LAYERS"].split()]
    assert ends[0][0] == 0 and all(left[1] == right[0] for left, right in zip(ends, ends[1:]))
    maps = {one["metadata"]["name"] for one in objects() if one["kind"] == "ConfigMap"}
    for template in templates().values():
        pod = template["spec"]
        (container,) = pod["containers"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert {source["configMapRef"]["name"] for source in container["envFrom"]} <= maps
        assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} <= maps
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = (container[probe].get("httpGet") or container[probe]["grpc"])["port"]
            assert port in ports or port in ports.values()
        assert "preStop" not in container.get("lifecycle", {})
    leader = templates()["leader"]["metadata"]["labels"]
    policy = the("NetworkPolicy", "skippy-workers")["spec"]["podSelector"]["matchLabels"]
    worker = templates()["worker"]["metadata"]["labels"]
    assert policy.items() <= worker.items() and not policy.items() <= leader.items()


def started(tmp_path, index, **settings):
    """What the start script of the manifest runs in the pod with this index: (exit code, arguments, stderr)."""
    script = tmp_path / "start.sh"
    script.write_text(the("ConfigMap", "skippy-start")["data"]["start.sh"])
    stub = tmp_path / "skippy-stage"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    env = {
        **the("ConfigMap", "skippy-stages")["data"],
        "PATH": f"{tmp_path}:{os.defpath}",
        "LWS_WORKER_INDEX": str(index),
        "LWS_GROUP_SIZE": "3",
        "LWS_LEADER_ADDRESS": "skippy-1.skippy.shop",
        **settings,
    }
    done = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines(), done.stderr


def value(args, flag):
    return args[args.index(flag) + 1]


@pytest.mark.parametrize("link, scheme", [("plain", "http"), ("tls", "https")])
def test_each_pod_starts_its_stage_and_finds_the_next(tmp_path, link, scheme):
    layers = ["0..20", "20..40", "40..60"]
    nexts = [f"{scheme}://skippy-1-1.skippy.shop:19000", f"{scheme}://skippy-1-2.skippy.shop:19000", None]
    for index in range(3):
        code, args, stderr = started(tmp_path, index, LINK=link)
        assert code == 0, stderr
        assert args[:2] == ["serve" if index == 0 else "stage", "/models/model"]
        assert value(args, "--layers") == layers[index]
        assert (value(args, "--next") if "--next" in args else None) == nexts[index]
        assert ("--insecure" in args) == (link == "plain")
        assert all((flag in args) == (link == "tls") for flag in ("--link-ca", "--link-cert", "--link-key"))
        assert ("--http" in args) == (index > 0) == ("--api-key-file" not in args)
        ports = {port["containerPort"] for port in templates()["worker" if index else "leader"]["spec"]["containers"][0]["ports"]}
        told = {int(value(args, flag).rpartition(":")[2]) for flag in ("--bind", "--http") if flag in args}
        assert told == ports


@pytest.mark.parametrize("settings", [{"LAYERS": "0..20 20..60"}, {"LINK": "none"}])
def test_settings_that_cannot_be_meant_start_nothing(tmp_path, settings):
    code, args, stderr = started(tmp_path, 0, **settings)
    assert (code, args) == (2, []) and stderr


@pytest.mark.parametrize("role", ["leader", "worker"])
def test_pods_get_the_time_that_stages_take_to_end(tmp_path, role):
    _, args, _ = started(tmp_path, 0 if role == "leader" else 1)
    assert templates()[role]["spec"]["terminationGracePeriodSeconds"] > seconds_to_end(args)


def seconds_to_end(args):
    return sum(int(value(args, flag)) for flag in ("--drain-delay", "--shutdown-timeout") if flag in args)


def unit(path):
    """Sections of a unit, each key with all its values; continued lines joined."""
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",), dict_type=Multi)
    parser.optionxform = str
    parser.read_string(re.sub(r"\\\n\s*", " ", path.read_text()))
    return {name: {key: text.split("\n") for key, text in parser.items(name)} for name in parser.sections()}


class Multi(dict):
    """Keeps every value of a key that is set several times, as units may."""

    def __setitem__(self, key, value):
        if isinstance(value, list) and key in self:
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_leave_time_to_end_and_are_confined(path):
    service = unit(path)["Service"]
    (start,) = service["ExecStart"]
    args = shlex.split(start)
    assert args[0] == "/usr/local/bin/skippy-stage"
    assert int(service["TimeoutStopSec"][0]) > seconds_to_end(args)
    assert service["DynamicUser"] == ["yes"] and service["NoNewPrivileges"] == ["yes"]
    held = {one.split(":")[0] for one in service["LoadCredential"]}
    assert set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/([\w-]+)", start)) == held


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_knows_every_line_of_the_units(path, tmp_path):
    if not shutil.which("systemd-analyze"):
        assert {(name, key) for name, section in unit(path).items() for key in section} <= UNIT_KEYS
        return
    # The program is looked for, so it is given one that is there.
    copy_of = tmp_path / path.name.replace("@", "@x")
    copy_of.write_text(path.read_text().replace("/usr/local/bin/skippy-stage", str(pathlib.Path(BIN).resolve())))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy_of], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


def flags_of(command):
    code, stdout, stderr = run(BIN, command, "--help")
    assert code == 0, stderr
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", stdout))


def named():
    """(file, subcommand, flag) of everything in deploy/ and docs/deploy.md that is passed to `skippy-stage`."""
    found = set()
    for path in UNITS:
        args = shlex.split(unit(path)["Service"]["ExecStart"][0])
        found |= {(path.name, args[1], arg) for arg in args if arg.startswith("--")}
    script = the("ConfigMap", "skippy-start")["data"]["start.sh"]
    shared = script.split("if [ \"$index\" -eq 0 ]")[0]
    both = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", shared))
    for command in ("serve", "stage"):
        (line,) = re.findall(rf"exec skippy-stage {command} .*", script)
        own = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", line))
        found |= {("start.sh", command, flag) for flag in both | own}
    text = re.sub(r"\\\n\s*", " ", DOC.read_text())
    for command, rest in re.findall(r"^\s+(?:\$ )?skippy-stage (serve|stage) (.*)$", text, re.MULTILINE):
        found |= {(DOC.name, command, flag) for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", rest)}
    return sorted(found)


def test_flags_are_found_in_every_place():
    places = {(place, command) for place, command, _ in named()}
    assert places == {
        ("skippy-stage-serve.service", "serve"),
        ("skippy-stage-worker@.service", "stage"),
        *((place, command) for place in ("start.sh", "deploy.md") for command in ("serve", "stage")),
    }


@pytest.mark.parametrize("command", ["serve", "stage"])
def test_every_flag_exists(command):
    known = flags_of(command)
    unknown = [(place, flag) for place, used, flag in named() if used == command and flag not in known]
    assert unknown == []


def test_flags_that_the_text_names_exist():
    text = DOC.read_text()
    known = flags_of("serve") | flags_of("stage") | flags_of("certs")
    tool = os.environ["SKIPPY_PACKAGE_BIN"]
    code, stdout, stderr = run(tool, "plan", "--help")
    assert code == 0, stderr
    known |= set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", stdout))
    named_in_text = set(re.findall(r"`(--[a-z][a-z0-9-]+)", text))
    assert named_in_text and named_in_text <= known, named_in_text - known
