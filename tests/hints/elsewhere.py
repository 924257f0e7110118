"""Codes whose situations need more than one server and one daemon, or that no real server causes.

ELSEWHERE names for each code the test that causes the error and follows its hint, or the reason why there is no
such test. REPORTED_AS has the codes that a daemon always reports under another code.
"""

NEVER_RAISED = "the base class of other errors, never raised itself"

ELSEWHERE: dict[str, str] = {
    "CDCD-SOURCE-OPTION": NEVER_RAISED,
    # the daemon and its host
    "CDCD-INTERNAL": "tests/unit/process/test_supervisor.py::"
    "test_an_error_outside_the_tree_halts_without_showing_what_it_says",
    "CDCD-OUT-OF-MEMORY": "tests/faults/test_fault_17_memory_limit.py::"
    "test_a_transaction_for_which_there_is_no_memory",
    "CDCD-SPILL-LOST": "tests/faults/test_fault_16_spill_disk.py::"
    "test_a_folder_that_is_removed_costs_a_new_session_and_no_row",
    "CDCD-SNAPSHOT-REFUSED": "tests/unit/cli/test_snapshot.py::"
    "test_a_command_without_a_daemon_asks_to_start_it_and_then_succeeds",
    "CDCD-NOT-STREAMING": "tests/unit/cli/test_snapshot.py::"
    "test_a_command_between_two_sessions_is_repeated_later",
    "CDCD-STACK": "raised by the local servers of the demo, never by a daemon",
    # PostgreSQL
    "CDCD-SOURCE-STREAMING": "tests/integration/test_streaming_fails.py::"
    "test_a_server_that_cannot_stream_what_is_open_is_read_without_streaming",
    "CDCD-SLOT-DROPPED-BY-WAL-GUARD": "tests/integration/test_wal_guard.py::"
    "test_a_slot_that_streams_is_released_before_it_is_given_up",
    "CDCD-SLOT-UNSYNCHRONISED": "promotion drops such a copy of a slot, so the daemon reports it as "
    "CDCD-SLOT-MISSING: tests/faults/test_fault_09_other_servers.py::"
    "test_a_server_promoted_before_its_copy_of_the_slot_is_usable_halts",
    "CDCD-SNAPSHOT-STALE": "tests/integration/test_snapshot_stale.py::"
    "test_a_table_that_is_never_left_alone_halts_and_arrives_whole_once_it_is",
    "CDCD-STANDBY-UNAVAILABLE": "tests/faults/test_fault_37_snapshot_standby.py::"
    "test_a_standby_that_is_lost_in_the_copy_is_waited_for_and_never_replaced_by_the_primary",
    "CDCD-STANDBY-UNUSABLE": "tests/integration/test_snapshot_standby.py::"
    "test_a_server_that_is_no_standby_is_refused_at_the_start",
    "CDCD-SOURCE-TIMELINE": "tests/faults/test_fault_09_other_servers.py::"
    "test_a_standby_that_lacks_what_was_written_halts_and_goes_on_by_its_way",
    "CDCD-SOURCE-BEHIND": "tests/faults/test_fault_09_other_servers.py::"
    "test_a_server_restored_to_an_earlier_state_halts",
    "CDCD-SOURCE-CRASH": "tests/integration/test_server_crashes.py::"
    "test_a_row_that_crashes_the_server_each_time_halts",
    # the server's messages
    "CDCD-PREPARED-MISSING": "tests/integration/test_daemon_two_phase.py::"
    "test_a_commit_of_rows_that_this_slot_has_lost_halts",
    "CDCD-UNSUPPORTED": "refused earlier as CDCD-SLOT-UNUSABLE: the stream never begins",
    # Kafka, and the readers of the topics
    "CDCD-SINK-BATCH-TOO-LARGE": "tests/faults/test_fault_20_too_large.py::"
    "test_what_the_broker_refuses_is_found_row_by_row_and_what_fits_goes_on",
    "CDCD-SINK-AUTH": "tests/faults/test_fault_22_kafka_access.py::"
    "test_a_revoked_acl_is_reported_and_waited_for",
    "CDCD-SPARK-READ": "tests/spark/test_target.py::"
    "test_a_mirror_writes_down_which_cluster_it_is_of_and_refuses_another",
    "CDCD-CATALOG": "tests/spark/test_catalog.py::"
    "test_a_table_of_another_owner_remains_and_the_mirror_goes_on",
    "CDCD-HISTORY-MISSING": "tests/spark/test_mirror.py::test_a_start_that_kafka_has_removed_is_an_error",
    "CDCD-GAP": "tests/spark/test_gaps.py::test_the_mirror_stops_at_a_gap_until_it_is_accepted",
    "CDCD-POSITION-UNAVAILABLE": "tests/spark/test_starts_and_ends.py::"
    "test_a_position_that_kafka_does_not_have_is_an_error",
    "CDCD-SNAPSHOT-INCOMPLETE": "tests/spark/test_snapshot_cuts.py::"
    "test_each_batch_ends_where_all_tables_are_complete_and_equal",
    "CDCD-STORAGE": "tests/spark/test_storage.py::test_an_endpoint_without_tls_has_to_be_allowed",
    "CDCD-TABLE-LOG": "tests/spark/unit/test_damaged_logs.py::"
    "test_a_damaged_log_parks_its_table_until_the_hint_is_followed",
    "CDCD-TABLE-FILE": "tests/spark/unit/test_missing_files.py::"
    "test_a_file_that_is_missing_parks_its_table_until_a_copy",
    "CDCD-STORAGE-UNAVAILABLE": "tests/spark/unit/test_mirror_retries.py::"
    "test_a_disk_that_is_full_is_waited_for_and_no_file_is_left_over",
    "CDCD-STORAGE-CONFLICT": "tests/spark/test_mirror_in_bucket.py::"
    "test_a_mirror_that_another_has_taken_over_stops",
    "CDCD-CHANGES-INVALID": "tests/spark/unit/test_changed_table.py::"
    "test_changes_without_an_order_or_a_key_are_an_error_without_values",
    "CDCD-NOT-DURABLE": "tests/integration/test_wait.py::test_the_command_ends_with_an_error_when_its_time_is_over",
    "CDCD-MIRROR-BEHIND": "tests/spark/unit/test_reading.py::test_a_wait_returns_with_the_commit_or_at_its_end",
    "CDCD-MIRROR-PARKED": "tests/spark/unit/test_parked.py::"
    "test_a_run_to_an_end_is_no_success_with_a_parked_table",
    "CDCD-MIRROR-INCONSISTENT": "no server writes topics that contradict themselves",
}

REPORTED_AS = {
    "CDCD-UNSAFE-STREAMING": "CDCD-SOURCE-STREAMING",
    "CDCD-VALUE-BINARY": "CDCD-SOURCE-BINARY",
}
"""These are raised only while a stream option is on, and then reported as the error that switches it off."""
