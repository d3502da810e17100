"""A wrong site file gets one clear sentence a fault: the line, the key, and the nearest right name."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance import config
from appliance.base import yamlfile
from appliance.base.clock import thread_cpu_s
from appliance.base.errors import ConfigError
from appliance.config import IngestConfig, SiteConfig
from appliance.config.site_file import CAMERAS_MAX

GOOD = """\
site: {name: depot-7}
detector: {model: vedette-nano}
cameras:
  gate:
    url: rtsp://viewer:${GATE_PASSWORD}@192.168.1.20/main
    detect_url: rtsp://viewer:${GATE_PASSWORD}@192.168.1.20/sub
    detect: {fps: 5}
    zones: {yard: [[0.10, 0.45], [0.95, 0.45], [0.95, 0.98], [0.10, 0.98]]}
    lines: {door: [[0.40, 0.20], [0.40, 0.80]]}
    rules:
      - {name: intruder, kind: enter, zone: yard, labels: [person], severity: alert}
      - {name: loiterer, kind: dwell, zone: yard, seconds: 20, labels: [person]}
      - {name: wrong-way, kind: line, line: door, direction: left_to_right, labels: [person, car]}
uplink: {url: "nats://127.0.0.1:4222"}
dashboard: {host: 127.0.0.1, port: 8080}
"""


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_PASSWORD", "hunter2")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        yamlfile.loads(text, SiteConfig, "site.yaml")
    return caught.value.problems


def test_the_contract_of_the_design_page_loads() -> None:
    site = yamlfile.loads(GOOD, SiteConfig)
    assert site.site.name == "depot-7"
    assert site.cameras["gate"].url == "rtsp://viewer:hunter2@192.168.1.20/main"
    assert [rule.kind for rule in site.cameras["gate"].rules] == ["enter", "dwell", "line"]


@pytest.mark.parametrize(
    ("right", "wrong", "line", "words"),
    [
        ("detect: {fps: 5}", "detect: {fsp: 5}", 7, "cameras.gate.detect.fsp: unknown key; did you mean `fps`?"),
        ("uplink:", "uplnk:", 14, "uplnk: unknown key; did you mean `uplink`?"),
        ("seconds: 20", "secnds: 20", 12, "rules.1.secnds: unknown key; did you mean `seconds`?"),
        ("line: door", "line: dor", 4, "there is no line `dor` on this camera (there is: door)"),
        ("zone: yard, labels: [person], severity", "zone: yrad, labels: [person], severity", 4, "no zone `yrad`"),
        ("kind: enter", "kind: entr", 11, "rules.0"),
        (
            "detect: {fps: 5}",
            "ignore: [strret]",
            4,
            "ignore: there is no zone `strret` on this camera (there is: yard)",
        ),
        (
            "detect: {fps: 5}",
            "ignore: [yard]",
            4,
            "zone `yard` is watched by rule `loiterer`, which could never report",
        ),
        ("severity: alert", "height_min: 1.5", 11, "less than or equal to 1"),
        ("//127.0.0.1:4222", "//hub..example:4222", 14, "uplink.url: names no host, or a port that is none"),
        ("uplink:", "notify: {a: {kind: webhook, url: 'http://h:99999/'}}\nuplink:", 14, "notify.a.url: the port is"),
        ("uplink:", "escalation: {local_judge: {url: 'http://127.0.0.1:8O/'}}\nuplink:", 14, "url: the port is"),
        (
            "severity: alert",
            "height_min: 0.5, height_max: 0.4",
            11,
            "no object is at least height_min: 0.5 and at most",
        ),
        ("[0.95, 0.98]", "[0.95, 1.98]", 8, "must be less than or equal to 1"),
        ("[[0.10, 0.45], [0.95, 0.45], [0.95, 0.98], [0.10, 0.98]]", "[[0.1, 0.4], [0.9, 0.4]]", 8, "at least 3"),
        ("[0.95, 0.45], [0.95, 0.98]", "[0.95, 0.98], [0.95, 0.45]", 8, "cross"),
        ("[[0.40, 0.20], [0.40, 0.80]]", "[[0.4, 0.2], [0.4, 0.2]]", 9, "same point"),
        ("rtsp://viewer:${GATE_PASSWORD}@192.168.1.20/main", "http://cam", 5, "must begin with rtsp://"),
        (
            "host: 127.0.0.1",
            "token: short",
            15,
            "dashboard.token: a token has at least 12 characters: take what `openssl",
        ),
        ("host: 127.0.0.1", 'host: 0.0.0.0, token: ""', 15, "at least 12 characters"),
        ("host: 127.0.0.1", "trusted_proxies: [proxy.lan]", 15, "`proxy.lan` is no address or network such as"),
        ("severity: alert", "severity: panic", 11, "'info', 'warning' or 'alert'"),
        ("name: loiterer", "name: intruder", 4, "two rules of this camera have this name"),
    ],
)
def test_each_fault_is_named_with_its_line_and_remedy(right: str, wrong: str, line: int, words: str) -> None:
    found = problems(GOOD.replace(right, wrong, 1))
    assert any(words in problem for problem in found), found
    assert any(problem.startswith(f"line {line}:") for problem in found), found


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("  gate:", "  1:", "line 4: cameras.1: YAML does not read"),
        ("  gate:", "  no:", 'line 4: cameras.no: YAML does not read this name as a text: write "no", in quotes'),
        ("{yard: [", "{2026-01-31: [", "line 8: cameras.gate.zones.2026-01-31: YAML does not read"),
        ("severity: alert", "on: alert", "line 11: cameras.gate.rules.0.on: YAML does not read"),
        ("detector:", "off: 1\ndetector:", "line 2: off: YAML does not read"),
    ],
)
def test_a_name_that_yaml_takes_for_something_else_is_said_as_it_was_written(right: str, wrong: str, told: str) -> None:
    assert any(each.startswith(told) for each in problems(GOOD.replace(right, wrong, 1)))


def test_several_faults_are_reported_at_once() -> None:
    found = problems(GOOD.replace("fps: 5", "fsp: 5").replace("uplink:", "uplnk:"))
    assert len(found) == 2


def test_a_key_written_twice_is_refused() -> None:
    assert problems(GOOD + "site: {name: other}\n") == ["line 16: site: the key is written twice"]


def test_an_unset_variable_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATE_PASSWORD")
    found = problems(GOOD)
    assert found[0].startswith("line 5: cameras.gate.url: the environment variable GATE_PASSWORD is not set")


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`VEDETTE_TOKEN=` in an environment file had opened the dashboard to everybody."""
    monkeypatch.setenv("VEDETTE_TOKEN", "")
    guarded = GOOD.replace("host: 127.0.0.1", 'host: 0.0.0.0, token: "${VEDETTE_TOKEN}"')
    assert problems(guarded)[0].startswith("line 15: dashboard.token: the environment variable VEDETTE_TOKEN is empty")
    monkeypatch.setenv("GATE_PASSWORD", "")
    site = yamlfile.loads(GOOD.replace("${GATE_PASSWORD}", "${GATE_PASSWORD:-guest}"), SiteConfig)
    assert "viewer:guest@" in site.cameras["gate"].url


