"""Reads third-party footage that training may use, frame by frame, with labels from the teachers.

A list, not a folder scan: what is not named here is not used, so that evaluation footage cannot slip in by being there.
"""

from __future__ import annotations

from dataclasses import dataclass

APACHE, CC_BY, BSD = "Apache-2.0", "CC-BY-4.0", "BSD"


@dataclass(frozen=True, slots=True)
class Clip:
    """A film under data/, its licence as its repository states it, and that every Nth frame is taken."""

    path: str
    licence: str
    every: int


CLIPS: tuple[Clip, ...] = (
    Clip("footage/ambianic_frontdoor_720p.mkv", APACHE, 4),
    Clip("footage/ambianic_office_1fps.avi", APACHE, 1),
    Clip("footage/aws_building_street_vfr.mkv", APACHE, 15),
    Clip("footage/intel_preview_people-detection.gif", CC_BY, 4),
    Clip("footage/intel_preview_store-aisle-detection.gif", CC_BY, 5),
    Clip("footage/intel_preview_worker-zone-detection.gif", CC_BY, 5),
    Clip("footage/intel_preview_classroom.gif", CC_BY, 8),
    Clip("footage/intel_preview_face-demographics-walking.gif", CC_BY, 4),
    Clip("streams/kvs_bezos_vogels.mkv", APACHE, 30),
    Clip("streams/kvs_output-get-media-non-increasing-timecode.mkv", APACHE, 20),
    Clip("streams/kvs_output_get_media_sparse_fragments.mkv", APACHE, 15),
    Clip("streams/kvs_vogels_330.mkv", APACHE, 45),
    Clip("streams/decord_pancake.mkv", APACHE, 30),
    Clip("streams/media3_internal_emulator_transformer_output_270_rotated.mp4", APACHE, 15),
    Clip("streams/media3_sample_without_stss.mp4", APACHE, 15),
    Clip("streams/media3_sample_12_5fps_720p_1s.mp4", APACHE, 6),
    Clip("streams/media3_bt601.mp4", APACHE, 15),
    Clip("streams/openh264_BA_MW_D_IDR_LOST.264", BSD, 20),
    Clip("streams/openh264_Cisco_Men_whisper_640x320_CABAC_Bframe_9.264", BSD, 8),
    Clip("streams/openh264_VID_1280x720_cabac_temporal_direct.264", BSD, 30),
    Clip("streams/openh264_Zhling_1280x720.264", BSD, 9),
    Clip("streams/torchcodec_nasa_13013.mp4", BSD, 25),
)
