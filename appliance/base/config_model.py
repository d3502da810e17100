"""Defines the base class of all parts of a configuration, and the section `detector`, without a YAML library.

The section says which detector model runs, and how: it is the same in the site file and in the worker's file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ConfigModel(BaseModel):
    """Frozen, and unknown keys are refused.

    pydantic would keep the short texts of all JSON that it reads in a table, up to 16,384 of them: 0.3 MB at once, more
    with time, and nothing is read faster for it here (1.5 us a message of the ingest channel either way).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, cache_strings="none"
    )


Backend = Literal["auto", "onnx", "openvino", "tensorrt", "hailo", "hog"]
Device = Literal["auto", "cpu", "cuda", "gpu", "npu"]
Precision = Literal["auto", "fp32", "int8", "bf16", "fp16"]
Fallback = Literal["refuse", "cpu"]
Provider = Literal["cuda", "tensorrt"]
HeadName = Literal[
    "auto", "yolox", "detr", "rf-detr", "yolo", "nanodet", "picodet", "fastestdet", "ssd"
]  # fmt: skip


class HailoConfig(ConfigModel):
    """The settings of `backend: hailo`. python: the one that has HailoRT's bindings; auto: this one, else the system's.

    scheduler_*: of HailoRT, which shares the device among networks: how many frames a network collects before it gets
    the device, and for how long at most. answer_s: an inference that takes longer counts as a lost device.
    """

    python: Annotated[str, Field(min_length=1)] = "auto"
    multi_process_service: bool = False
    scheduler_timeout_ms: Annotated[int, Field(ge=0, le=1000)] = 0
    scheduler_threshold: Annotated[int, Field(ge=1, le=64)] = 1
    answer_s: Annotated[float, Field(ge=0.1, le=5)] = 2.0


class DetectorConfig(ConfigModel):
    """The network and what runs it.

    backend: what runs the model; auto: the fastest here of what is known to be as accurate, on any device that `device`
    leaves open. gpu and npu are Intel's, by OpenVINO; cuda: NVIDIA's, by ONNX Runtime or TensorRT, which has no other
    device. provider: with backend onnx on cuda, what runs it there. dla_core: with tensorrt, one of Orin's two DLAs. A
    requested device that is absent is refused, unless `fallback` lets the CPU stand in for it, which is a health event.
    labels: a text file with one name a line, or `coco-80`.
    """

    model: Annotated[str, Field(min_length=1)] = "auto"
    backend: Backend = "auto"
    device: Device = "auto"
    provider: Provider = "cuda"
    dla_core: Annotated[int, Field(ge=0, le=1)] | None = None
    precision: Precision = "auto"
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    fallback: Fallback = "refuse"
    head: HeadName = "auto"
    labels: Path | None = None
    score_min: Annotated[float, Field(ge=0, le=1)] = 0.1
    hailo: HailoConfig = HailoConfig()

    @model_validator(mode="before")
    @classmethod
    def _tensorrt_has_one_device(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("backend") == "tensorrt":
            return {"device": "cuda", **given}
        return given

    def with_model(self, model: str) -> DetectorConfig:
        """Return the section with another network; precision, labels and head are that network's own."""
        usual = {"precision": "auto", "labels": None, "head": "auto"}
        return self if model == self.model else self.model_copy(update={**usual, "model": model})