def test_a_variable_may_have_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATE_PASSWORD")
    site = yamlfile.loads(GOOD.replace("${GATE_PASSWORD}", "${GATE_PASSWORD:-guest}"), SiteConfig)
    assert "viewer:guest@" in site.cameras["gate"].url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cameras: {gate: {url: [}", "not valid YAML"),
        ("just text", "must hold `key: value` lines"),
        ("", "cameras: this key is required"),
        ("- a\n- b", "must hold `key: value` lines"),
        ("cameras: {'../etc': {url: 'rtsp://x/y'}}", "cameras"),
        ("cameras: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a: &a [*a]", "not valid YAML"),
        ("a: " + "[" * 900 + "]" * 900, "nested too deep"),
        ("a: " + "{a: " * 900 + "}" * 900, "nested too deep"),
        ("port: " + "9" * 5000, "cannot be understood"),
        ("? [a, b]\n: 1", "line 1: a key is a word"),
        ("? {a: b}\n: 1", "line 1: a key is a word"),
        ("site: {name: 9999-99-99}", "cannot be understood"),
        ("site: {name: 2001-02-30}", "cannot be understood"),
    ],
)
def test_what_is_not_a_site_file_is_refused(text: str, words: str) -> None:
    assert any(words in problem for problem in problems(text)), problems(text)


