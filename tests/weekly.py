"""Tests that leave the usual run, and what in the usual run makes the same point.

They take the mark `slow`: `make test-slow` and, once a week, `make test-all` run them. The figures are CPU seconds of
one run of the whole suite on two cores, children included (tests/support/cpu_times.py counts such); all of them
together were a fifth of it.
"""

from __future__ import annotations

WEEKLY: dict[str, str] = {
    # 30 s, where PyTorch is; `make test-train` runs it as well
    "unit/test_train_remote.py::test_slices_on_machines_that_forget_end_as_one_run_does":
        "unit/test_train_network.py, a killed run goes on to the same bytes; the parts that are carried, in this file",
    # 25 s of an empty cache, half of it for the arithmetic of the renderer, which no appliance runs
    "unit/test_architecture.py::test_the_checks_of_make_lint_pass[types_of_tools]":
        "[types]: appliance and worker; `make lint` checks models, benchmarks and fixtures with them",
    # 28 s: the limit of a call without end is one mechanism for all children
    "unit/test_canary.py::test_each_kind_of_broken_network_is_stopped[hang]": "unit/test_sandbox.py",
    "system/test_detector_switch.py::test_a_network_that_does_not_come_up_is_put_in_quarantine_and_nothing_else_happens"
    "[hangs]": "the same with a network that fails",
    "system/test_shadow.py::test_one_that_fails_or_hangs_is_stopped_and_ingest_goes_on[hangs]": "the same with `fails`",
    # 20 to 46 s, with live cameras
    "system/test_detector_switch.py::test_where_memory_is_short_ingest_is_started_anew_and_it_says_so":
        "without memory for two networks, in the same file; a process that is killed comes back with the networks of "
        "the pointers, in the same file",
    # 7 to 13 s each: other faults go the same way to a judgement
    "unit/test_canary.py::test_each_kind_of_broken_network_is_stopped[slow]": "[crash]; the gates, in the same file",
    "unit/test_canary.py::test_each_kind_of_broken_network_is_stopped[memory]": "[crash]; the gates, in the same file",
    "unit/test_canary.py::test_each_kind_of_broken_network_is_stopped[labels]":
        "[crash], and the blind one in system/test_shadow.py",
    "unit/test_canary.py::test_each_kind_of_broken_network_is_stopped[night]":
        "system/test_shadow.py, one that is blind at night on live frames",
    "unit/test_canary.py::test_each_kind_of_broken_network_is_stopped[scores]":
        "[crash], and the blind one in system/test_shadow.py",
    "unit/test_canary.py::test_each_kind_of_broken_network_is_stopped[corner]":
        "the same without a network, in this file, and the blind one in system/test_shadow.py",
    "unit/test_canary.py::test_equal_networks_are_not_stopped[noise-2]": "system/test_shadow.py, an equal one agrees",
    "unit/test_canary.py::test_equal_networks_are_not_stopped[float16]": "system/test_shadow.py, an equal one agrees",
    "unit/test_canary.py::test_equal_networks_are_not_stopped[int8]": "system/test_shadow.py, an equal one agrees",
    "unit/test_canary.py::test_a_site_tries_a_network_on_its_recording_and_shows_what_differs":
        "unit/test_dashboard_models.py, from the page",
    # 4 to 14 s each: the appliance and the worker are watched in every run, every command once a week
    "system/test_nothing_leaves.py::test_nothing_is_looked_up_contacted_or_left_but_what_was_asked_for[models]":
        "[edge_only] and [worker]",
    "system/test_nothing_leaves.py::test_nothing_is_looked_up_contacted_or_left_but_what_was_asked_for[first_run]":
        "[edge_only] and [worker]",
    "system/test_nothing_leaves.py::test_nothing_is_looked_up_contacted_or_left_but_what_was_asked_for[openvino]":
        "[edge_only] and [worker]",
    "system/test_nothing_leaves.py::test_nothing_is_looked_up_contacted_or_left_but_what_was_asked_for[hailo]":
        "[edge_only] and [worker]",
    # 5 to 18 s each: the same footage, file or process once more
    "replay/test_replay_log.py::test_the_beginning_of_the_yard_replayed_twice_gives_the_same_bytes":
        "replay/test_replay_resume.py compares the bytes of two replays",
    "replay/test_scenario_run.py::test_pytest_collects_scenarios_and_reports_the_same_text":
        "the plugin as it is installed, in the same file",
    "replay/test_replay_conditions.py::test_pytest_runs_scenarios_in_the_given_conditions":
        "the plugin as it is installed, and the conditions without pytest",
    "replay/test_own_network.py::test_confirms_nothing_in_a_still_frame[yard]": "[gate]",
    "replay/test_own_network.py::test_finds_rendered_persons_as_well_as_recorded[yard]": "[gate]",
    "replay/test_keep.py::test_a_right_alert_is_kept_and_comes_again[0]":
        "[2]; without its recording the same alert passes, in the same file",
    "replay/test_keep_start.py::test_every_alert_of_the_demo_passes_under_the_settings_it_was_kept_with[yard]":
        "replay/test_keep.py keeps each alert of the other clip, and each passes",
    "replay/test_keep_start.py::test_every_alert_of_the_demo_passes_under_the_settings_it_was_kept_with[gate]":
        "replay/test_keep.py keeps each alert of the same clip, and each passes",
    "replay/test_replay_health.py::test_ordinary_footage_has_no_such_line_and_one_kind_can_be_left_out":
        "unit/test_tamper_detector.py::test_real_footage_has_no_fault",
    "replay/test_pets_accuracy.py::test_gives_as_many_of_six_visitors_one_number_as_recorded[vedette-nano]":
        "the persons followed, in the same file",
    "system/test_check.py::test_a_model_that_cannot_be_used_is_reported_in_one_sentence[nobody-made-this-"
    "nobody-made-this]": "[text.onnx]",
    "system/test_check.py::test_a_model_that_cannot_be_used_is_reported_in_one_sentence[absent.onnx-absent.onnx]":
        "[text.onnx]",
    "system/test_reconfigure_live.py::test_a_network_that_does_not_load_is_refused_and_recording_goes_on":
        "system/test_detector_switch.py, [refused]",
    "system/test_evidence_steps_nats.py::test_the_appliance_itself_is_killed_while_escalations_take_two_messages":
        "system/test_chaos.py kills it too",
    "system/test_ingest_confinement.py::test_another_back_end_loads_and_looks_confined": "the usual back-end",
    "system/test_cassette_nats.py::test_what_was_recorded_once_is_played_for_ever_with_no_server_running[good-0]":
        "[needs frame-1], which does more",
    "unit/test_redacted_clip.py::test_no_pixel_outside_the_objects_box_is_anything_but_mosaic[yard-4-span1-3]":
        "[yard-1-span0-1]",
    "unit/test_redacted_clip.py::test_no_pixel_outside_the_objects_box_is_anything_but_mosaic[gate-3-span2-3]":
        "[yard-1-span0-1]",
    "unit/test_track_identity.py::test_by_boxes_alone_a_busy_pavement_has_few_mistakes": "the pavement with pictures",
    "unit/test_track_identity.py::test_at_a_junction_no_car_has_the_number_of_one_that_waited_there[True-True-1]":
        "[False-True-0]",
    "unit/test_shown_secrets.py::test_no_answer_shows_a_secret[flow]": "[with_comments]",
    "unit/test_shown_secrets.py::test_no_answer_shows_a_secret[quoted]": "[with_comments]",
    "unit/test_dashboard_scenarios.py::test_what_is_kept_is_run_at_once_and_the_pages_say_what_came_of_it":
        "with a renamed zone, in the same file",
    "browser/test_access_page.py::test_an_alert_is_handed_over_and_its_span_erased[390]": "[1440]",
    # 4 to 20 s each: of a process that other tests of the usual run start, kill or starve as well
    "system/test_local_judge_live.py::test_an_appliance_without_an_uplink_answers_its_alerts":
        "without a process of its own: on a site without an uplink it has the last word",
    "system/test_ingest_process.py::test_it_ends_when_nobody_reads_any_more": "it ends when its parent does",
    "system/test_ingest_process.py::test_stray_prints_cannot_corrupt_a_channel_on_stdout": "the channel that is used",
    "system/test_core_restart.py::test_threads_and_memory_do_not_grow_with_requests":
        "unit/test_malloc.py, and the soak",
    "system/test_core_restart.py::test_an_ingest_process_that_is_killed_comes_back_within_seconds_and_shows_its_gap":
        "system/test_recording_outlives_peers.py, and system/test_outage.py for the gap",
    "system/test_health_live.py::test_a_frozen_image_leads_to_a_reconnection": "a stalled camera, in the same file",
    "system/test_reconfigure_live.py::test_a_camera_on_a_port_of_its_own_is_reached_by_a_new_process_and_the_next_one_"
    "there_by_the_same": "the new process for other detector settings, in the same file",
    "system/test_check.py::test_the_network_of_the_second_look_is_checked_too": "the network of the first",
    "system/test_check.py::test_a_clip_that_is_no_video_ends_replay_with_1_and_a_reason": "replay/test_streams.py",
    "replay/test_known_failing.py::test_pytest_expects_the_failure_and_no_success": "the same without pytest",
    "replay/test_scenario_run.py::test_pets_is_reported_as_well_as_it_was": "replay/test_pets_accuracy.py",
    "replay/test_own_network.py::test_confirms_nothing_in_the_dark": "an empty room and a still frame",
    "contract/test_engines.py::test_on_real_footage_a_person_is_found_again_and_an_empty_place_rejected[hog]":
        "[femto]",
    "unit/test_render_practice.py::test_a_folder_resumes_and_a_picture_is_its_numbers_alone":
        "unit/test_render.py: what is drawn does not change between runs",
    "unit/test_train_data.py::test_the_network_that_we_ship_has_learnt_from_no_evaluation_picture":
        "the fence itself, in the same file; the network changes only when one ships",
    # 3 to 21 s each: long footage through a whole replay; test_family.py replays a dozen short films, holds each log
    # against the accepted one and each event against the truth
    "replay/test_replay_log.py::test_pets_counts_are_as_they_were_accepted":
        "replay/test_pets_accuracy.py on the same footage; replay/test_family.py, the accepted logs",
    "replay/test_replay_log.py::test_the_yard_is_as_it_was_accepted": "replay/test_family.py, the accepted logs",
    "replay/test_replay_log.py::test_everyone_who_comes_into_the_yard_is_reported_and_no_one_else":
        "replay/test_family.py, what happens is reported and nothing else",
    "replay/test_scenario_run.py::test_the_bundled_clips_pass_with_the_reference_network[yard]":
        "replay/test_family.py with the network that ships",
    "replay/test_work_counts.py::test_a_clip_costs_no_more_work_than_it_did[yard-normal]": "[gate-normal]",
    "replay/test_work_counts.py::test_a_clip_costs_no_more_work_than_it_did[yard-thrifty]": "[gate-normal]",
    "replay/test_own_network.py::test_finds_rendered_persons_as_well_as_recorded[gate]":
        "replay/test_pets_accuracy.py; replay/test_family.py",
    "replay/test_own_network.py::test_confirms_nothing_in_a_still_frame[gate]": "the empty room, in the same file",
    "replay/test_motion_conditions.py::test_real_people_in_seeded_conditions_are_examined_as_in_dry[rain:10mm]":
        "[ir@10s,rain:25mm@12s]",
    "replay/test_motion_conditions.py::test_real_people_in_seeded_conditions_are_examined_as_in_dry[snow:5cm@5s]":
        "[ir@10s,rain:25mm@12s]",
    "unit/test_tamper_detector.py::test_real_footage_has_no_fault[intel_one-by-one-person]":
        "[pets09_s2l1_vtest_768x576]",
    "unit/test_tamper_detector.py::test_real_footage_has_no_fault[pets09_s2l1_vtest_480x360]":
        "[pets09_s2l1_vtest_768x576]",
    "contract/test_tensorrt.py::test_our_networks_are_built_on_every_version[10.16.1.11-int8-flags1-False]":
        "[vedette-nano] on the same versions",
    "contract/test_tensorrt.py::test_our_networks_are_built_on_every_version[11.4.0.106-int8-flags3-True]":
        "[vedette-nano] on the same versions",
    "replay/test_own_network.py::test_costs_no_more_than_its_teachers":
        "its operators and size, in the same file; it changes only when a network ships",
    "unit/test_track_identity.py::test_at_a_junction_no_car_has_the_number_of_one_that_waited_there[False-False-0]":
        "[False-True-0]",
    "unit/test_shown_secrets.py::test_no_answer_shows_a_secret[as_blocks]": "[with_comments]",
    "unit/test_render_family.py::test_a_frame_is_its_number_alone":
        "unit/test_render.py: what is drawn does not change between runs",
    # 3 s each, as the commands above
    "system/test_nothing_leaves.py::test_nothing_is_looked_up_contacted_or_left_but_what_was_asked_for[replay]":
        "[edge_only] and [worker]",
    "system/test_nothing_leaves.py::test_nothing_is_looked_up_contacted_or_left_but_what_was_asked_for[offline_tools]":
        "[edge_only] and [worker]",
    # 4 to 10 s each: of tools that no appliance runs
    "unit/test_evaluate_command.py::test_vedette_nano_is_not_worse_on_the_rendered_clips_than_it_was":
        "replay/test_family.py; the other tests of the file",
    "unit/test_evaluate_kinds.py::test_the_line_of_a_networks_scores_is_found": "the other tests of the file",
    "contract/test_gpu_benchmark.py::test_a_rehearsal_runs_from_an_empty_folder": "the other tests of the file",
    "unit/test_bench.py::test_each_way_is_measured_or_named_with_its_reason": "the other tests of the file",
    "unit/test_evaluate_empty.py::test_a_rendered_scene_has_no_people_and_its_cars_and_weather_stay":
        "the other tests of the file",
    "unit/test_render_practice.py::test_animals_alter_no_picture_that_has_none":
        "unit/test_render.py: what is drawn does not change between runs",
    # 3 to 13 s each: other moments or footage of one mechanism
    "system/test_core_restart.py::test_a_core_that_is_killed_again_and_again_loses_and_doubles_nothing":
        "system/test_chaos.py kills it, the broker and the worker, and counts",
    "replay/test_replay_resume.py::test_what_was_examined_is_not_examined_again[0]": "[1]",
    "replay/test_replay_resume.py::test_what_was_examined_is_not_examined_again[13]": "[1] and [29]",
    "replay/test_replay_log.py::test_the_beginning_of_pets_replayed_twice_gives_the_same_bytes":
        "replay/test_replay_resume.py compares the bytes of two replays",
    # 0.3 to 3.4 s each: one more scene, seed, size or coding of the same mechanism
    "replay/test_family.py::test_in_integers_the_same_scenarios_pass[ir_rain]": "[crowd]; every scene in floats",
    "replay/test_family.py::test_in_integers_the_same_scenarios_pass[parked]": "[crowd]; every scene in floats",
    "replay/test_family.py::test_in_integers_the_same_scenarios_pass[vehicles]": "[crowd]; every scene in floats",
    "replay/test_family.py::test_a_detector_that_sees_the_truth_passes[crowd]": "[parked]",
    "replay/test_family.py::test_a_detector_that_sees_the_truth_passes[ir_rain]": "[parked]",
    "replay/test_family.py::test_a_detector_that_sees_the_truth_passes[vehicles]": "[parked]",
    "replay/test_work_counts.py::test_a_clip_costs_no_more_work_than_it_did[gate-thrifty]":
        "[gate-normal]; unit/test_keyframe_policy.py counts what `thrifty` decodes",
    "replay/test_pets_accuracy.py::test_finds_persons_as_well_as_recorded[vedette-nano-int8]":
        "the persons followed, in the same file; replay/test_family.py in integers",
    "replay/test_pets_accuracy.py::test_finds_persons_as_well_as_recorded[vedette-nano]":
        "the persons followed: the same network on the same footage, with the number of boxes and MOTA",
    "contract/test_detectors.py::test_agrees_with_the_reference_on_real_frames[deimv2-femto]":
        "the other heads; this one by [onnx-tiny-detr], and on real footage contract/test_engines.py [femto]",
    "system/test_camera_variables.py::test_a_stream_that_names_a_variable_is_not_offered[False]": "[True]",
    "system/test_ingest_process.py::test_a_wrong_configuration_is_exit_2_and_one_sentence[{}\\n]": "[not json]",
    "system/test_ingest_process.py::test_a_wrong_configuration_is_exit_2_and_one_sentence[\\n]": "[], and [not json]",
    "browser/test_scenarios_page.py::test_an_alert_is_reviewed_kept_listed_and_deleted[desk-light]": "[phone-dark]",
    "unit/test_cascade.py::test_it_asks_about_all_at_first_and_keeps_most_at_the_edge_when_it_has_learnt[2]": "[1]",
    "unit/test_cascade.py::test_it_asks_about_all_at_first_and_keeps_most_at_the_edge_when_it_has_learnt[3]": "[1]",
    "unit/test_packet_sizes.py::test_an_hour_of_noise_gives_hardly_a_cue[300]": "[30] and [1200]",
    "unit/test_rule_trial.py::test_it_reports_what_the_live_pipeline_would_have_reported[2]": "[0] and [1]",
    "unit/test_rule_trial.py::test_it_reports_what_the_live_pipeline_would_have_reported[3]": "[0] and [1]",
    "unit/test_reconcile.py::test_killed_at_any_packet_all_but_the_last_second_is_found[13]": "[2] and [38]",
    "unit/test_reconcile.py::test_killed_at_any_packet_all_but_the_last_second_is_found[21]": "[2] and [38]",
    "unit/test_tamper_detector.py::test_weather_light_and_noise_are_no_illness[infrared@11s]":
        "[rain:20mm,infrared@11s]",
    "unit/test_tamper_detector.py::test_weather_light_and_noise_are_no_illness[night@11s]": "[night,noise:12]",
    "unit/test_tamper_detector.py::test_ordinary_footage_has_no_fault[yard]": "[gate]; real footage, in the same file",
    "unit/test_motion_gate.py::test_weather_raises_the_bar_and_never_closes_the_gate[rain]": "[heavy]",
    "unit/test_motion_gate.py::test_weather_raises_the_bar_and_never_closes_the_gate[insects]": "[heavy] and [snow]",
    "unit/test_motion_gate.py::test_somebody_tiny_and_far_away_is_a_reason_whatever_the_resolution[1280-720]":
        "[1920-1080] and [768-576]",
    "unit/test_motion_gate.py::test_an_exposure_step_is_a_change_of_the_whole_and_learnt_within_two_seconds[0.75]":
        "[1.35], as small a step",
    "unit/test_motion_gate.py::test_an_exposure_step_is_a_change_of_the_whole_and_learnt_within_two_seconds[1.8]":
        "[0.5], as large a step",
    "unit/test_tamper_detector.py::test_a_covered_lens_is_noticed[gate-covered]": "[yard-covered]",
    "unit/test_tamper_detector.py::test_a_covered_lens_is_noticed[gate-out_of_focus]": "[yard-out_of_focus]",
    "system/test_nothing_leaves.py::test_what_is_planted_is_found_also_in_a_child_of_a_child[a datagram]":
        "[another resolver], a datagram too",
    "unit/test_frame_selector.py::test_while_something_moves_frames_are_due_at_fps[25-5-5]": "[30-5-5]",
    "unit/test_frame_selector.py::test_while_something_moves_frames_are_due_at_fps[10-5-5]": "[12.5-5-4.5], [5-5-5]",
    # 0.3 to 11 s each, without Chromium, which takes as much again: another size of the same page, another kind of the
    # same fault, or what a page does that a test without a browser holds as well
    "browser/test_timeline_page.py::test_the_first_picture_of_h265_comes_soon":
        "the conversion itself, in the same file; unit/test_renditions.py; unit/test_live_feed.py, a page finds its "
        "child started",
    "browser/test_live_page.py::test_h265_is_converted_where_the_browser_cannot_play_it[libx265]":
        "the wall shows H.265, in the same file; unit/test_live_feed.py",
    "browser/test_live_page.py::test_a_wall_has_the_columns_the_order_and_the_size_that_a_person_gives_it[1440-900]":
        "[390-844]",
    "browser/test_live_page.py::test_a_wall_is_live_where_something_moves_and_enlarges_what_is_chosen[1440-900]":
        "[390-844]",
    "browser/test_headroom_page.py::test_an_overload_is_on_the_cameras_page_with_what_is_left[desk-light]":
        "[phone-dark]",
    "browser/test_camera_editor.py::test_a_changed_rule_is_tried_on_the_recording[desk]":
        "a trial that was made before, in the same file; unit/test_trials.py, it is begun by that request, and "
        "unit/test_trial_replay.py, a stricter rule loses the alert; browser/test_why_page.py waits for such a job",
    "browser/test_clip_plays.py::test_the_frame_on_screen_is_the_frame_of_that_time[0]": "[2], with B-frames",
    "browser/test_windows.py::test_windows_play_and_hear_of_changes_over_three_connections[7]":
        "[3]: as many connections for all of them",
    "browser/test_health_pages.py::test_the_timeline_and_the_cameras_page_show_it_on_a_phone_and_on_a_desk[desk-light]":
        "[phone-dark]",
    "browser/test_savings_page.py::test_the_charts_fit_and_have_a_table_behind_them[desk-light]": "[phone-dark]",
    "browser/test_storage_page.py::test_the_page_says_what_is_taken_how_long_it_lasts_and_what_went[desk-light]":
        "[phone-dark]",
    "browser/test_system_page.py::test_the_page_fits_and_keeps_itself_fresh[desk-light]": "[phone-dark]",
    "browser/test_review_pages.py::test_by_keys_alone[390]": "[1280]: a phone has no keys",
    "browser/test_review_pages.py::test_the_alert_of_a_page_is_deleted_and_taken_back[1280]": "[390]",
    "system/test_history_checker.py::test_a_planted_bug_is_found[verdict_acknowledged_before_applied]":
        "[escalation_outside_the_transaction], which is `lost` too",
    "system/test_history_checker.py::test_a_planted_bug_is_found[sent_before_stored]":
        "[escalation_outside_the_transaction], which is `lost` too",
    "system/test_history_checker.py::test_a_planted_bug_is_found[other_decision_written]":
        "[applied_without_looking], which is `doubled` too",
    "system/test_history_checker.py::test_a_planted_bug_is_found[decision_changed_by_its_reason]":
        "[applied_without_looking], which is `doubled` too",
    "system/test_history_checker.py::test_a_planted_bug_is_found[settled_goes_out_again]":
        "[acknowledged_before_stored], which is `order` too",
    "system/test_history_checker.py::test_a_planted_bug_is_found[least_urgent_first]":
        "[acknowledged_before_stored], which is `order` too",
    "system/test_history_checker.py::test_a_planted_bug_is_found[asked_twice_at_a_time]":
        "[paid_on_redelivery], which is `money` too",
    "system/test_local_judge_live.py::test_a_late_answer_of_the_cloud_changes_nothing[True]": "[False]",
    "system/test_recording_to_evidence.py::test_every_frame_is_found_where_it_was_recorded[0]": "[2], with B-frames",
    "system/test_ingest_process.py::test_a_wrong_configuration_is_exit_2_and_one_sentence[]": "[not json]",
    "replay/test_streams.py::test_what_a_camera_like_this_leaves_on_disk_can_be_played"
    "[media3_sample_edit_list_no_sync_frame_before_edit.mp4]": "[media3_sample_without_stss.mp4]; its frames, counted",
    "replay/test_streams.py::test_what_a_camera_like_this_leaves_on_disk_can_be_played"
    "[media3_internal_emulator_transformer_output_270_rotated.mp4]": "[media3_sample_rotate_and_reflect.mp4]",
    "replay/test_streams.py::test_every_file_gives_exactly_this"
    "[media3_internal_emulator_transformer_output_270_rotated.mp4]": "[media3_sample_rotate_and_reflect.mp4]",
    "replay/test_family.py::test_a_weaker_model_is_noticed[crowd-0.55-missed at 0:07.0: rule eastward, person]":
        "[rain-0.4-missed at 0:09.8: rule intruder, person]",
    "unit/test_hailo.py::test_hailo_where_there_is_none_is_refused_wherever_a_detector_is_used[run]":
        "[check]; how `run` refuses a detector: system/test_check.py, [device: cuda-run]",
}  # fmt: skip
