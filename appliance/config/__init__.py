"""The site file, its sections in a few modules. Every key is shown in `deploy/vedette.example.yaml`.

A module is loaded with the first of its names that somebody asks this package for: the ingest process reads six of the
sections, and the others would cost it 2 MB (`python -m benchmarks.memory`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.base.config_model import DetectorConfig as DetectorConfig
    from appliance.config.arming_config import ARMED as ARMED
    from appliance.config.arming_config import DISARMED as DISARMED
    from appliance.config.arming_config import ArmingConfig as ArmingConfig
    from appliance.config.camera_config import NO_MATTER_OF_ALERTS as NO_MATTER_OF_ALERTS
    from appliance.config.camera_config import BlurMode as BlurMode
    from appliance.config.camera_config import CameraConfig as CameraConfig
    from appliance.config.camera_config import CameraDecodeConfig as CameraDecodeConfig
    from appliance.config.camera_config import CameraName as CameraName
    from appliance.config.camera_config import CameraQuotaConfig as CameraQuotaConfig
    from appliance.config.camera_config import DetectConfig as DetectConfig
    from appliance.config.camera_config import DwellRule as DwellRule
    from appliance.config.camera_config import EnterRule as EnterRule
    from appliance.config.camera_config import ExitRule as ExitRule
    from appliance.config.camera_config import LatencyMode as LatencyMode
    from appliance.config.camera_config import LineRule as LineRule
    from appliance.config.camera_config import PrivacyConfig as PrivacyConfig
    from appliance.config.camera_config import Rule as Rule
    from appliance.config.camera_config import rule_labels as rule_labels
    from appliance.config.costs_config import CloudCostConfig as CloudCostConfig
    from appliance.config.costs_config import CostsConfig as CostsConfig
    from appliance.config.costs_config import EdgeCostConfig as EdgeCostConfig
    from appliance.config.costs_config import JudgeCostConfig as JudgeCostConfig
    from appliance.config.dashboard_config import DashboardConfig as DashboardConfig
    from appliance.config.escalation_config import BudgetConfig as BudgetConfig
    from appliance.config.escalation_config import EscalationConfig as EscalationConfig
    from appliance.config.escalation_config import LocalJudgeConfig as LocalJudgeConfig
    from appliance.config.escalation_config import OffPeakConfig as OffPeakConfig
    from appliance.config.escalation_config import PricesConfig as PricesConfig
    from appliance.config.escalation_config import RouterConfig as RouterConfig
    from appliance.config.health_config import HealthConfig as HealthConfig
    from appliance.config.ingest_config import OWN_NETWORKS_MAX as OWN_NETWORKS_MAX
    from appliance.config.ingest_config import DecodeConfig as DecodeConfig
    from appliance.config.ingest_config import IngestConfig as IngestConfig
    from appliance.config.ingest_config import RecheckConfig as RecheckConfig
    from appliance.config.mqtt_config import MqttConfig as MqttConfig
    from appliance.config.notify_config import AppriseTarget as AppriseTarget
    from appliance.config.notify_config import HttpTarget as HttpTarget
    from appliance.config.notify_config import NtfyTarget as NtfyTarget
    from appliance.config.notify_config import PushTarget as PushTarget
    from appliance.config.notify_config import Target as Target
    from appliance.config.notify_config import WebhookTarget as WebhookTarget
    from appliance.config.notify_config import signing_key as signing_key
    from appliance.config.site_file import AdjoiningConfig as AdjoiningConfig
    from appliance.config.site_file import AlertsConfig as AlertsConfig
    from appliance.config.site_file import DashboardSections as DashboardSections
    from appliance.config.site_file import DecisionConfig as DecisionConfig
    from appliance.config.site_file import LoadSheddingConfig as LoadSheddingConfig
    from appliance.config.site_file import ReplaySections as ReplaySections
    from appliance.config.site_file import SiteConfig as SiteConfig
    from appliance.config.site_file import SiteIdentity as SiteIdentity
    from appliance.config.site_file import load as load
    from appliance.config.site_file import loads as loads
    from appliance.config.site_file import of_cameras as of_cameras
    from appliance.config.storage_config import StorageConfig as StorageConfig
    from appliance.config.uplink_config import TtlHoursConfig as TtlHoursConfig
    from appliance.config.uplink_config import UplinkConfig as UplinkConfig
    from appliance.config.values import DAYS as DAYS
    from appliance.config.values import Schedule as Schedule
    from appliance.config.values import Share as Share
    from appliance.config.values import SharePoint as SharePoint
    from appliance.config.values import id_of as id_of

# Where each of these names is. A test holds the two lists against each other.
_HOMES = {
    "appliance.config.arming_config": "ARMED DISARMED ArmingConfig",
    "appliance.config.camera_config": (
        "NO_MATTER_OF_ALERTS BlurMode CameraConfig CameraDecodeConfig CameraName CameraQuotaConfig DetectConfig "
        "DwellRule EnterRule ExitRule LatencyMode LineRule PrivacyConfig Rule rule_labels"
    ),
    "appliance.config.costs_config": "CloudCostConfig CostsConfig EdgeCostConfig JudgeCostConfig",
    "appliance.config.dashboard_config": "DashboardConfig",
    "appliance.config.escalation_config": (
        "BudgetConfig EscalationConfig LocalJudgeConfig OffPeakConfig PricesConfig RouterConfig"
    ),
    "appliance.config.health_config": "HealthConfig",
    "appliance.config.ingest_config": "OWN_NETWORKS_MAX DecodeConfig IngestConfig RecheckConfig",
    "appliance.config.mqtt_config": "MqttConfig",
    "appliance.config.notify_config": (
        "AppriseTarget HttpTarget NtfyTarget PushTarget Target WebhookTarget signing_key"
    ),
    "appliance.config.site_file": (
        "AdjoiningConfig AlertsConfig DashboardSections DecisionConfig LoadSheddingConfig ReplaySections SiteConfig "
        "SiteIdentity load loads of_cameras"
    ),
    "appliance.config.storage_config": "StorageConfig",
    "appliance.config.uplink_config": "TtlHoursConfig UplinkConfig",
    "appliance.config.values": "DAYS Schedule Share SharePoint id_of",
    "appliance.base.config_model": "DetectorConfig",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found