def test_a_list_without_end_is_refused_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads to the end first finds the bracket that does not fit."""
    assert yamlfile.NODES_MAX == 100_000
    monkeypatch.setattr(yamlfile, "NODES_MAX", 1000)
    assert any("over 100000 values" in problem for problem in problems("a: [" + "1," * 1500 + "}"))
    assert any("not valid YAML" in problem and "over" not in problem for problem in problems("a: [" + "1," * 900 + "}"))


def test_a_site_file_beyond_its_bounds_is_refused_at_once_with_the_remedy(tmp_path: Path) -> None:
    """A list of 4 MB took 28 s, and 20,000 cameras over a minute."""
    path = tmp_path / "site.yaml"
    long = "cameras: {}\nx: [" + "1," * 600_000
    path.write_text(long)
    before = thread_cpu_s()
    with pytest.raises(
        ConfigError, match=r"site\.yaml: the file is over 1024 kB.*divide the cameras among more appliances"
    ):
        config.load(path)
    assert "over 1024 kB" in problems(long)[0], "as a change through the API and a restored backup come"
    many = "\n".join(f" c{n}: {{url: rtsp://a/{n}}}" for n in range(CAMERAS_MAX + 1))
    (problem,) = problems(f"cameras:\n{many}")
    assert problem.startswith("line 1: cameras: there are 257 cameras, and a site has at most 256: divide them among")
    assert thread_cpu_s() - before < 3
    last = many.rpartition("\n")[0]
    assert len(yamlfile.loads(f"cameras:\n{last}", SiteConfig).cameras) == CAMERAS_MAX


def test_too_many_cameras_are_refused_before_any_is_looked_at() -> None:
    with pytest.raises(ValueError, match="there are 20000 cameras") as caught:
        SiteConfig.model_validate({"cameras": {f"c{n}": {"url": 1} for n in range(20_000)}})
    assert "url" not in str(caught.value).partition("[type=")[0]


def test_no_password_in_errors_or_in_the_repr() -> None:
    site = yamlfile.loads(GOOD, SiteConfig)
    assert "hunter2" not in repr(site)
    found = problems(
        GOOD.replace("rtsp://viewer:${GATE_PASSWORD}@192.168.1.20/main", "rtp://viewer:${GATE_PASSWORD}@x/")
    )
    assert "hunter2" not in " ".join(found)


@pytest.mark.parametrize("secret", ["on", "zone", "Camera"])
def test_a_secret_that_is_a_plain_word_leaves_the_sentences_whole(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """`there is no zone `yrad` ${GATE_PASSWORD} this camera` would tell it, too."""
    monkeypatch.setenv("GATE_PASSWORD", secret)
    (found,) = problems(GOOD.replace("zone: yard, labels: [person], severity", "zone: yrad, severity"))
    assert "there is no zone `yrad` on this camera (there is: yard)" in found
    (found,) = problems(GOOD.replace("kind: enter, zone: yard", "kind: enter, zone: '${GATE_PASSWORD}'"))
    assert "there is no zone `${GATE_PASSWORD}` on this camera (there is: yard)" in found


def test_a_missing_or_binary_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        config.load(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        config.load(tmp_path / "binary.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(tmp_path)


def test_the_ingest_process_gets_no_secret_but_those_of_its_cameras() -> None:
    whole = SiteConfig.model_validate(
        {
            "cameras": {"gate": {"url": "rtsp://viewer:hunter2@127.0.0.1/x", "detect": {"fps": 3}}},
            "uplink": {"url": "nats://user:swordfish@127.0.0.1:4222"},
            "dashboard": {"token": "correct horse battery"},
            "notify": {"phone": {"kind": "webhook", "url": "http://127.0.0.1:1/x", "authorization": "Bearer xyzzy"}},
        }
    )
    line = whole.for_ingest().model_dump_json()
    assert "hunter2" in line
    for secret in ("swordfish", "correct horse", "xyzzy"):
        assert secret not in line
    assert IngestConfig.model_validate_json(line) == whole.for_ingest()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("Gate: {url: 'file:a.mp4'}", "cameras.Gate: a name is of small letters, digits, - and _, at most 32"),
        ("gate: {url: 'file:a.mp4', zones: {z: 12}}", "cameras.gate.zones.z: must be a list: [a, b]"),
        ("gate: 12", "cameras.gate: must be a section of `key: value` lines; known keys here: audio, "),
        ("gate: {url: 'file:a.mp4', rules: [{name: r}]}", "rules.0: the key 'kind' is required"),
        ("gate: {url: 'file:a.mp4', rules: [{name: r, kind: entr}]}", "rules.0: 'kind' `entr` is none of 'enter', "),
        ("gate: {url: 'file:a.mp4', rules: [{name: r, kind: enter, zone: z, labels: []}]}", "must have at least 1"),
        ('gate: {url: "file:a\\0b"}', "cameras.gate.url: holds the character \\0"),
    ],
)
def test_says_what_is_wrong_in_the_words_of_a_site_file(key: str, words: str) -> None:
    (said,) = problems(f"cameras:\n  {key}\n")
    assert said.startswith("line 2: ")
    assert words in said


def test_says_the_faults_in_the_order_of_the_file() -> None:
    said = problems("site: {nam: a}\ncameras:\n  gate:\n    urll: rtsp://a/b\nstorage: 4\n")
    assert [each.partition(":")[0] for each in said] == ["line 1", "line 3", "line 4", "line 5"]


def test_says_that_yaml_takes_no_tab() -> None:
    assert problems("site:\n\tname: a\n") == ["line 2: not valid YAML: a tab; YAML is indented by spaces"]


def test_names_the_line_of_a_character_that_yaml_forbids() -> None:
    assert problems("site:\n  name: a\0\n") == ["line 2: not valid YAML: the character \\x00"]
