"""One camera's footage of a scenario, replayed once: its labelled incidents and all that any strategy could send."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from appliance.alerts.evidence_plan import moments_of
from appliance.alerts.evidence_plan import plan as evidence_plan
from appliance.clock import Clock
from appliance.replay import runner
from appliance.replay.result import ReplayResult
from appliance.replay.runner import Manner, Progress, Show
from appliance.scenario import entries, truth
from appliance.scenario.answering import answering
from appliance.scenario.curve.labels import Labels, Truth, could_come, is_for_the_cloud, labelled
from appliance.scenario.curve.watch import Seen, Sighted, Watch
from appliance.scenario.expect import Wanted
from appliance.scenario.moved import moved
from appliance.scenario.plan import Part, Plan, with_uplink
from appliance.scenario.run import Models
from appliance.scenario.spool import Spool, true_looks
from appliance.types import Alert, FrameBoxes, Route, StreamHeader


@dataclass(frozen=True, slots=True)
class Question:
    """What the router would ask. moments: times that its pictures show, or of the event where it has none; bytes: of
    the question, and where a judge answered, of what it asked to see beyond."""

    route: Route
    moments: tuple[float, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footage:
    """What came of it. bytes: of the footage as the camera sent it; apart_s: within how many seconds alerts are merged,
    and so how far apart single frames are sent; alerts: those that the site would ask about, as its labels are;
    judged_by: who answered the questions, '' for nobody (see Alert.verdict for what was said)."""

    scenario: str
    camera: str
    model: str
    bytes: int
    seconds: float
    apart_s: float
    labels: Labels
    routes: tuple[Route, ...]
    questions: tuple[Question, ...]
    alerts: tuple[Alert, ...]
    seen: tuple[Seen, ...]
    sighted: tuple[Sighted, ...]
    judged_by: str = ""


def has_truth(plan: Plan) -> bool:
    """Whether the scenario says what truly happens in it, or what does not."""
    scenario = plan.scenario
    derived = scenario.truth is not None and scenario.truth.events is not None
    return bool(scenario.expect or scenario.never) or derived or scenario.others == "never"


def footage_of(plan: Plan, models: Models, clock: Clock, progress: Progress | None = None) -> tuple[Footage, ...]:
    """Replay every camera of a scenario with an uplink, so that the router has something to decide, in the scenario's
    own weather and with the verdicts it names. Raises SourceError when a clip cannot be read, ModelError, MissingPart,
    ConfigError (truth file), UsageError (cassette)."""
    plan = replace(plan, config=with_uplink(plan.config))
    config, eye = plan.config, models.get(plan.config.detector)
    found = []
    with ExitStack() as stack:
        answers = stack.enter_context(answering(plan))
        for part in plan.parts:
            watch = Watch(config, part.camera, eye.name)
            spool = stack.enter_context(Spool())
            reel = runner.clip_reel(part.clip, config, part.camera, eye)
            show = runner.under(Show((reel,), config, eye, answers=answers), plan.weather)
            manner = Manner(clock, progress=progress, hands=models.hands(config), watch=watch.look)
            (result,) = runner.play(show, spool, manner)
            found.append(_footage(plan, part, result, watch, spool))
    return tuple(found)


def _footage(plan: Plan, part: Part, result: ReplayResult, watch: Watch, spool: Spool) -> Footage:
    return Footage(
        scenario=plan.name,
        camera=part.camera,
        model=result.model,
        bytes=result.footage_bytes,
        seconds=result.footage_s,
        apart_s=plan.config.alerts.merge_s,
        labels=labelled(plan.config, _truth(plan, part, result, spool)),
        routes=result.routes,
        questions=tuple(_questions(plan, result, spool)),
        alerts=tuple(alert for alert in result.alerts if is_for_the_cloud(alert, plan.config)),
        seen=tuple(watch.seen),
        sighted=tuple(watch.sighted),
        judged_by=result.answered_by,
    )


def _questions(plan: Plan, result: ReplayResult, spool: Spool) -> Iterator[Question]:
    """The last question about each alert: one that is put off and then let go is the same. The moments are those that
    the evidence maker chooses for it, from the same looks."""
    settings = plan.config.escalation
    asked = {route.alert: route for route in result.routes if route.ask}
    waiting = sorted(asked.values(), key=lambda route: route.t)
    events = {event.id: event for event in result.events}
    beyond: dict[str, int] = defaultdict(int)
    for verdict in result.verdicts:
        beyond[verdict.alert] += verdict.more_bytes
    recent: deque[FrameBoxes] = deque()
    for look in spool.looks():
        recent.append(look)
        while recent[0].t < look.t - settings.span_s:
            recent.popleft()
        while waiting and waiting[0].t <= look.t:
            route = waiting.pop(0)
            cut = evidence_plan(route.evidence, None, 0).cut
            moments = moments_of(cut, settings, events[route.event], recent, None)
            shown = tuple(each.t for each in moments) or (route.t,)
            yield Question(route, shown, route.bytes + beyond[route.alert])
    yield from (Question(route, (route.t,), route.bytes + beyond[route.alert]) for route in waiting)


def _truth(plan: Plan, part: Part, result: ReplayResult, spool: Spool) -> Truth:
    settings = plan.scenario.truth
    looks: Sequence[FrameBoxes] = [replace(look, looked=True, objects=()) for look in spool.looks()]
    derived = False
    if settings is not None and plan.truth is not None and settings.camera in (None, part.camera):
        frames = moved(truth.read(plan.truth, settings, result.size), spool.looks(), plan.weather, result.size)
        looks = list(true_looks(spool, frames))
        derived = settings.events is not None
    header = StreamHeader(camera=part.camera, clip="", model="truth", size=result.size, run="truth")
    return Truth(header=header, looks=looks, wanted=list(_wanted(plan, part)), derived=derived)


def _wanted(plan: Plan, part: Part) -> Iterator[Wanted]:
    """The entries that can only be of this camera."""
    for each in entries.wanted(plan):
        able = [name.camera for name in plan.parts if could_come(name.camera, plan.config.cameras[name.camera], each)]
        if able == [part.camera]:
            yield each
