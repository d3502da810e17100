"""The worker file: where the escalations come from, who answers. All keys: `deploy/vedette-worker.example.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from appliance.base import yamlfile
from appliance.base.broker_config import REGION, BrokerAddress, BrokerConfig, BrokerUrl
from appliance.base.config_model import ConfigModel, DetectorConfig
from appliance.wire import PRICE_MAX, TEXT_CHARS_MAX, Need
from cloud_worker.prompt import AnswerOrder

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Share = Annotated[float, Field(ge=0, le=1)]


def _http(example: str) -> AfterValidator:
    """Return the check of an address of a web server, which takes the slashes from its end."""

    def checked(url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"must be an address such as {example}")
        return url.rstrip("/")

    return AfterValidator(checked)


class NatsConfig(BrokerConfig):
    """The broker of this worker's region, or the servers of its cluster."""

    url: BrokerUrl = "nats://127.0.0.1:4222"

    @field_validator("urls")
    @classmethod
    def _one_region(cls, urls: tuple[BrokerAddress, ...]) -> tuple[BrokerAddress, ...]:
        if len({each.region for each in urls}) > 1:
            raise ValueError("a worker serves one region: name the servers of its cluster, and run a worker for each")
        return urls


class StreamsConfig(ConfigModel):
    """Bounds of the four streams, used when the worker creates them."""

    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    escalation_days: Annotated[float, Field(gt=0, le=365)] = 7.0
    escalation_gb: Annotated[float, Field(gt=0)] = 1.0
    media_days: Annotated[float, Field(gt=0, le=365)] = 3.0
    media_gb: Annotated[float, Field(gt=0)] = 10.0
    verdict_days: Annotated[float, Field(gt=0, le=365)] = 14.0
    verdict_gb: Annotated[float, Field(gt=0)] = 1.0
    dead_days: Annotated[float, Field(gt=0, le=365)] = 30.0
    dead_gb: Annotated[float, Field(gt=0)] = 0.25
    duplicate_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 60.0


class RedetectEngine(DetectorConfig):
    """A second look by an object detector, which needs nothing else. It rejects or doubts; it never confirms."""

    kind: Literal["redetect"]
    score_min: Share = 0.3


class OpenAiEngine(ConfigModel):
    """Any server that speaks OpenAI's chat completions, such as vLLM."""

    kind: Literal["openai"]
    url: Annotated[str, Field(min_length=1, repr=False), _http("http://127.0.0.1:8000/v1")]
    model: Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]
    api_key: SecretStr | None = None
    answer_order: AnswerOrder = "reason_first"
    answer_order_by_rule: Annotated[dict[str, AnswerOrder], Field(max_length=256)] = {}
    reason_priority: Annotated[int, Field(ge=0, le=1000)] = 0
    images_max: Annotated[int, Field(ge=1, le=16)] = 4
    crop_side_max: Annotated[int, Field(ge=64, le=4096)] = 512
    image_side_max: Annotated[int, Field(ge=64, le=4096)] = 768
    second_look: bool = True
    second_side_max: Annotated[int, Field(ge=64, le=4096)] = 1536
    tokens_max: Annotated[int, Field(ge=64, le=4096)] = 400
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 60.0


EngineConfig = Annotated[RedetectEngine | OpenAiEngine, Field(discriminator="kind")]


class PooledEngineConfig(ConfigModel):
    """One of several engines. Those of a lower order are asked first; price: of one judgement, in your currency.

    evidence: the kinds that it may be asked about; null: all that it can look at. region: where it is.
    """

    name: Name
    engine: EngineConfig
    order: Annotated[int, Field(ge=0, le=16)] = 0
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    price: Annotated[float, Field(ge=0, le=PRICE_MAX)] = 0.0
    region: Annotated[str, Field(pattern=REGION)] | None = None
    evidence: tuple[Need, ...] | None = None


class FallbackConfig(ConfigModel):
    """How several engines stand in for each other (docs/worker.md)."""

    residency: tuple[Annotated[str, Field(pattern=REGION)], ...] = ()
    patience_s: Annotated[float, Field(ge=0, le=86400)] = 30.0
    probe_s: Annotated[float, Field(ge=0.1, le=3600)] = 30.0
    hedge_hour_max: Annotated[float, Field(ge=0, le=PRICE_MAX)] = 0.0


class SpotConfig(ConfigModel):
    """Notice of the cloud that this machine's spot capacity is taken back, and how long it leaves."""

    kind: Literal["none", "aws", "gcp", "azure"] = "none"
    url: Annotated[Annotated[str, _http("http://169.254.169.254")] | None, Field(repr=False)] = None
    every_s: Annotated[float, Field(ge=0.1, le=60)] = 5.0
    grace_s: Annotated[float, Field(ge=1, le=3600)] = 30.0


class ShedConfig(ConfigModel):
    """After how many seconds at the broker an escalation of a priority is answered without being judged."""

    high: Annotated[float, Field(gt=0, le=7 * 86400)] | None = None
    normal: Annotated[float, Field(gt=0, le=7 * 86400)] | None = None
    low: Annotated[float, Field(gt=0, le=7 * 86400)] | None = None

    def after_s(self, priority: str) -> float | None:
        """Return the limit of a priority; None: it waits for as long as it takes."""
        return {"high": self.high, "normal": self.normal, "low": self.low}.get(priority)


