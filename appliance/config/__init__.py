"""The site file: what the appliance is told by its owner. Every key is shown in `deploy/vedette.example.yaml`."""

from __future__ import annotations

from appliance.config.camera_config import BlurMode as BlurMode
from appliance.config.camera_config import CameraConfig as CameraConfig
from appliance.config.camera_config import CameraName as CameraName
from appliance.config.camera_config import DetectConfig as DetectConfig
from appliance.config.camera_config import DwellRule as DwellRule
from appliance.config.camera_config import EnterRule as EnterRule
from appliance.config.camera_config import ExitRule as ExitRule
from appliance.config.camera_config import LatencyMode as LatencyMode
from appliance.config.camera_config import LineRule as LineRule
from appliance.config.camera_config import NeverExportConfig as NeverExportConfig
from appliance.config.camera_config import PrivacyConfig as PrivacyConfig
from appliance.config.camera_config import Rule as Rule
from appliance.config.camera_config import RuleBase as RuleBase
from appliance.config.escalation_config import BudgetConfig as BudgetConfig
from appliance.config.escalation_config import EscalationConfig as EscalationConfig
from appliance.config.escalation_config import OffPeakConfig as OffPeakConfig
from appliance.config.escalation_config import PricesConfig as PricesConfig
from appliance.config.escalation_config import RecheckConfig as RecheckConfig
from appliance.config.escalation_config import RouterConfig as RouterConfig
from appliance.config.escalation_config import TtlHoursConfig as TtlHoursConfig
from appliance.config.escalation_config import UplinkConfig as UplinkConfig
from appliance.config.notify_targets import NtfyTarget as NtfyTarget
from appliance.config.notify_targets import Target as Target
from appliance.config.notify_targets import TargetName as TargetName
from appliance.config.notify_targets import WebhookTarget as WebhookTarget
from appliance.config.notify_targets import signing_key as signing_key
from appliance.config.site_file import AlertsConfig as AlertsConfig
from appliance.config.site_file import DashboardConfig as DashboardConfig
from appliance.config.site_file import HealthConfig as HealthConfig
from appliance.config.site_file import SiteConfig as SiteConfig
from appliance.config.site_file import SiteIdentity as SiteIdentity
from appliance.config.site_file import load as load
from appliance.config.storage_config import CameraQuotaConfig as CameraQuotaConfig
from appliance.config.storage_config import QuotaConfig as QuotaConfig
from appliance.config.storage_config import RecordingMode as RecordingMode
from appliance.config.storage_config import StorageConfig as StorageConfig
from appliance.config.values import DAYS as DAYS
from appliance.config.values import Amount as Amount
from appliance.config.values import Day as Day
from appliance.config.values import Schedule as Schedule
from appliance.config.values import Seconds as Seconds
from appliance.config.values import Share as Share
from appliance.config.values import SharePoint as SharePoint
from appliance.detector_config import DetectorConfig as DetectorConfig
