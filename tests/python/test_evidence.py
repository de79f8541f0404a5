"""Experimental switches open only with evidence of this build on this machine; whatever else is shown stays closed, and says
why in the policy, in the log, in the metrics and in explanations."""

import hashlib
import json
import pathlib
import struct

import pytest
from server import BIN, BUNDLED, Server, run, run_to_end, samples

SWITCHES = ("selected_row_flash", "moe_weighted_down", "moe_merged_shared_gate_up")
METRIC = "skippy_experimental_switch_open"


def measurement(switch, **changes):
    return {"profile": "glm-dsa-v1", "switch": switch, "shape": {"n_tokens": 64, "n_kv": 8192, "top_k": 64},
            "parity_error": 2e-06, "tolerance": 0.0001, "speed_ratio": 1.25, **changes}


def seal(document):
    """The seal as docs/policy.md describes it."""
    canonical = {key: document[key] for key in ("version", "origin", "entries")}
    canonical["entries"] = [
        {key: struct.pack(">d", value).hex() if isinstance(value, float) else value for key, value in entry.items()}
        for entry in document["entries"]
    ]
    text = json.dumps(canonical, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def sealed(origin, entries):
    document = {"version": 2, "origin": dict(origin), "entries": entries}
    return {**document, "seal": seal(document)}


def write(directory, document):
    path = directory / "evidence.json"
    path.write_text(json.dumps(document) if isinstance(document, dict) else document)
    return str(path)


def start(*args):
    return Server("--lanes", "1", "--threads", "1", "--log-format", "json", *args, package=BUNDLED)


def told(server):
    """The state of every switch, and the evidence, as four places tell it alike."""
    status, body = server.get("/v1/policy")
    assert status == 200
    policy = json.loads(body)
    states = {state["switch"]: (state["open"], state.get("reason")) for state in policy["switches"]}
    assert set(states) == set(SWITCHES)
    lines = server.log_until(lambda line: '"model loaded"' in line)
    events = [event for event in map(json.loads, lines) if event["message"] == "experimental switch"]
    assert {event["switch"]: (event["open"], event.get("reason")) for event in events} == states
    assert len(events) == len(SWITCHES)
    series = {labels["switch"]: (bool(value), None if labels["reason"] == "open" else labels["reason"])
              for name, labels, value in samples(server.get("/metrics")[1]) if name == METRIC}
    assert series == states
    status, answer = server.post("/v1/policy/explain", {"phase": "decode", "n_tokens": 1, "n_kv": 500})
    assert status == 200 and answer["switches"] == policy["switches"]
    return states, policy["evidence"]


def resolved(path):
    """The state of every switch as `resolve` tells it."""
    code, out, err = run(BIN, "resolve", "--package", BUNDLED, "--phase", "decode", "--n-tokens", "1", "--n-kv", "500",
                         "--evidence", path, "--json")
    assert code == 0, err
    return {state["switch"]: (state["open"], state.get("reason")) for state in json.loads(out)["switches"]}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """This build and machine, as a server names them that was shown evidence of another one."""
    elsewhere = {"build": "0.0.0 (elsewhere)", "binary_sha256": "00" * 32, "llama": "none", "backend": "cpu",
                 "device": "Z80", "isa": "portable", "threads": 1}
    path = write(tmp_path_factory.mktemp("elsewhere"), sealed(elsewhere, [measurement("moe_weighted_down")]))
    server = start("--evidence", path)
    try:
        states, evidence = told(server)
        assert states["moe_weighted_down"] == (False, "evidence_foreign_build")
        assert states["selected_row_flash"] == (False, "evidence_missing")
        assert evidence["origin"] == elsewhere and evidence["intact"] is True
        lines = [json.loads(line) for line in server.log]
        different = [(line["field"], line["measured"]) for line in lines if "measured elsewhere" in line["message"]]
        assert {("binary_sha256", "00" * 32), ("device", "Z80")} <= set(different)
    finally:
        server.must_be_well()
    return evidence["here"]


def test_it_knows_its_own_binary_and_cpu(here):
    assert here["binary_sha256"] == hashlib.sha256(pathlib.Path(BIN).read_bytes()).hexdigest()
    assert here["backend"] == "cpu" and here["threads"] == 1
    names = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    assert not names or here["device"].startswith(names[0])


def test_without_evidence_every_switch_is_closed():
    server = start()
    try:
        states, evidence = told(server)
        assert states == dict.fromkeys(SWITCHES, (False, "evidence_missing")) and evidence is None
    finally:
        server.must_be_well()


def test_evidence_of_this_build_on_this_machine_opens_and_the_server_answers(here, tmp_path):
    path = write(tmp_path, sealed(here, [measurement(switch) for switch in SWITCHES]))
    server = start("--evidence", path)
    try:
        states, evidence = told(server)
        assert states == dict.fromkeys(SWITCHES, (True, None))
        assert evidence["origin"] == evidence["here"] == here and len(evidence["entries"]) == len(SWITCHES)
        request = {"prompt": "In the beginning God created the heaven and the earth. " * 12, "max_tokens": 24,
                   "temperature": 0, "ignore_eos": True}
        status, opened = server.post("/v1/completions", request)
        assert status == 200
    finally:
        server.must_be_well()
    server = start()
    try:
        assert server.post("/v1/completions", request)[1]["choices"][0]["text"] == opened["choices"][0]["text"]
    finally:
        server.must_be_well()


@pytest.mark.parametrize("name, changes, reason", [
    ("another binary", {"binary_sha256": "ab" * 32}, "evidence_foreign_build"),
    ("another commit", {"build": "0.1.0 (000000000000)"}, "evidence_foreign_build"),
    ("another llama.cpp", {"llama": "llama-cpp-sys-2 0.0.1"}, "evidence_foreign_build"),
    ("another CPU", {"device": "AMD EPYC 7"}, "evidence_foreign_cpu"),
    ("other kernels", {"isa": "abacus"}, "evidence_foreign_cpu"),
    ("another backend", {"backend": "cuda"}, "evidence_missing"),
    ("threads are no reason", {"threads": 96}, None),
])
def test_moved_evidence_closes_the_gate(here, tmp_path, name, changes, reason):
    path = write(tmp_path, sealed({**here, **changes}, [measurement("moe_weighted_down")]))
    assert resolved(path)["moe_weighted_down"] == (reason is None, reason), name


@pytest.mark.parametrize("edit, reason", [
    (lambda file: file["entries"][0].update(speed_ratio=9.0), "evidence_edited"),
    (lambda file: file["entries"][0].update(parity_error=0.0), "evidence_edited"),
    (lambda file: file["entries"][0].update(switch="selected_row_flash"), "evidence_edited"),
    (lambda file: file["origin"].update(device="Z80"), "evidence_edited"),
    (lambda file: file["entries"].append(file["entries"][0]), "evidence_edited"),
    (lambda file: file.update(seal="sha256:" + "0" * 64), "evidence_edited"),
    # Without a broken seal, what it says counts.
    (lambda file: file["entries"].append(measurement("moe_weighted_down", speed_ratio=0.99)) or resealed(file),
     "evidence_no_win"),
    (lambda file: file["entries"].append(measurement("moe_weighted_down", parity_error=0.001)) or resealed(file),
     "parity_failed"),
])
def test_forged_or_losing_evidence_closes_the_gate(here, tmp_path, edit, reason):
    file = sealed(here, [measurement("moe_weighted_down")])
    assert resolved(write(tmp_path, file))["moe_weighted_down"] == (True, None)
    edit(file)
    assert resolved(write(tmp_path, file))["moe_weighted_down"] == (False, reason)


def resealed(file):
    file["seal"] = seal(file)


@pytest.mark.parametrize("text, said", [
    (None, "cannot read the evidence in"),
    ("", "evidence is not valid"),
    ("PK\x03\x04", "evidence is not valid"),
    ("[]", "evidence is not valid"),
    ('{"version": 1, "entries": []}', "evidence has `version` 1, expected 2"),
    ('{"version": 2, "origin": {"threads": "all"}}', "`origin.threads`"),
])
def test_garbage_is_a_start_error_that_names_file_and_field(tmp_path, text, said):
    path = str(tmp_path / "none.json") if text is None else write(tmp_path, text)
    for command in (run_to_end(BUNDLED, "--evidence", path), run_to_end(BUNDLED, "--evidence", path, "--check"),
                    run(BIN, "stage", BUNDLED, "--layers", "4..9", "--evidence", path)):
        code, _, err = command
        assert code != 0 and path in err and said in err, err


def test_the_bench_writes_evidence_of_this_build(here, tmp_path):
    path = str(tmp_path / "evidence.json")
    # Two threads: what the measurement ran on is told, and is no reason to refuse it.
    code, _, err = run(BIN, "bench", "phase-e", "--only", "decode", "--quick", "--rounds", "1", "--threads", "2",
                       "--evidence", path)
    assert code == 0, err
    file = json.loads(pathlib.Path(path).read_text())
    assert file["origin"] == {**here, "threads": 2} and file["seal"] == seal(file)
    assert {entry["switch"] for entry in file["entries"]} == {"selected_row_flash"}
    # What it wins depends on the machine. It is taken for what it says.
    wins = all(entry["speed_ratio"] > 1 for entry in file["entries"])
    assert all(entry["parity_error"] <= entry["tolerance"] for entry in file["entries"])
    states = resolved(path)
    assert states["selected_row_flash"] == ((True, None) if wins else (False, "evidence_no_win"))
    assert states["moe_weighted_down"] == (False, "evidence_missing")
    file["entries"][0]["speed_ratio"] = 9.0
    assert resolved(write(tmp_path, file))["selected_row_flash"] == (False, "evidence_edited")