class HandlingConfig(ConfigModel):
    """How one worker process works. Any number of workers may run side by side."""

    name: Name | None = None
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    ack_wait_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    deliveries_max: Annotated[int, Field(ge=1, le=100)] = 5
    retry_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    engine_wait_max_s: Annotated[float, Field(ge=0, le=7 * 86400)] = 6 * 3600.0
    media_wait_s: Annotated[float, Field(ge=0, le=600)] = 5.0
    drain_s: Annotated[float, Field(ge=0, le=600)] = 20.0
    shed_s: ShedConfig = ShedConfig()


class StatusConfig(ConfigModel):
    """Where the worker reports its state: /metrics, /healthz and /readyz."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] | None = None


class ApiToken(ConfigModel):
    """A caller of /api/v1/analyze. cameras: whose pictures it may send, empty: of all; gpu_s_day: of the judge."""

    name: Name
    token: Annotated[SecretStr, Field(min_length=12)]
    site: Name = "api"
    cameras: tuple[str, ...] = ()
    per_minute: Annotated[int, Field(ge=1, le=6000)] = 30
    gpu_s_day: Annotated[float, Field(gt=0)] | None = None


class ApiConfig(ConfigModel):
    """Where the worker takes pictures over HTTP, and from whom. concurrency: items at a time, beside `worker`'s."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    tokens: Annotated[tuple[ApiToken, ...], Field(max_length=256)] = ()

    @model_validator(mode="after")
    def _guarded(self) -> ApiConfig:
        if self.port is not None and not self.tokens:
            raise ValueError('needs a token: `tokens: [{name: hall, token: "${API_TOKEN}"}]` (openssl rand -hex 16)')
        if len({each.name for each in self.tokens}) < len(self.tokens):
            raise ValueError("two tokens have the same name")
        return self


class PoolConfig(ConfigModel):
    """The facts that the worker announces about itself to the sites (docs/worker.md).

    `gpu_hour_file` is a file with the price.
    """

    every_s: Annotated[float, Field(ge=1, le=60)] = 15.0
    cold_start_s: Annotated[float, Field(ge=0, le=86400)] = 60.0
    gpu_hour: Annotated[float, Field(ge=0, le=PRICE_MAX)] | None = None
    gpu_hour_file: Path | None = None


class ArchiveConfig(ConfigModel):
    """A bucket for evidence and verdicts, with anything that speaks S3."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] | None = None
    url: Annotated[Annotated[str, _http("https://s3.example:9000")] | None, Field(repr=False)] = None
    region: str = "us-east-1"
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]{0,200}$")] = "vedette"
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None
    keep_days: Annotated[int, Field(ge=1, le=3650)] = 30
    link_hours: Annotated[float, Field(ge=0, le=168)] = 168.0
    tries: Annotated[int, Field(ge=1, le=20)] = 5
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 10.0
    waiting_max: Annotated[int, Field(ge=1, le=4096)] = 64
    threads: Annotated[int, Field(ge=1, le=16)] = 2


NO_ENGINE = (
    "is missing: say what judges. A vision-language model behind an OpenAI-compatible server, which can confirm: "
    "`engine: {kind: openai, url: http://127.0.0.1:8000/v1, model: NAME}` (deploy/vlm has a small one for any "
    "computer); or an object detector that looks again, which can only reject or doubt: `engine: {kind: redetect}`"
)


class WorkerConfig(ConfigModel):
    """The whole file."""

    nats: NatsConfig = NatsConfig()
    streams: StreamsConfig = StreamsConfig()
    engine: Annotated[EngineConfig, Field(validate_default=True)] = None  # type: ignore[assignment]  # refused in words
    engines: Annotated[tuple[PooledEngineConfig, ...], Field(max_length=16)] = ()
    fallback: FallbackConfig = FallbackConfig()
    spot: SpotConfig = SpotConfig()
    worker: HandlingConfig = HandlingConfig()
    pool: PoolConfig = PoolConfig()
    status: StatusConfig = StatusConfig()
    api: ApiConfig = ApiConfig()
    archive: ArchiveConfig = ArchiveConfig()

    @model_validator(mode="before")
    @classmethod
    def _first_engine(cls, data: Any) -> Any:
        """Take the first of `engines` where `engine` is left out."""
        given = data.get("engines") if isinstance(data, dict) else None
        first = given[0] if isinstance(given, (list, tuple)) and given else None
        if isinstance(first, dict) and "engine" in first and "engine" not in data:
            return {**data, "engine": first["engine"]}
        return data

    @model_validator(mode="after")
    def _distinct_and_allowed(self) -> WorkerConfig:
        names = [each.name for each in self.engines]
        if len(set(names)) < len(names):
            raise ValueError("engines: two have the same name, and each needs one of its own")
        allowed = self.fallback.residency
        abroad = [each.name for each in self.engines if allowed and each.region not in allowed]
        if abroad:
            text = f"fallback.residency allows {', '.join(allowed)}: take out {', '.join(abroad)}, or write the region"
            raise ValueError(text)
        return self

    @field_validator("engine", mode="before")
    @classmethod
    def _kind(cls, engine: object) -> object:
        if engine is None:
            raise ValueError(NO_ENGINE)
        if isinstance(engine, dict) and engine.get("kind") not in {"redetect", "openai"}:
            raise ValueError("kind must be openai (a language model's server) or redetect (an object detector)")
        return engine


def load(path: Path) -> WorkerConfig:
    """Read and check the worker file. Raise ConfigError with every fault, each with its line and remedy."""
    return yamlfile.load(path, WorkerConfig)
