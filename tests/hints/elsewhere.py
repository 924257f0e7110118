"""Codes whose situations need more than one server and one daemon, or that no real server brings about.

Each names the test that brings it about and goes on by its hint; a text instead of a test says why there is none.
"""

NEVER_RAISED = "the root of others, never raised itself"

ELSEWHERE: dict[str, str] = {
    "CDCD-ERROR": NEVER_RAISED,
    "CDCD-SOURCE-OPTION": NEVER_RAISED,
    # the daemon's own surroundings
    "CDCD-MEMORY": "tests/faults/test_fault_17_memory_limit.py::test_a_transaction_for_which_there_is_no_memory",
    "CDCD-SPILL-LOST": "tests/faults/test_fault_16_spill_disk.py::"
    "test_a_folder_that_is_removed_costs_a_new_session_and_no_row",
    "CDCD-STACK": "of the local servers of the demo, never of a daemon",
    # PostgreSQL
    "CDCD-SOURCE-STREAMING": "tests/integration/test_streaming_fails.py::"
    "test_a_server_that_cannot_stream_what_is_open_is_read_without_streaming",
    "CDCD-SOURCE-SEND": "tests/integration/test_daemon_binary.py::"
    "test_a_column_that_comes_later_ends_binary_and_loses_nothing",
    "CDCD-SLOT-LOST": "tests/faults/test_fault_11_slot_invalidated.py::"
    "test_a_slot_that_the_server_gave_up_is_made_anew",
    "CDCD-SLOT-GIVEN-UP": "tests/integration/test_wal_guard.py::"
    "test_a_slot_that_streams_is_let_go_before_it_is_given_up",
    "CDCD-SLOT-UNSYNCHRONISED": "tests/faults/test_fault_09_other_servers.py::"
    "test_a_server_promoted_without_the_slot_halts",
    "CDCD-SNAPSHOT-STALE": "tests/integration/test_snapshot_stale.py::"
    "test_a_table_that_is_never_left_alone_halts_and_arrives_whole_once_it_is",
    "CDCD-SOURCE-TIMELINE": "tests/faults/test_fault_09_other_servers.py::"
    "test_a_standby_that_lacks_what_was_written_halts_and_goes_on_by_its_way",
    "CDCD-SOURCE-BEHIND": "tests/faults/test_fault_09_other_servers.py::"
    "test_a_server_restored_to_an_earlier_state_halts",
    "CDCD-SOURCE-STANDBY": "tests/faults/test_fault_09_other_servers.py::"
    "test_a_name_that_moves_to_a_standby_while_cdcd_starts_is_waited_for",
    # what the server sends: it has to be damaged on its way
    "CDCD-PROTOCOL": "tests/faults/test_fault_28_corrupt_protocol.py::test_a_damaged_message_is_read_again",
    "CDCD-PROTOCOL-TRUNCATED": "tests/faults/test_fault_28_corrupt_protocol.py::test_one_byte_at_a_time",
    "CDCD-PROTOCOL-TRAILING": "tests/faults/test_fault_28_corrupt_protocol.py::test_one_byte_at_a_time",
    "CDCD-PROTOCOL-UNKNOWN": "tests/faults/test_fault_28_corrupt_protocol.py::"
    "test_a_message_that_is_always_damaged_halts",
    "CDCD-PROTOCOL-ORDER": "tests/faults/test_fault_28_corrupt_protocol.py::test_one_byte_at_a_time",
    "CDCD-PROTOCOL-RELATION": "tests/faults/test_fault_28_corrupt_protocol.py::test_one_byte_at_a_time",
    "CDCD-PREPARED-MISSING": "tests/integration/test_daemon_two_phase.py::"
    "test_a_commit_of_rows_that_this_slot_has_lost_halts",
    "CDCD-PART-MISSING": "tests/integration/test_large_transactions.py::"
    "test_each_change_is_there_once_after_kills_between_parts",
    "CDCD-PROTOCOL-UNSURE": "tests/integration/test_streaming_fails.py::"
    "test_a_rollback_that_the_server_does_not_tell_of_is_noticed",
    "CDCD-UNSUPPORTED": "refused before as CDCD-SLOT-UNUSABLE: the stream never begins",
    # rows, schemas, the registry
    "CDCD-VALUE-BINARY": "tests/integration/test_daemon_binary.py::"
    "test_a_value_that_binary_has_no_reading_of_is_read_as_text",
    "CDCD-VALUE-TEXT": "a text that its type does not have is damaged on its way: as CDCD-PROTOCOL",
    "CDCD-REGISTRY-ID-TAKEN": "tests/integration/test_schema_topic.py::"
    "test_of_two_schemas_with_one_id_the_first_in_the_log_has_it",
    # Kafka, and who reads the topics
    "CDCD-SCHEMA-TOPIC": "tests/unit/schema/test_book.py::test_a_record_of_another_form_is_never_guessed_at",
    "CDCD-OWNED": "tests/integration/test_shared_resources.py::"
    "test_who_shares_something_with_another_is_refused_and_leaves_no_trace",
    "CDCD-SINK-BATCH": "tests/faults/test_fault_20_too_large.py::"
    "test_what_the_broker_refuses_is_found_row_by_row_and_what_fits_goes_on",
    "CDCD-SINK-EXPIRED": "tests/faults/test_fault_25_two_daemons.py::"
    "test_a_transaction_that_the_broker_gave_up_is_no_takeover",
    "CDCD-SINK-FENCED": "tests/faults/test_fault_25_two_daemons.py::"
    "test_it_is_one_when_another_has_written_since",
    "CDCD-SINK-AUTH": "tests/faults/test_fault_22_kafka_access.py::"
    "test_a_right_that_is_taken_away_is_told_and_waited_for",
    "CDCD-READING": "tests/spark/test_gaps.py::test_the_mirror_stops_at_a_gap_until_it_is_accepted",
    "CDCD-HISTORY-MISSING": "tests/spark/test_mirror.py::test_a_start_that_kafka_has_removed_is_an_error",
    "CDCD-GAP": "tests/spark/test_gaps.py::test_the_mirror_stops_at_a_gap_until_it_is_accepted",
    "CDCD-MIRROR": "what contradicts itself in the topics is no situation of a server",
}
