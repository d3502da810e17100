"""The pages of the appliance as a whole: /system, /models, /storage, /scenarios, /proofs, /agreement."""

from __future__ import annotations

from starlette.responses import HTMLResponse

from appliance.base.credentials import PASSPHRASE_LENGTH_MIN
from appliance.base.telemetry import LOG_LEVELS
from appliance.dashboard import scenarios_api, storage_api, timeline_api
from appliance.dashboard.agreement_api import AgreementPart
from appliance.dashboard.backup_api import Backups
from appliance.dashboard.deps import Rev
from appliance.dashboard.models_api import REFUSALS, Models
from appliance.dashboard.proofs_api import CandidatesPart, ProofItem, ProofPart, ProverPart
from appliance.dashboard.recording_jobs_api import Jobs
from appliance.dashboard.scenarios_api import Exporter
from appliance.dashboard.settings_api import Settings
from appliance.dashboard.storage_api import StoragePart, StorageReport
from appliance.dashboard.system_api import DROP_TEXTS, LOG_SHOWN, Level, System
from appliance.web.auth import TemplatesPart
from appliance.web.problems import refused_as
from appliance.web.routes import RouteList

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/system")
def system_page(
    templates: TemplatesPart, reader: System, backups: Backups, settings: Settings, level: Level = "info"
) -> HTMLResponse:
    """How the appliance does, for who looks after it."""
    return templates.page(
        "system.html", here="/system", report=reader.report(), log=reader.log(level, LOG_SHOWN), level=level,
        levels=LOG_LEVELS[1:4], drop_texts=DROP_TEXTS, kept=backups.report(), can_back_up=settings.is_editable,
        length_min=PASSPHRASE_LENGTH_MIN,
    )  # fmt: skip


@router.get("/models")
def models_page(templates: TemplatesPart, reader: Models, prover: ProverPart) -> HTMLResponse:
    """Return the page of the networks that are here and that can be had. Raise Problem if one cannot be read."""
    with refused_as(REFUSALS):
        return templates.page(
            "models.html", here="/models", report=reader.report(), trial=prover.newest, tried=prover.tried()
        )


@router.get("/storage")
def storage_page(rev: Rev, templates: TemplatesPart, cache: StoragePart) -> HTMLResponse:
    """Return the page of what the recording takes, how long that lasts, and what was deleted."""
    found = StorageReport.of(cache.read())
    return templates.page(
        "storage.html",
        here="/storage",
        rev=rev,
        storage=found,
        class_texts=storage_api.CLASS_TEXTS,
        reason_texts=timeline_api.REASON_TEXTS,
        mode_texts=storage_api.MODE_TEXTS,
        days=storage_api.days,
        outlook=storage_api.sentence(found.forecast),
        lasts={each.camera: storage_api.lasts(each) for each in found.cameras},
    )


@router.get("/scenarios")
def scenarios_page(rev: Rev, templates: TemplatesPart, exporter: Exporter, jobs: Jobs) -> HTMLResponse:
    """Return the page of alerts that were kept to prove changes on."""
    kept, run = scenarios_api.listed(exporter), scenarios_api.ScenarioRun.of(jobs)
    return templates.page(
        "scenarios.html", here="/scenarios", rev=rev, kept=kept, run=run, outcomes=scenarios_api.OUTCOME_TEXTS
    )


@router.get("/proofs")
def proofs_page(rev: Rev, templates: TemplatesPart, store: ProofPart, candidates: CandidatesPart) -> HTMLResponse:
    """Return the page of networks and settings that were tried on the recording, with the frames that differ."""
    found, waiting = [ProofItem.of(each) for each in store.all()], [each.name for each in candidates.waiting()]
    return templates.page("proofs.html", here="/scenarios", rev=rev, found=found, waiting=waiting)


@router.get("/agreement")
def agreement_page(rev: Rev, templates: TemplatesPart, reader: AgreementPart) -> HTMLResponse:
    """Return the page with the alerts that are wrong since a fall began, and how often alerts are right."""
    return templates.page("agreement.html", here="/agreement", rev=rev, found=reader.report())
