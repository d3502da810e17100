"""The recipe for Ray Serve LLM against the fields of Ray's own models (tests/contract/ray_signatures.json).

Ray has 80 MB and wants GPUs, so a stand-in with its signatures, which refuses unknown fields as Ray does, takes the
recipe. Whether an engine comes up is unmeasured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

ROOT = Path(__file__).parents[2]
RAY = json.loads((Path(__file__).parent / "ray_signatures.json").read_text())
RECIPE = ROOT / "deploy" / "ray" / "vlm.yaml"


def model(name: str, **nested: Any) -> type[BaseModel]:
    """Make Ray's model of this name: its fields, those it requires, and no others. nested: the models of fields."""
    fields: dict[str, Any] = {}
    for each in RAY[name].split():
        field = each.removeprefix("*")
        fields[field] = (nested.get(field, Any), ... if each.startswith("*") else None)
    return create_model(name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)


AUTOSCALING = model("AutoscalingConfig")
# The name of a deployment is made by Ray: the options are those of @serve.deployment.
DEPLOYMENT = create_model(
    "Deployment", __base__=model("DeploymentSchema", autoscaling_config=AUTOSCALING), name=(str, "vlm")
)
CONFIG = model("LLMConfig", model_loading_config=model("ModelLoadingConfig"), deployment_config=DEPLOYMENT)
ARGS = model("LLMServingArgs", llm_configs=list[CONFIG])  # type: ignore[valid-type]
APPLICATION = model("ServeApplicationSchema", args=ARGS)
DEPLOY = model("ServeDeploySchema", applications=list[APPLICATION])  # type: ignore[valid-type]


def recipe() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(RECIPE.read_text())
    return found


def test_ray_takes_the_recipe() -> None:
    DEPLOY.model_validate(recipe())
    (application,) = recipe()["applications"]
    assert RAY["function"].startswith(f"{application['import_path']}(")
    (config,) = application["args"]["llm_configs"]
    scaling = config["deployment_config"]["autoscaling_config"]
    assert 1 <= scaling["min_replicas"] <= scaling["max_replicas"]


def test_its_engines_tell_nobody_of_themselves() -> None:
    (config,) = recipe()["applications"][0]["args"]["llm_configs"]
    assert config["runtime_env"] == {"env_vars": {"VLLM_NO_USAGE_STATS": "1"}}


@pytest.mark.parametrize("wrong", ["engine_args", "model_id", "autoscaling_config"])
def test_a_field_in_the_wrong_place_is_refused(wrong: str) -> None:
    given = recipe()
    given["applications"][0]["args"]["llm_configs"][0][wrong] = {}
    with pytest.raises(ValidationError, match=wrong):
        DEPLOY.model_validate(given)


def test_the_engine_is_told_what_kubernetes_tells_it() -> None:
    """An unknown name in engine_kwargs fails only when vLLM starts: each is a flag of the manifest."""
    manifest = (ROOT / "deploy" / "k8s" / "20-engine.yaml").read_text()
    (config,) = recipe()["applications"][0]["args"]["llm_configs"]
    for name, value in config["engine_kwargs"].items():
        flag = f"--{name.replace('_', '-')}={json.dumps(value, separators=(',', ':'))}"
        assert flag in manifest, name
