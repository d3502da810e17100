"""The tracker's tuned constants, in one place: unit, reason and source of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScoreTuning:
    """The scores of boxes, 0..1."""

    # Scores. Seven in eight boxes below score_min are on nothing, and a track that was lost clings to them.
    score_min: float = 0.2
    # From here on a box may begin a tentative track, which counts once it has been seen to walk.
    tentative_score_min: float = 0.3
    # From here on a box takes part in the first stage of matching; lower ones only continue tracks that are known.
    high_score: float = 0.4
    # From here on a box begins a track; rules start at the same score unless the site file says otherwise.
    spawn_score_min: float = 0.5
    # With a mean score from here on two detections confirm a track, below it three do.
    confirm_score: float = 0.6


@dataclass(frozen=True, slots=True)
class MatchTuning:
    """The overlaps and distances at which a box may continue a track."""

    # Matching. First stage: the overlap that is enough, or else the distance, for boxes of alike height.
    overlap_min: float = 0.1
    distance_max: float = 0.8
    # Second stage, of doubtful boxes, which must overlap.
    low_overlap_min: float = 0.4
    # The same where the track's last box was doubtful, too: in rain, in infrared or far away no better box is to be
    # expected, and a filter that was corrected by such boxes is further off. But a box of another height is a part of
    # the object and would lead the filter astray.
    poor_overlap_min: float = 0.2
    poor_growth: float = 1.5
    # After a gap only a box in the same place is believed.
    gap_overlap_min: float = 0.5
    # A standing object is matched first to a box that overlaps its place by so much: its boxes overlap by 0.8 and more,
    # those of people shoulder to shoulder by 0.3 at most.
    place_overlap_min: float = 0.6


@dataclass(frozen=True, slots=True)
class AppearanceTuning:
    """How much likeness counts."""

    # Appearances differ by 0.05 +- 0.05 for the same person and by 0.23 +- 0.10 for another: another one costs as much
    # as no overlap at all. Appearance only prefers, it forbids nothing.
    appearance_weight: float = 6.0
    # From so many samples on an appearance counts in full; it is a mean, never over more than samples_max.
    appearance_samples_min: int = 3
    appearance_samples_max: int = 10
    # What looks less alike than this is another one, however near: on PETS 0.5 finds fewer, 0.7 parts people from
    # themselves when they are half hidden.
    stranger_similarity_max: float = 0.6
    # Two boxes that overlap more share pixels enough to spoil an appearance.
    clear_overlap_max: float = 0.15


@dataclass(frozen=True, slots=True)
class SpawnTuning:
    """When a track begins, and what a tentative one must do to count."""

    # Spawning. A box that lies to such a part in one that is taken (or the other way round) is the same object twice.
    double_overlap_min: float = 0.7
    # A tentative track begins only apart from known ones, and ends when it meets one: then it is a part of it.
    tentative_overlap_max: float = 0.3
    # What a tentative track must do to count: detections, mean score, distance from where it began (boxes of what
    # stands breathe by less), total path over that distance (what trembles gets nowhere), and the longest step over it
    # (a box that jumps once, because something passed, does not walk).
    path_detections_min: int = 3
    path_score_min: float = 0.3
    path_distance_min: float = 0.3
    path_detour_max: float = 1.6
    path_step_max: float = 0.7


@dataclass(frozen=True, slots=True)
class StandstillTuning:
    """When an object stands still."""

    # Standing still: found in one place for so long, in so many detections. Boxes of what stands breathe by a third of
    # still_step_max from frame to frame. The place is the mean of the first boxes: who creeps away leaves it.
    still_s: float = 2.0
    still_detections_min: int = 3
    still_step_max: float = 0.25
    still_growth_max: float = 1.3
    still_boxes_max: int = 5
    # Frames that are further apart say nothing of the little speed that boxes of what stands seem to have.
    slow_s: float = 1.0


@dataclass(frozen=True, slots=True)
class LossTuning:
    """How long what is not seen is kept."""

    # Losing. Unseen for so long a track is given up; sooner at the frame's border, where it has more likely left than
    # been hidden, and is not looked for any more after left_misses.
    lost_s: float = 2.5
    left_s: float = 1.0
    left_misses: int = 2
    # Who is cut off by the border and goes outwards so fast (sizes a second) is not who is seen so much (sizes)
    # further in than expected: that one comes in.
    leaving_speed_min: float = 0.2
    leaving_step_max: float = 0.3
    # What is parked may be hidden by a lorry; what stands and is seen every few seconds must be missed more than once.
    hidden_s: float = 60.0
    still_misses: int = 3
    # The height of a vehicle's box grows or shrinks by less from one frame to the next; a lorry before it is as high.
    vehicle_growth_max: float = 2.0
    # One that was out of sight for longer than out_of_sight_s has changed by less than this; boxes of a car differ by a
    # tenth, a van is half as high again as a car. Behind where it was it is not found: boxes err by so much (sizes).
    hidden_growth_max: float = 1.3
    behind_max: float = 0.2
    # By boxes alone it is awaited no longer than this: cars follow each other at two seconds.
    vehicle_hidden_s: float = 1.5
    # What stood and was out of sight for so long may have left meanwhile: it is only taken for the same again in its
    # very place, and before it may move from there it must be found there so often, which what passes is not.
    out_of_sight_s: float = 0.5
    return_detections_min: int = 2
    # Whatever happens, nothing is kept longer unseen.
    gap_s: float = 60.0
    tracks_max: int = 300
    # The nearest that a cut-off box comes to the frame's border, in shares.
    edge: float = 0.015


@dataclass(frozen=True, slots=True)
class ReidTuning:
    """When what comes back is the same person."""

    # Re-identification. Behind a van or a pillar people are for a few seconds; later another person in the same clothes
    # is as likely. A brisk walk is two sizes a second, beside the uncertainty of the boxes; running is not meant.
    reid_s: float = 5.0
    reid_speed: float = 2.0
    reid_distance_max: float = 0.8
    # Who walks so fast (sizes a second) towards where somebody vanished, so far off (sizes), does not come from there.
    reid_pace_min: float = 0.5
    reid_towards_max: float = 0.5
    # 19 of 20 samples of one person are at least so alike; a second candidate must be clearly less alike.
    reid_similarity_min: float = 0.88
    reid_margin: float = 0.03


@dataclass(frozen=True, slots=True)
class ParkingTuning:
    """When a vehicle has parked."""

    # Parking. A vehicle that stands for so long has parked or waits at a light: the same vehicle still. Anything else
    # must stand longer to count as furniture.
    parked_s: float = 5.0
    furniture_s: float = 30.0
    # For so long, and no longer than it had stood, a place that looks the same is believed without a box.
    believed_s: float = 120.0
    # The patch of a place follows by so much of the difference a second: shadows wander, and headlights of three
    # seconds leave a third.
    patch_rate_per_s: float = 0.1
    patch_rate_max: float = 0.5
    patch_every_s: float = 1.0


@dataclass(frozen=True, slots=True)
class TrackerTuning:
    """Scores and overlaps are 0..1, times seconds in which a track was looked for, distances in sizes of the object.

    Chosen on PETS09-S2L1 with three networks at 3.3, 5 and 10 frames a second, each for a reason that does not depend
    on the clip, and checked on footage that was not used. Figures: docs/accuracy.md, fixtures/accuracy.json.
    """

    scores: ScoreTuning = ScoreTuning()
    matching: MatchTuning = MatchTuning()
    appearance: AppearanceTuning = AppearanceTuning()
    spawning: SpawnTuning = SpawnTuning()
    still: StandstillTuning = StandstillTuning()
    losing: LossTuning = LossTuning()
    reid: ReidTuning = ReidTuning()
    parking: ParkingTuning = ParkingTuning()

    @property
    def unmatched_cost(self) -> float:
        """Cost of a track without a box: that of a box which just is near enough, whatever it looks like."""
        return 2.0

    @property
    def cost_max(self) -> float:
        """Highest cost of a match: no overlap, but near, and of another appearance."""
        return self.unmatched_cost + self.appearance.appearance_weight


TUNING = TrackerTuning()
