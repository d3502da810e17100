"""The site file: what the appliance is told by its owner. Every key is shown in `deploy/vedette.example.yaml`."""

from __future__ import annotations

from appliance.config.camera import Blur as Blur
from appliance.config.camera import Camera as Camera
from appliance.config.camera import CameraName as CameraName
from appliance.config.camera import Detect as Detect
from appliance.config.camera import Latency as Latency
from appliance.config.camera import Never as Never
from appliance.config.camera import Privacy as Privacy
from appliance.config.escalation import Budget as Budget
from appliance.config.escalation import Escalation as Escalation
from appliance.config.escalation import OffPeak as OffPeak
from appliance.config.escalation import Prices as Prices
from appliance.config.escalation import Router as Router
from appliance.config.escalation import SecondLook as SecondLook
from appliance.config.escalation import TtlHours as TtlHours
from appliance.config.escalation import Uplink as Uplink
from appliance.config.notify import NtfyTarget as NtfyTarget
from appliance.config.notify import Target as Target
from appliance.config.notify import TargetName as TargetName
from appliance.config.notify import WebhookTarget as WebhookTarget
from appliance.config.notify import signing_key as signing_key
from appliance.config.rules import DwellRule as DwellRule
from appliance.config.rules import EnterRule as EnterRule
from appliance.config.rules import ExitRule as ExitRule
from appliance.config.rules import LineRule as LineRule
from appliance.config.rules import Rule as Rule
from appliance.config.rules import RuleBase as RuleBase
from appliance.config.site import Alerts as Alerts
from appliance.config.site import Dashboard as Dashboard
from appliance.config.site import Health as Health
from appliance.config.site import Site as Site
from appliance.config.site import SiteConfig as SiteConfig
from appliance.config.site import load as load
from appliance.config.storage import CameraQuota as CameraQuota
from appliance.config.storage import Quota as Quota
from appliance.config.storage import Recording as Recording
from appliance.config.storage import Storage as Storage
from appliance.config.values import DAYS as DAYS
from appliance.config.values import Amount as Amount
from appliance.config.values import Day as Day
from appliance.config.values import Schedule as Schedule
from appliance.config.values import Seconds as Seconds
from appliance.config.values import Share as Share
from appliance.config.values import SharePoint as SharePoint
from appliance.model import Detector as Detector
